// Package testservice is what the tests of this module share: a guarded handler on a real server, a client that reads its
// answers, and a store that counts what is asked of it. Only tests import it.
package testservice
