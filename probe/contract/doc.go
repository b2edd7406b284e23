// Package contract compares an OpenAPI description with the routes of a service: whether each operation that needs an
// Idempotency-Key declares it, and whether its route does what is declared.
//
// Test is a ratchet for CI: a new operation without a key fails, unless the exceptions have a reason for it.
//
//	func TestOperationsTakeKeys(t *testing.T) {
//		contract.Test(t, "openapi.yaml", contract.Options{
//			URL:        server.URL,
//			Authorize:  func(r *http.Request) { r.Header.Set("Authorization", token) },
//			Exceptions: map[string]string{"POST /search": "only reads"},
//		})
//	}
//
// Components goes the other way: it writes what a description must say from the options of a middleware.
package contract
