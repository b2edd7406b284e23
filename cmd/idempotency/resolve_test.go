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

// beginRetry returns the record for a retry, and the claim if the retry may run.
func beginRetry(t testing.TB, store idempotency.Store, key idempotency.Key) (idempotency.Record, idempotency.Claim) {
	t.Helper()
	record, claim, err := store.Begin(t.Context(), key, claimRequest)
	require.NoError(t, err)
	return record, claim
}

// Retries get the answer of the operator. The late owner has lost the claim.
func TestResolveAsHappened(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		self, err := user.Current()
		require.NoError(t, err)
		body := filepath.Join(t.TempDir(), "receipt")
		require.NoError(t, os.WriteFile(body, []byte("{\"id\":\"pay_1\"}\n\x00\xff"), 0o600))
		for name, test := range map[string]struct {
			flags        []string
			stdin        string
			wantResponse idempotency.Response
			wantOperator string
		}{
			"with its answer": {
				flags: []string{"--status", "201", "--header", "location: /payments/pay_1", "--header", "Set-Cookie:a=1, b", "--header",
					"Set-Cookie: c", "--body", body, "--operator", "alice"},
				wantResponse: idempotency.Response{
					Status: 201, Body: []byte("{\"id\":\"pay_1\"}\n\x00\xff"),
					Header: idempotency.NewFields(http.Header{"Location": {"/payments/pay_1"}, "Set-Cookie": {"a=1, b", "c"}}),
				},
				wantOperator: "alice",
			},
			"with a body from standard input": {
				flags: []string{"--status", "200", "--body", "-", "--operator", "bj\u00f6rn"}, stdin: "paid",
				wantResponse: idempotency.Response{Status: 200, Body: []byte("paid")}, wantOperator: "bj\u00f6rn",
			},
			"without a body": {
				flags:        []string{"--status", "204"},
				wantResponse: idempotency.Response{Status: 204, Body: []byte{}}, wantOperator: self.Username,
			},
			"with a tombstone": {
				flags:        []string{"--status", "201", "--tombstone", "--operator", "alice"},
				wantResponse: idempotency.Response{Status: 201, Omitted: true}, wantOperator: "alice",
			},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: name}
			own := abandonAttempt(t, b, key)
			cmd := newCommand(t.Context(), b.environment, resolveCommand(key, append(test.flags, "--happened", "--yes")...)...)
			cmd.Stdin = strings.NewReader(test.stdin)
			said, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", name, said)
			require.ErrorIs(t, own.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost, name)
			record, claim := beginRetry(t, store, key)
			require.Nil(t, claim, name)
			if test.wantResponse.Omitted {
				record.Response.Body = nil
			}
			require.Equal(t, &test.wantResponse, record.Response, name)
			require.Regexp(t, `(?m)^  operator +`+regexp.QuoteMeta(test.wantOperator)+"$", string(said), name)
			require.Regexp(t, `(?m)^  reason +case 17$`, string(said), name)
			require.Contains(t, string(said), `msg="idempotency: happened" operation=`+key.OperationID().String(), name)
			require.Contains(t, string(said), "operator="+test.wantOperator+` reason="case 17"`, name)
			entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
			require.NoError(t, err)
			resolved := entry.Resolved
			require.NotNil(t, resolved, name)
			require.WithinDuration(t, time.Now(), resolved.At, time.Minute, name)
			resolved.At = time.Time{}
			wantResolved := &idempotency.Resolved{Happened: true, Attempt: 1, Operator: test.wantOperator, Reason: "case 17"}
			require.Equal(t, wantResolved, resolved, name)
			require.Regexp(t, `\nResolved.\n$`, string(said), name)
		}
	})
}

// After the resolution as not happened, the next request runs the operation, and the steps are kept.
func TestResolveAsNotHappened(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		own := abandonAttempt(t, b, keyOfAlice).(idempotency.Checkpointer)
		_, err := own.Checkpoint(t.Context(), "reserve", []byte("7"))
		require.NoError(t, err)
		got := b.run(t, resolveCommand(keyOfAlice, "--not-happened", "--operator", "alice", "--yes")...)
		require.Zero(t, got.status, got.stderr)
		require.Contains(t, strings.Join(strings.Fields(got.stdout), " "), "makes attempt 2 at the same operation")
		shown := b.run(t, commandForAlice("show")...).stdout
		require.Regexp(t, `(?m)^  state +released$`, shown)
		require.Regexp(t, `(?m)^  steps +reserve: done, 1 byte\n  resolved +not happened, attempt 1, .* UTC\n +by alice: case 17$`, shown)
		require.Contains(t, strings.Join(strings.Fields(shown), " "), "or rather: it was resolved as not happened")
		require.Contains(t, got.stderr, `msg="idempotency: not-happened"`)
		record, next := beginRetry(t, b.openStore(t), keyOfAlice)
		require.NotNil(t, next)
		require.Equal(t, 2, record.Attempt)
		_, err = own.Checkpoint(t.Context(), "charge", nil)
		require.ErrorIs(t, err, idempotency.ErrClaimLost)
	})
}

// After the resolution, the record is kept for a day, or for the remaining time if that is longer. The operator can choose
// another time.
func TestResolveKeepsTheRecord(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		for i, test := range []struct {
			serviceTTL time.Duration
			ttlFlag    string
			wantTTL    time.Duration
		}{
			{time.Hour, "", 24 * time.Hour},
			{72 * time.Hour, "", 72 * time.Hour},
			{72 * time.Hour, "--ttl=10h", 10 * time.Hour},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprint(i)}
			claimKey(t, store, key,
				idempotency.ClaimRequest{Fingerprint: claimRequest.Fingerprint, Lease: time.Millisecond, TTL: test.serviceTTL})
			waitUntil(t, func() bool {
				return strings.Contains(b.run(t, append([]string{"show"}, keyFlags(key)...)...).stdout, "abandoned")
			})
			flags := append(resolveCommand(key, "--not-happened", "--yes", "--json"), strings.Fields(test.ttlFlag)...)
			got := b.run(t, flags...)
			require.Zero(t, got.status, got.stderr)
			entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
			require.NoError(t, err)
			require.InDelta(t, test.wantTTL, entry.Remaining, float64(waitLimit), test)
		}
	})
}

