package main

import (
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/idempotency-go/idempotency"
)

// inspection is the JSON document of inspect, forget and resolve. The names in all JSON documents are stable.
type inspection struct {
	Store      string          `json:"store"`
	Found      bool            `json:"found"`
	Forgotten  *bool           `json:"forgotten,omitempty"` // only by forget
	Resolved   *bool           `json:"resolved,omitempty"`  // only by resolve
	Story      string          `json:"story"`
	Entry      *jsonEntry      `json:"entry,omitempty"`
	Resolution *jsonResolution `json:"resolution,omitempty"`
}

// jsonResolution is the resolution by the command resolve.
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

// jsonEntry is an entry. Fields that the store does not know are left out.
type jsonEntry struct {
	State       idempotency.State `json:"state"`
	User        string            `json:"user,omitempty"`
	Endpoint    string            `json:"endpoint,omitempty"`
	Key         string            `json:"key,omitempty"`
	Operation   string            `json:"operation"`
	Attempt     int               `json:"attempt,omitempty"`
	Ended       string            `json:"ended,omitempty"`
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

// jsonResolved is the last resolution in the record. Operator is empty for a resolution by Options.Reconcile.
type jsonResolved struct {
	Happened bool      `json:"happened"`
	Attempt  int       `json:"attempt"`
	At       time.Time `json:"at"`
	Operator string    `json:"operator,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Sealed   bool      `json:"sealed,omitempty"`
}

// jsonStep is a checkpoint without its data.
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
	Body       *string     `json:"body,omitempty"`       // with --body, for a body in UTF-8
	BodyBase64 []byte      `json:"bodyBase64,omitempty"` // with --body, for any other body
}

func newJSONEntry(e idempotency.Entry, damage error, withBody bool) *jsonEntry {
	document := &jsonEntry{
		State: e.State, User: e.Key.User, Endpoint: e.Key.Endpoint, Key: e.Key.ID,
		Operation: e.Operation.String(), Attempt: e.Attempt, Ended: string(e.Ended), Created: utcOrNil(e.Created), Completed: utcOrNil(e.Completed),
		LeaseLeftMS: e.LeaseLeft.Milliseconds(), RemainingMS: e.Remaining.Milliseconds(), Size: e.Size, Status: e.Status,
		Note: e.Note,
	}
	for _, step := range e.Steps {
		document.Steps = append(document.Steps, jsonStep{step.Name, step.Bytes})
	}
	if r := e.Resolved; r != nil {
		document.Resolved = &jsonResolved{Happened: r.Happened, Attempt: r.Attempt, At: r.At, Sealed: isSealedResolution(r)}
		if !document.Resolved.Sealed {
			document.Resolved.Operator, document.Resolved.Reason = r.Operator, r.Reason
		}
	}
	if damage != nil {
		document.Damage = damage.Error()
	}
	r := e.Response
	if r == nil {
		return document
	}
	document.Response = &jsonResponse{
		Trailer: r.Trailer.Header(), Omitted: r.Omitted, Sealed: isSealed(r), BodySize: len(r.Body),
	}
	if !document.Response.Sealed { // a sealed answer has only sealedPrefix and ciphertext as its header
		document.Response.Header = r.Header.Header()
	}
	switch {
	case !withBody:
	case utf8.Valid(r.Body):
		text := string(r.Body)
		document.Response.Body = &text
	default:
		document.Response.BodyBase64 = r.Body
	}
	return document
}

func utcOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
