// Package golden has tests of what must never change: the forms in which records stand in Redis, and the names and
// fingerprints by which they are found. They know the library by what it exports. It also makes and reads a row of each kind,
// for the tests of stores with tables.
//
// It is for the tests of this repository, and may change at any time.
package golden