// The JSON document contains the resolved entry and the resolution.
func TestResolveAsJSON(t *testing.T) {
	t.Parallel()
	b := newPostgres(t)
	abandonAttempt(t, b, keyOfAlice)
	got := b.run(t, resolveCommand(keyOfAlice, "--happened", "--status", "201", "--operator", "alice", "--ttl", "48h", "--yes",
		"--header", "A: b", "--body", "go.mod", "--json")...)
	require.Zero(t, got.status, got.stderr)
	var document struct {
		Found, Resolved bool
		Entry           struct{ State string }
		Resolution      map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &document))
	require.True(t, document.Found && document.Resolved)
	require.Equal(t, "abandoned", document.Entry.State, "the state before the resolution")
	body, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"happened": true, "status": 201.0, "header": map[string]any{"A": []any{"b"}}, "bodySize": float64(len(body)),
		"operator": "alice", "reason": "case 17", "remainingMs": float64((48 * time.Hour).Milliseconds()),
	}, document.Resolution)
}

// A service that seals its answers can read a tombstone, and the steps of an operation that has not happened. The service
// refuses an unsealed answer. The program does not show the sealed note of a resolution by the service.
func TestResolveInASealedStore(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store, err := seal.New(b.openStore(t), seal.Options{Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}}})
		require.NoError(t, err)
		sealed := backend{environment: b.environment, openStore: func(testing.TB) idempotency.Store { return store }}
		keyIn := func(id string) idempotency.Key {
			return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}
		}
		resolve := func(id string, flags ...string) {
			own := abandonAttempt(t, sealed, keyIn(id)).(idempotency.Checkpointer)
			_, err := own.Checkpoint(t.Context(), "charge", []byte("17"))
			require.NoError(t, err)
			got := b.run(t, resolveCommand(keyIn(id), append(flags, "--yes")...)...)
			require.Zero(t, got.status, got.stderr)
		}
		resolve("tombstone", "--happened", "--status", "201", "--tombstone")
		record, _ := beginRetry(t, store, keyIn("tombstone"))
		require.True(t, record.Response.Omitted)

		resolve("not happened", "--not-happened")
		_, next := beginRetry(t, store, keyIn("not happened"))
		steps, err := next.(idempotency.Checkpointer).Checkpoints(t.Context())
		require.NoError(t, err)
		require.Equal(t, "17", string(steps["charge"]))

		resolve("answer", "--happened", "--status", "201")
		_, _, err = store.Begin(t.Context(), keyIn("answer"), claimRequest)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)

		abandonAttempt(t, sealed, keyOfAlice)
		entry, err := store.Inspect(t.Context(), keyOfAlice)
		require.NoError(t, err)
		require.NoError(t, store.Resolve(t.Context(), entry, idempotency.Resolution{Operator: "alice", Reason: "secret", TTL: time.Hour}))
		shown := b.run(t, commandForAlice("show")...).stdout
		require.Regexp(t, `(?m)^  resolved +not happened, attempt \d+, .* UTC\n +sealed$`, shown)
		require.NotContains(t, shown, "secret")
		shown = b.run(t, commandForAlice("show", "--json")...).stdout
		require.Contains(t, shown, `"sealed": true`)
		require.NotContains(t, shown, "secret")
	})
}

// The pages of a list contain all records in both orders. The last page has no cursor.
func TestListPages(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		for i := range 5 {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprint(i)}
			completeRecord(t, store, key, idempotency.Response{Status: 200, Body: make([]byte, 100*(i%3))})
		}
		type listing struct {
			Entries []struct{ Operation string }
			Next    string
			Totals  map[string]struct{ Records int }
		}
		list := func(flags ...string) (page listing) {
			got := b.run(t, append([]string{"list", "--json"}, flags...)...)
			require.Zero(t, got.status, got.stderr)
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &page))
			return page
		}
		for _, order := range []string{"--order=newest", "--order=oldest", "--order=largest"} {
			all, next := list(order).Entries, ""
			require.Len(t, all, 5)
			for i := 0; i < 5; i += 2 {
				page := list(order, "--limit", "2", "--after", next)
				require.Equal(t, all[i:min(5, i+2)], page.Entries)
				require.Equal(t, 5, page.Totals["completed"].Records)
				require.Equal(t, i == 4, page.Next == "", "only the last page has no cursor")
				next = page.Next
			}
		}
		if b.kind == "redis" { // --scan limits a page, too
			bounded := b.run(t, "list", "--limit", "1", "--scan", "1", "--after", list("--limit", "1").Next)
			require.Contains(t, bounded.stdout, "The store has more records than were looked at")
		}
		first := b.run(t, "list", "--limit", "4")
		require.Contains(t, first.stdout, "\n4 of 5 records.\nThe next page: --after ")
		cursor := strings.TrimSpace(first.stdout[strings.LastIndex(first.stdout, " "):])
		second := b.run(t, "list", "--limit", "4", "--after", cursor)
		require.Contains(t, second.stdout, "\n1 of 5 records.\n")
		require.NotContains(t, second.stdout, "The next page")
		require.NotContains(t, second.stdout, "lease left", "no record has a lease")
	})
}
