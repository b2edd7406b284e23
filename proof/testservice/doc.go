// Package testservice is what tests of all modules share: a guarded handler on a real server, a client that reads its
// answers, and a store that counts what is asked of it. Only tests import it.
//
// It is for the tests of this repository, and may change at any time.
package testservice
