package golden

import (
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Update has tests write the golden files of the current version that differ.
var Update = flag.Bool("update", false, "write the golden files of the current version that differ")

// RequireFile requires that a golden file has a text.
func RequireFile(t testing.TB, path, text string) {
	t.Helper()
	if *Update {
		require.NoError(t, WriteFile(path, text))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(have), text)
}

// WriteFile writes a golden file.
func WriteFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// operation leaves a row in a table, whose key has the ID that it is called by.
type operation struct {
	id       string
	attempts int // before that one; they are released
	steps    []string
	response *idempotency.Response // nil: there is none
	released bool
}

var request = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour,
}

// Steps are names and results.
var Steps = []string{"reserve", "'\\\x00", "charge?", "8 bytes"}

// Responses are of some kinds, by the IDs of their operations.
var Responses = map[string]*idempotency.Response{
	"done-binary":  {Status: 201, Header: `X-Odd\x5c\x3aName: caf\xe9` + "\nX-Suppressed\n", Body: []byte("'\\\x00\xff\n")},
	"done-empty":   {Status: http.StatusNoContent, Body: []byte{}},
	"done-note":    {Status: http.StatusCreated, Body: []byte("body"), Note: "charge ch_1"},
	"done-omitted": {Status: http.StatusOK, Omitted: true},
	"done-trailer": {Status: 200, Header: "Trailer: X-Sum\n", Trailer: `Trailer\x3aX-Late: 2` + "\nX-Sum: 1\n", Body: []byte("body")},
	"done-work":    {Status: 0, Body: []byte("work without HTTP")},
}

var operations = []operation{
	{id: "done", response: &idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("receipt 1")}},
	{id: "done-binary", response: Responses["done-binary"]},
	{id: "done-empty", response: Responses["done-empty"]},
	{id: "done-note", response: Responses["done-note"]},
	{id: "done-omitted", response: Responses["done-omitted"]},
	{id: "done-third", attempts: 2, response: &idempotency.Response{Status: 200, Body: []byte("body")}},
	{id: "done-trailer", response: Responses["done-trailer"]},
	{id: "done-work", response: Responses["done-work"]},
	{id: "running"},
	{id: "running-steps", steps: Steps},
	{id: "released", released: true},
	{id: "released-steps", steps: Steps, released: true},
}

func (o operation) key() idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: o.id}
}

// MakeRows has a store, whose claims have leases, make a row of each kind.
func MakeRows(t testing.TB, store idempotency.Store) {
	t.Helper()
	for _, o := range operations {
		for i := range o.attempts {
			require.NoError(t, o.begin(t, store, i+1).Release(t.Context(), time.Hour))
		}
		claim := o.begin(t, store, o.attempts+1)
		for i := 0; i < len(o.steps); i += 2 {
			_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), o.steps[i], []byte(o.steps[i+1]))
			require.NoError(t, err)
		}
		switch {
		case o.response != nil:
			require.NoError(t, claim.Complete(t.Context(), *o.response, time.Hour))
		case o.released:
			require.NoError(t, claim.Release(t.Context(), time.Hour))
		}
	}
}

// begin claims the key for the attempt of that number.
func (o operation) begin(t testing.TB, store idempotency.Store, attempt int) idempotency.Claim {
	t.Helper()
	takeOver := request
	takeOver.TakeOver = true
	record, claim, err := store.Begin(t.Context(), o.key(), takeOver)
	require.NoError(t, err, o.id)
	require.NotNil(t, claim, o.id)
	require.Equal(t, attempt, record.Attempt, o.id)
	return claim
}

// RequireHeld requires that a store reads the rows that MakeRows has made, but for those that can be claimed. It changes
// none.
func RequireHeld(t testing.TB, store idempotency.Store) {
	t.Helper()
	for _, o := range operations {
		if o.released {
			continue
		}
		record, claim, err := store.Begin(t.Context(), o.key(), request)
		require.NoError(t, err, o.id)
		require.Nil(t, claim, o.id)
		require.Equal(t, o.attempts+1, record.Attempt, o.id)
		require.Equal(t, request.Fingerprint, record.Fingerprint, o.id)
		require.Equal(t, o.response, record.Response, o.id)
		require.Equal(t, o.response == nil, record.LeaseLeft > 0, o.id)
		require.LessOrEqual(t, record.LeaseLeft, request.TTL, o.id)
	}
}

// RequireAttempts claims what was released, and what has lapsed, and requires that the steps are there.
func RequireAttempts(t testing.TB, store idempotency.Store) {
	t.Helper()
	for _, o := range operations {
		if o.response != nil {
			continue
		}
		claim := o.begin(t, store, o.attempts+2)
		kept, err := claim.(idempotency.Checkpointer).Checkpoints(t.Context())
		require.NoError(t, err, o.id)
		require.Len(t, kept, len(o.steps)/2, o.id)
		for i := 0; i < len(o.steps); i += 2 {
			require.Equal(t, o.steps[i+1], string(kept[o.steps[i]]), o.id)
		}
	}
}
