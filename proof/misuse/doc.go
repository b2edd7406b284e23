// Package misuse tests the middleware against known mistakes with idempotency keys: an answer replayed to the wrong user,
// two requests taken for the same request, and a user exhausting a shared resource. The tests use only the exported API
// of the library.
package misuse
