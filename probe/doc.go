// Package probe tests whether an HTTP service is idempotent: whether a client may send a request again with the same
// Idempotency-Key, and the service acts once.
//
// The service can be written in any language, and can use any middleware or none, because the probe only sends requests,
// breaks connections and kills processes. Run makes each check a subtest:
//
//	func TestPaymentsAreIdempotent(t *testing.T) {
//		probe.Run(t, probe.Service{
//			URLs:    []string{server.URL},
//			Request: func(key string) *http.Request { return newPayment(key, "10 EUR") },
//			Other:   func(key string) *http.Request { return newPayment(key, "20 EUR") },
//			As:      func(r *http.Request, user string) { r.Header.Set("Authorization", tokens[user]) },
//			Effects: func(ctx context.Context) (int, error) { return countPayments(ctx, db) },
//		})
//	}
//
// Each check says what is demanded and who demands it. A failed check shows the exchange that proves the fault, as a curl
// command. A check that lacks a part of Service, for example Effects, is reported as not made, and never as passed.
//
// Some decisions are free, for example whether another content with the same key is refused with 409 or 422. The probe
// reports these decisions, and a check fails because of one only if Service.Decided demands another.
//
// Use a service for tests: the checks create several hundred operations, and a faulty service executes some of them twice.
package probe
