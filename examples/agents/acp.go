// Package agents has the options that make a service conform to three protocols of agents that buy: ACP, UCP and AdCP. Copy
// the file of the protocol, and refusal.go. The page docs/agents.md names the version of each protocol, and what the service
// itself must do.
package agents

import (
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// ACP returns the options for checkouts of the Agentic Commerce Protocol. Mount [EchoKey] outside of the middleware:
//
//	idem, err := idempotency.New(store, merchant, agents.ACP())
//	mux.Handle("POST /checkout_sessions", agents.EchoKey(idem.Handler(sessions)))
//
// Two bodies are equal if they are equal as JSON, and null differs from a missing member. Answers of 500 and more are not
// stored.
func ACP() idempotency.Options {
	return idempotency.Options{
		Methods:      []string{http.MethodPost},
		Required:     true,
		Fingerprint:  fingerprint.JSON,
		ErrorHandler: refuseForACP,
	}
}

// EchoKey sends the key of the request back with each answer.
func EchoKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Idempotency-Key"); key != "" {
			w.Header().Set("Idempotency-Key", key)
		}
		next.ServeHTTP(w, r)
	})
}

// refuseForACP answers with an error of ACP. To an agent, 409 means that a retry will get the answer. So the other refusals
// with 409, such as not-replayable, become 500.
func refuseForACP(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
	status, kind, code := e.Status, "invalid_request", snakeCase(e.Code)
	switch {
	case e.Code == "key-missing":
		code = "idempotency_key_required"
	case e.Code == "key-reused":
		status, code = http.StatusUnprocessableEntity, "idempotency_conflict"
	case e.Code == "in-progress":
		code = "idempotency_in_flight"
	case status == http.StatusServiceUnavailable:
		kind = "service_unavailable"
	case status == http.StatusConflict, status >= http.StatusInternalServerError:
		status, kind = http.StatusInternalServerError, "processing_error"
	}
	writeRefusal(w, e, status, map[string]string{"type": kind, "code": code, "message": e.Detail})
}
