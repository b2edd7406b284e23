package agents

import (
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
)

// UCP returns the options for carts and checkouts of the Universal Commerce Protocol, over REST. Mount the middleware inside
// the verification of signatures, and only on the routes of carts and checkouts, because searches in a catalog have no key:
//
//	idem, err := idempotency.New(store, platform, agents.UCP())
//	mux.Handle("/checkout-sessions/", verifySignature(idem.Handler(checkouts)))
//
// Two bodies are equal if all their bytes are equal, as for Content-Digest. UCP recommends to keep answers for 48 hours.
func UCP() idempotency.Options {
	return idempotency.Options{
		Methods:      []string{http.MethodPost, http.MethodPut},
		Required:     true,
		TTL:          48 * time.Hour,
		ErrorHandler: refuseForUCP,
	}
}

// refuseForUCP answers with an error of UCP. To an agent, 409 means that the key was used with another body. So an operation in
// progress becomes 503, and the other refusals with 409, such as not-replayable, become 500.
func refuseForUCP(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
	status := e.Status
	switch {
	case e.Code == "key-reused":
		status = http.StatusConflict
	case e.Code == "in-progress":
		status = http.StatusServiceUnavailable
	case status == http.StatusConflict:
		status = http.StatusInternalServerError
	}
	writeRefusal(w, e, status, map[string]string{"code": snakeCase(e.Code), "content": e.Detail})
}
