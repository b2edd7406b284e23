// Package testservice has helpers for the tests of all modules: a guarded handler on a real server, a client for this
// server, and a store that counts its calls. Only tests import the package.
//
// The package is for the tests of this repository, and may change at any time.
package testservice
