package agents

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// writeRefusal answers the refusal e with status and body, in the form of a protocol.
func writeRefusal(w http.ResponseWriter, e *idempotency.Error, status int, body any) {
	h := w.Header()
	maps.Copy(h, e.Header)
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110, section 15.5.2, demands a challenge
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(retrySeconds(e)))
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has left gets the refusal when it retries
}

// retrySeconds returns RetryAfter in whole seconds, rounded up.
func retrySeconds(e *idempotency.Error) int {
	return int((e.RetryAfter + time.Second - 1) / time.Second)
}

// snakeCase returns the code of a refusal in the spelling of ACP and UCP, such as not_replayable.
func snakeCase(code string) string { return strings.ReplaceAll(code, "-", "_") }
