package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// retried returns what a retry of an operation finds, and its claim if it may run.
func retried(t testing.TB, store idempotency.Store, key idempotency.Key) (idempotency.Record, idempotency.Claim) {
	t.Helper()
	record, claim, err := store.Begin(t.Context(), key, attempt)
	require.NoError(t, err)
	return record, claim
}

// Retries get what the operator has given. The late owner has lost the operation.
func TestResolveAsHappened(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		self, err := user.Current()
		require.NoError(t, err)
		body := filepath.Join(t.TempDir(), "receipt")
		require.NoError(t, os.WriteFile(body, []byte("{\"id\":\"pay_1\"}\n\x00\xff"), 0o600))
		for name, test := range map[string]struct {
			flags []string
			stdin string
			want  idempotency.Response
			by    string
		}{
			"with its answer": {
				flags: []string{"--status", "201", "--header", "location: /payments/pay_1", "--header", "Set-Cookie:a=1, b", "--header",
					"Set-Cookie: c", "--body", body, "--operator", "alice"},
				want: idempotency.Response{
					Status: 201, Body: []byte("{\"id\":\"pay_1\"}\n\x00\xff"),
					Header: idempotency.NewFields(http.Header{"Location": {"/payments/pay_1"}, "Set-Cookie": {"a=1, b", "c"}}),
				},
				by: "alice",
			},
			"with a body from standard input": {
				flags: []string{"--status", "200", "--body", "-", "--operator", "bj\u00f6rn"}, stdin: "paid",
				want: idempotency.Response{Status: 200, Body: []byte("paid")}, by: "bj\u00f6rn",
			},
			"without a body": {
				flags: []string{"--status", "204"},
				want:  idempotency.Response{Status: 204, Body: []byte{}}, by: self.Username,
			},
			"with a tombstone": {
				flags: []string{"--status", "201", "--tombstone", "--operator", "alice"},
				want:  idempotency.Response{Status: 201, Omitted: true}, by: "alice",
			},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: name}
			own := abandon(t, b, key)
			cmd := command(t.Context(), b.env, resolving(key, append(test.flags, "--happened", "--yes")...)...)
			cmd.Stdin = strings.NewReader(test.stdin)
			said, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", name, said)
			require.ErrorIs(t, own.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost, name)
			record, claim := retried(t, store, key)
			require.Nil(t, claim, name)
			if test.want.Omitted {
				record.Response.Body = nil
			}
			require.Equal(t, &test.want, record.Response, name)
			require.Regexp(t, `(?m)^  operator +`+regexp.QuoteMeta(test.by)+"$", string(said), name)
			require.Regexp(t, `(?m)^  reason +case 17$`, string(said), name)
			require.Contains(t, string(said), `msg="idempotency: happened" operation=`+key.OperationID().String(), name)
			require.Contains(t, string(said), "operator="+test.by+` reason="case 17"`, name)
			entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
			require.NoError(t, err)
			resolved := entry.Resolved
			require.NotNil(t, resolved, name)
			require.WithinDuration(t, time.Now(), resolved.At, time.Minute, name)
			resolved.At = time.Time{}
			require.Equal(t, &idempotency.Resolved{Happened: true, Attempt: 1, Operator: test.by, Reason: "case 17"}, resolved, name)
			require.Regexp(t, `\nResolved.\n$`, string(said), name)
		}
	})
}

// The next request runs what has not happened, and its steps stay.
func TestResolveAsNotHappened(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		own := abandon(t, b, keyOfAlice).(idempotency.Checkpointer)
		_, err := own.Checkpoint(t.Context(), "reserve", []byte("7"))
		require.NoError(t, err)
		got := b.try(t, resolving(keyOfAlice, "--not-happened", "--operator", "alice", "--yes")...)
		require.Zero(t, got.status, got.stderr)
		require.Contains(t, strings.Join(strings.Fields(got.stdout), " "), "makes attempt 2 at the same operation")
		shown := b.try(t, with("show")...).stdout
		require.Regexp(t, `(?m)^  state +released$`, shown)
		require.Regexp(t, `(?m)^  steps +reserve: done, 1 byte\n  resolved +not happened, attempt 1, .* UTC\n +by alice: case 17$`, shown)
		require.Contains(t, strings.Join(strings.Fields(shown), " "), "or rather: it was resolved as not happened")
		require.Contains(t, got.stderr, `msg="idempotency: not-happened"`)
		record, next := retried(t, b.open(t), keyOfAlice)
		require.NotNil(t, next)
		require.Equal(t, 2, record.Attempt)
		_, err = own.Checkpoint(t.Context(), "charge", nil)
		require.ErrorIs(t, err, idempotency.ErrClaimLost)
	})
}

// A record is kept for a day from its resolution, for as long as it would have been kept anyway if that is longer, or for as
// long as the operator says.
func TestResolveKeepsTheRecord(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		for i, test := range []struct {
			ttl  time.Duration // of the service
			flag string
			want time.Duration
		}{
			{time.Hour, "", 24 * time.Hour},
			{72 * time.Hour, "", 72 * time.Hour},
			{72 * time.Hour, "--ttl=10h", 10 * time.Hour},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprint(i)}
			claim(t, store, key, idempotency.ClaimRequest{Fingerprint: attempt.Fingerprint, Lease: time.Millisecond, TTL: test.ttl})
			await(t, func() bool {
				return strings.Contains(b.try(t, append([]string{"show"}, asking(key)...)...).stdout, "abandoned")
			})
			flags := append(resolving(key, "--not-happened", "--yes", "--json"), strings.Fields(test.flag)...)
			got := b.try(t, flags...)
			require.Zero(t, got.status, got.stderr)
			entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
			require.NoError(t, err)
			require.InDelta(t, test.want, entry.Remaining, float64(patience), test)
		}
	})
}

