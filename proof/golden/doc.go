// Package golden tests the stored forms, which must never change: the records in Redis, and the names and fingerprints
// for finding records. The tests use only the exported API of the library. For the tests of stores with
// tables, the package makes and reads a row of each kind.
//
// The package is for the tests of this repository, and may change at any time.
package golden
