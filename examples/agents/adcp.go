package agents

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// replayTTL is the time for which agents may rely on a key.
const replayTTL = 24 * time.Hour

// AdCPCapability returns the value of adcp.idempotency in the answer to get_adcp_capabilities.
func AdCPCapability() map[string]any {
	return map[string]any{"supported": true, "replay_ttl_seconds": int(replayTTL.Seconds())}
}

// AdCP returns the options for tasks of the Ad Context Protocol, over HTTP. The key is a member of the body, and [AddEnvelope]
// is mounted outside of the middleware:
//
//	idem, err := keyfrom.New(store, agent, agents.AdCP(), keyfrom.JSON("/idempotency_key"))
//	mux.Handle("POST /create_media_buy", agents.AddEnvelope(idem.Handler(createMediaBuy)))
//
// A key belongs to an agent for all tasks, so the fingerprint includes the task. The fingerprint ignores the four members that
// AdCP lists. Only success is stored. Answers are kept for seven times the declared time, because AdCP demands that the service
// recognizes late retries. The store must survive restarts, so [idempotency.MemoryStore] is for tests only.
func AdCP() idempotency.Options {
	sameBody := fingerprint.Must(fingerprint.JSONWithout("/idempotency_key", "/context", "/governance_context",
		"/push_notification_config/authentication/credentials"))
	return idempotency.Options{
		Required: true,
		TTL:      7 * replayTTL,
		Endpoint: func(*http.Request) string { return "adcp" },
		Fingerprint: func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
			content, err := sameBody(r, body)
			return sha256.Sum256(append(content[:], r.Method+" "+r.URL.Path...)), err
		},
		Storable:     func(answer *idempotency.Response) bool { return answer.Status < 300 },
		ErrorHandler: refuseForAdCP,
	}
}

// taskError is an error of AdCP. Recovery is transient for an error that passes, and correctable if the agent can help.
type taskError struct {
	Code       string `json:"code"`
	Message    string `json:"message"`
	Recovery   string `json:"recovery"`
	RetryAfter int    `json:"retry_after,omitempty"`
}

// refuseForAdCP answers with a failed task. If the outcome or the answer of an earlier attempt is unknown, the agent must look
// for its effect, as after IDEMPOTENCY_EXPIRED.
func refuseForAdCP(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
	failure := taskError{Message: e.Detail, Recovery: "correctable", RetryAfter: retrySeconds(e)}
	switch e.Code {
	case "key-reused":
		failure.Code = "IDEMPOTENCY_CONFLICT"
	case "in-progress":
		failure.Code, failure.Recovery = "IDEMPOTENCY_IN_FLIGHT", "transient"
	case "outcome-unknown", "not-replayable":
		failure.Code = "IDEMPOTENCY_EXPIRED"
	case "quota-exceeded":
		failure.Code, failure.Recovery = "RATE_LIMITED", "transient"
	case "user-unknown":
		failure.Code = "AUTH_REQUIRED"
	case "replay-refused":
		failure.Code = "PERMISSION_DENIED"
	case "overloaded", "store-unavailable":
		failure.Code, failure.Recovery = "SERVICE_UNAVAILABLE", "transient"
	case "body-consumed":
		failure.Code, failure.Recovery = "CONFIGURATION_ERROR", "terminal"
	default:
		failure.Code = "INVALID_REQUEST"
	}
	writeRefusal(w, e, e.Status, map[string]any{"status": "failed", "adcp_error": failure, "errors": []taskError{failure}})
}

// AddEnvelope adds to each answer the members that belong to a single request, and are never stored: the context that the agent
// has sent, and whether the answer is a replay. Next must write its answer, an object of JSON, at once, as the middleware does.
func AddEnvelope(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			refuseForAdCP(w, r, &idempotency.Error{Status: http.StatusRequestEntityTooLarge, Detail: err.Error()})
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var request struct {
			Context json.RawMessage `json:"context,omitempty"`
		}
		_ = json.Unmarshal(body, &request) // the middleware refuses a malformed body
		next.ServeHTTP(&envelopeWriter{w, request.Context}, r)
	})
}

// envelopeWriter adds the envelope to the body of an answer.
type envelopeWriter struct {
	http.ResponseWriter
	requestContext json.RawMessage
}

func (w *envelopeWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func (w *envelopeWriter) Write(answer []byte) (int, error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(answer, &members) != nil {
		return w.ResponseWriter.Write(answer)
	}
	isReplay := w.Header().Get("Idempotent-Replayed") == "true"
	members["replayed"] = json.RawMessage(strconv.FormatBool(isReplay))
	if w.requestContext != nil {
		members["context"] = w.requestContext
	}
	return len(answer), json.NewEncoder(w.ResponseWriter).Encode(members)
}