// The document says what was resolved, and how.
func TestResolveAsJSON(t *testing.T) {
	t.Parallel()
	b := newPostgres(t)
	abandon(t, b, keyOfAlice)
	got := b.try(t, resolving(keyOfAlice, "--happened", "--status", "201", "--operator", "alice", "--ttl", "48h", "--yes",
		"--header", "A: b", "--body", "go.mod", "--json")...)
	require.Zero(t, got.status, got.stderr)
	var document struct {
		Found, Resolved bool
		Entry           struct{ State string }
		Resolution      map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &document))
	require.True(t, document.Found && document.Resolved)
	require.Equal(t, "abandoned", document.Entry.State, "as it was shown")
	body, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"happened": true, "status": 201.0, "header": map[string]any{"A": []any{"b"}}, "bodySize": float64(len(body)),
		"operator": "alice", "reason": "case 17", "remainingMs": float64((48 * time.Hour).Milliseconds()),
	}, document.Resolution)
}

// A service that seals its answers reads a tombstone, and the steps of what has not happened. An answer it refuses. The note of
// its own resolution is not shown as if it were text.
func TestResolveInASealedStore(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store, err := seal.New(b.open(t), seal.Options{Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}}})
		require.NoError(t, err)
		sealed := backend{env: b.env, open: func(testing.TB) idempotency.Store { return store }}
		keyIn := func(id string) idempotency.Key {
			return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}
		}
		resolve := func(id string, flags ...string) {
			own := abandon(t, sealed, keyIn(id)).(idempotency.Checkpointer)
			_, err := own.Checkpoint(t.Context(), "charge", []byte("17"))
			require.NoError(t, err)
			got := b.try(t, resolving(keyIn(id), append(flags, "--yes")...)...)
			require.Zero(t, got.status, got.stderr)
		}
		resolve("tombstone", "--happened", "--status", "201", "--tombstone")
		record, _ := retried(t, store, keyIn("tombstone"))
		require.True(t, record.Response.Omitted)

		resolve("not happened", "--not-happened")
		_, next := retried(t, store, keyIn("not happened"))
		steps, err := next.(idempotency.Checkpointer).Checkpoints(t.Context())
		require.NoError(t, err)
		require.Equal(t, "17", string(steps["charge"]))

		resolve("answer", "--happened", "--status", "201")
		_, _, err = store.Begin(t.Context(), keyIn("answer"), attempt)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)

		abandon(t, sealed, keyOfAlice)
		entry, err := store.Inspect(t.Context(), keyOfAlice)
		require.NoError(t, err)
		require.NoError(t, store.Resolve(t.Context(), entry, idempotency.Resolution{Operator: "alice", Reason: "secret", TTL: time.Hour}))
		shown := b.try(t, with("show")...).stdout
		require.Regexp(t, `(?m)^  resolved +not happened, attempt \d+, .* UTC\n +sealed$`, shown)
		require.NotContains(t, shown, "secret")
		shown = b.try(t, with("show", "--json")...).stdout
		require.Contains(t, shown, `"sealed": true`)
		require.NotContains(t, shown, "secret")
	})
}

// A list is read page by page, in either order, until there is no next one.
func TestListPages(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		for i := range 5 {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprint(i)}
			complete(t, store, key, idempotency.Response{Status: 200, Body: make([]byte, 100*(i%3))})
		}
		type listing struct {
			Entries []struct{ Digest string }
			Next    string
			Totals  map[string]struct{ Records int }
		}
		list := func(flags ...string) (page listing) {
			got := b.try(t, append([]string{"list", "--json"}, flags...)...)
			require.Zero(t, got.status, got.stderr)
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &page))
			return page
		}
		for _, order := range []string{"--largest=false", "--largest"} {
			all, next := list(order).Entries, ""
			require.Len(t, all, 5)
			for i := 0; i < 5; i += 2 {
				page := list(order, "--limit", "2", "--after", next)
				require.Equal(t, all[i:min(5, i+2)], page.Entries)
				require.Equal(t, 5, page.Totals["completed"].Records)
				require.Equal(t, i == 4, page.Next == "", "whether there is another page")
				next = page.Next
			}
		}
		if b.kind == "redis" { // which looks at no more for a page than for a list
			bounded := b.try(t, "list", "--limit", "1", "--scan", "1", "--after", list("--limit", "1").Next)
			require.Contains(t, bounded.stdout, "The store has more records than were looked at")
		}
		first := b.try(t, "list", "--limit", "4")
		require.Contains(t, first.stdout, "\n4 of 5 records.\nThe next page: --after ")
		cursor := strings.TrimSpace(first.stdout[strings.LastIndex(first.stdout, " "):])
		second := b.try(t, "list", "--limit", "4", "--after", cursor)
		require.Contains(t, second.stdout, "\n1 of 5 records.\n")
		require.NotContains(t, second.stdout, "The next page")
		require.NotContains(t, second.stdout, "lease left", "no record has one")
	})
}
