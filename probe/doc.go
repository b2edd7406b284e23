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
// Each check has a demand and the source of the demand, for example a section of an RFC. A failed check shows the exchange
// that proves the fault, as a curl command. Without the field of Service that a check needs, for example Effects, the check
// is reported as not made, and never as passed.
//
// A service is free in some decisions, for example whether a reused key is refused with 409 or 422. The probe reports each
// decision. A check fails because of a decision only if Service.Decided demands a different value.
//
// Use a service for tests: the checks create several hundred operations, and a faulty service executes some of them twice.
package probe
