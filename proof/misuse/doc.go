// Package misuse has tests of what goes wrong with idempotency keys elsewhere: answers that reach another user, requests that
// are not told apart, one user who takes what is there for all. They know the library by what it exports.
package misuse
