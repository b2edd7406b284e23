package main

import (
	"encoding/hex"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/idempotency-go/idempotency"
)

// inspection is what inspect, forget and resolve print as JSON. The names in all documents are stable.
type inspection struct {
	Store      string          `json:"store"`
	Found      bool            `json:"found"`
	Forgotten  *bool           `json:"forgotten,omitempty"` // of forget
	Resolved   *bool           `json:"resolved,omitempty"`  // of resolve
	Story      string          `json:"story"`
	Entry      *jsonEntry      `json:"entry,omitempty"`
	Resolution *jsonResolution `json:"resolution,omitempty"`
}

// jsonResolution is how an operation was ended.
type jsonResolution struct {
	Happened    bool        `json:"happened"`
	Status      int         `json:"status,omitempty"`
	Header      http.Header `json:"header,omitempty"`
	Omitted     bool        `json:"omitted,omitempty"`
	BodySize    int         `json:"bodySize,omitempty"`
	Operator    string      `json:"operator"`
	Reason      string      `json:"reason"`
	RemainingMS int64       `json:"remainingMs"`
}

// jsonEntry is an entry. What the store does not know is left out.
type jsonEntry struct {
	State       idempotency.State `json:"state"`
	User        string            `json:"user,omitempty"`
	Endpoint    string            `json:"endpoint,omitempty"`
	Key         string            `json:"key,omitempty"`
	Digest      string            `json:"digest"`
	Operation   string            `json:"operation"`
	Attempt     int               `json:"attempt,omitempty"`
	Created     *time.Time        `json:"created,omitempty"`
	Completed   *time.Time        `json:"completed,omitempty"`
	LeaseLeftMS int64             `json:"leaseLeftMs,omitempty"`
	RemainingMS int64             `json:"remainingMs,omitempty"`
	Size        int64             `json:"size,omitempty"`
	Status      int               `json:"status,omitempty"`
	Note        string            `json:"note,omitempty"`
	Resolved    *jsonResolved     `json:"resolved,omitempty"`
	Steps       []jsonStep        `json:"steps,omitempty"`
	Damage      string            `json:"damage,omitempty"`
	Response    *jsonResponse     `json:"response,omitempty"`
}

// jsonResolved is how the operation was ended last, by an operator or by Options.Reconcile, which is no operator.
type jsonResolved struct {
	Happened bool      `json:"happened"`
	Attempt  int       `json:"attempt"`
	At       time.Time `json:"at"`
	Operator string    `json:"operator,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Sealed   bool      `json:"sealed,omitempty"`
}

// jsonStep is a checkpoint, never with what is in it.
type jsonStep struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// jsonResponse is the stored answer.
type jsonResponse struct {
	Header     http.Header `json:"header,omitempty"`
	Trailer    http.Header `json:"trailer,omitempty"`
	Omitted    bool        `json:"omitted,omitempty"`
	Sealed     bool        `json:"sealed,omitempty"`
	BodySize   int         `json:"bodySize"`
	Body       *string     `json:"body,omitempty"`       // with --body, if it is text
	BodyBase64 []byte      `json:"bodyBase64,omitempty"` // with --body, if it is not
}

func jsonOf(e idempotency.Entry, damage error, body bool) *jsonEntry {
	j := &jsonEntry{
		State: e.State, User: e.Key.User, Endpoint: e.Key.Endpoint, Key: e.Key.ID,
		Digest: hex.EncodeToString(e.Digest[:]), Operation: e.OperationID().String(),
		Attempt: e.Attempt, Created: timeOf(e.Created), Completed: timeOf(e.Completed),
		LeaseLeftMS: e.LeaseLeft.Milliseconds(), RemainingMS: e.Remaining.Milliseconds(), Size: e.Size, Status: e.Status,
		Note: e.Note,
	}
	for _, step := range e.Steps {
		j.Steps = append(j.Steps, jsonStep{step.Name, step.Bytes})
	}
	if r := e.Resolved; r != nil {
		j.Resolved = &jsonResolved{Happened: r.Happened, Attempt: r.Attempt, At: r.At, Sealed: isSealedResolution(r)}
		if !j.Resolved.Sealed {
			j.Resolved.Operator, j.Resolved.Reason = r.Operator, r.Reason
		}
	}
	if damage != nil {
		j.Damage = damage.Error()
	}
	r := e.Response
	if r == nil {
		return j
	}
	j.Response = &jsonResponse{
		Trailer: r.Trailer.Header(), Omitted: r.Omitted, Sealed: isSealed(r), BodySize: len(r.Body),
	}
	if !j.Response.Sealed { // else it is the mark of that
		j.Response.Header = r.Header.Header()
	}
	switch {
	case !body:
	case utf8.Valid(r.Body):
		text := string(r.Body)
		j.Response.Body = &text
	default:
		j.Response.BodyBase64 = r.Body
	}
	return j
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
