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

// Update makes the tests rewrite the golden files of the current version, unless a file is up to date.
var Update = flag.Bool("update", false, "write the golden files of the current version that differ")

// RequireFile requires that the golden file at path has the content text.
func RequireFile(t testing.TB, path, text string) {
	t.Helper()
	if *Update {
		require.NoError(t, WriteFile(path, text))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(have), text)
}

// WriteFile writes a golden file, and makes its directory.
func WriteFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// operation describes how to make one row of a table.
type operation struct {
	id            string
	priorAttempts int // released attempts before the attempt that makes the row
	steps         []string
	response      *idempotency.Response // nil: the operation is not completed
	isReleased    bool
}

var request = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour,
}

// Steps has the names and results of steps, in turns.
var Steps = []string{"reserve", "'\\\x00", "charge?", "8 bytes"}

// Responses has stored responses of different kinds, by the IDs of their operations.
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
	{id: "done-third", priorAttempts: 2, response: &idempotency.Response{Status: 200, Body: []byte("body")}},
	{id: "done-trailer", response: Responses["done-trailer"]},
	{id: "done-work", response: Responses["done-work"]},
	{id: "running"},
	{id: "running-steps", steps: Steps},
	{id: "released", isReleased: true},
	{id: "released-steps", steps: Steps, isReleased: true},
}

func (o operation) buildKey() idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: o.id}
}

// MakeRows makes a row of each kind in store, whose claims must have leases.
func MakeRows(t testing.TB, store idempotency.Store) {
	t.Helper()
	for _, o := range operations {
		for i := range o.priorAttempts {
			require.NoError(t, o.claimKey(t, store, i+1).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}
		claim := o.claimKey(t, store, o.priorAttempts+1)
		for i := 0; i < len(o.steps); i += 2 {
			_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), o.steps[i], []byte(o.steps[i+1]))
			require.NoError(t, err)
		}
		switch {
		case o.response != nil:
			require.NoError(t, claim.Complete(t.Context(), *o.response, time.Hour))
		case o.isReleased:
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}
	}
}

// claimKey claims the key of o, and requires that the claim belongs to the given attempt.
func (o operation) claimKey(t testing.TB, store idempotency.Store, attempt int) idempotency.Claim {
	t.Helper()
	takeOver := request
	takeOver.TakeOver = true
	record, claim, err := store.Begin(t.Context(), o.buildKey(), takeOver)
	require.NoError(t, err, o.id)
	require.NotNil(t, claim, o.id)
	require.Equal(t, attempt, record.Attempt, o.id)
	return claim
}

// RequireHeld requires that store reads the rows of MakeRows, and leaves the rows unchanged. RequireHeld skips the
// released rows, because a claim would change them.
func RequireHeld(t testing.TB, store idempotency.Store) {
	t.Helper()
	for _, o := range operations {
		if o.isReleased {
			continue
		}
		record, claim, err := store.Begin(t.Context(), o.buildKey(), request)
		require.NoError(t, err, o.id)
		require.Nil(t, claim, o.id)
		require.Equal(t, o.priorAttempts+1, record.Attempt, o.id)
		require.Equal(t, request.Fingerprint, record.Fingerprint, o.id)
		require.Equal(t, o.response, record.Response, o.id)
		require.Equal(t, o.response == nil, record.LeaseLeft > 0, o.id)
		require.LessOrEqual(t, record.LeaseLeft, request.TTL, o.id)
	}
}

// RequireAttempts claims the released and the lapsed operations, and requires that their steps are stored.
func RequireAttempts(t testing.TB, store idempotency.Store) {
	t.Helper()
	for _, o := range operations {
		if o.response != nil {
			continue
		}
		claim := o.claimKey(t, store, o.priorAttempts+2)
		results, err := claim.(idempotency.Checkpointer).Checkpoints(t.Context())
		require.NoError(t, err, o.id)
		require.Len(t, results, len(o.steps)/2, o.id)
		for i := 0; i < len(o.steps); i += 2 {
			require.Equal(t, o.steps[i+1], string(results[o.steps[i]]), o.id)
		}
	}
}
