package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// searchedKeys are the keys of the records in the tests of searches.
var searchedKeys = []idempotency.Key{
	{User: "alice", Endpoint: "POST /payments", ID: "order-1"}, {User: "alice", Endpoint: "POST /refunds", ID: "order-1"},
	{User: "alice", Endpoint: "POST /payments", ID: "order-2"}, {User: "bob", Endpoint: "POST /payments", ID: "order-3"},
}

// jsonListing is a listing in JSON, of which only the operations count.
type jsonListing struct{ Entries []struct{ Operation string } }

// A part of a key finds records in list, inspect and export. A store that does not keep a part of the key says so.
func TestSearch(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		for _, key := range searchedKeys {
			completeRecord(t, store, key, answer)
		}
		hour := time.Now().UTC().Add(-time.Hour).Format(time.RFC3339)
		for _, test := range []struct {
			flags      []string
			wantFound  []int // the places in searchedKeys
			needsNames bool  // which Redis does not store
		}{
			{nil, []int{0, 1, 2, 3}, false},
			{[]string{"--user", "alice"}, []int{0, 1, 2}, false},
			{[]string{"--user", "nobody"}, nil, false},
			{[]string{"--key", "order-1"}, []int{0, 1}, true},
			{[]string{"--key", `"order-3"`}, []int{3}, true},
			{[]string{"--endpoint", "POST /refunds"}, []int{1}, true},
			{[]string{"--user", "alice", "--endpoint", "POST /payments"}, []int{0, 2}, true},
			{[]string{"--since", hour}, []int{0, 1, 2, 3}, false},
			{[]string{"--since", "1h", "--user", "bob"}, []int{3}, false},
			{[]string{"--before", "1h"}, nil, false},
			{[]string{"--before", "2020-01-01"}, nil, false},
			{[]string{"--state", "running"}, nil, false},
		} {
			what := fmt.Sprint(test.flags)
			listed := b.run(t, append([]string{"list", "--json"}, test.flags...)...)
			exported := b.run(t, append([]string{"export"}, test.flags...)...)
			if test.needsNames && b.kind == "redis" {
				require.Equal(t, 2, listed.status, what)
				require.Contains(t, listed.stderr, "--operation", "the error says what finds the record")
				require.Equal(t, 2, exported.status, what)
				continue
			}
			require.Equal(t, len(test.wantFound) == 0, listed.status == 1, "%s: %s", what, listed.stderr)
			require.Equal(t, listed.status, exported.status, "%s: %s", what, exported.stderr)
			var wantOperations, listedOperations, exportedOperations []string
			for _, place := range test.wantFound {
				wantOperations = append(wantOperations, searchedKeys[place].OperationID().String())
			}
			var listing jsonListing
			require.NoError(t, json.Unmarshal([]byte(listed.stdout), &listing))
			for _, e := range listing.Entries {
				listedOperations = append(listedOperations, e.Operation)
			}
			for line := range strings.Lines(exported.stdout) {
				var e struct{ Operation string }
				require.NoError(t, json.Unmarshal([]byte(line), &e))
				exportedOperations = append(exportedOperations, e.Operation)
			}
			require.ElementsMatch(t, wantOperations, listedOperations, what)
			require.ElementsMatch(t, wantOperations, exportedOperations, what)
		}
	})
}

// inspectKey returns the entry of key.
func inspectKey(t testing.TB, b backend, key idempotency.Key) idempotency.Entry {
	entry, err := b.openStore(t).(idempotency.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	return entry
}

// If one record matches a part of its key, inspect shows the record. Of several, inspect shows where to choose.
func TestInspectSearches(t *testing.T) {
	t.Parallel()
	b := newSQLite(t)
	for _, key := range searchedKeys {
		completeRecord(t, b.openStore(t), key, answer)
	}
	got := b.run(t, "inspect", "--key", "order-3", "--body")
	require.Zero(t, got.status, got.stderr)
	require.Contains(t, got.stdout, searchedKeys[3].OperationID().String())
	require.Contains(t, got.stdout, "  | charged")
	got = b.run(t, "inspect", "--key", "order-1")
	require.Equal(t, 2, got.status)
	require.Contains(t, got.stderr, "choose one of them with --operation")
	for _, key := range searchedKeys[:2] {
		require.Contains(t, got.stdout, key.OperationID().String())
	}
	got = b.run(t, "inspect", "--key", "order-1", "--json")
	require.Equal(t, 2, got.status)
	require.Empty(t, got.stdout)
	got = b.run(t, "inspect", "--user", "nobody")
	require.Equal(t, 1, got.status)
	require.Contains(t, got.stdout, "No record of the store matches.")
	require.Contains(t, b.run(t, "inspect", "--user", "nobody", "--json").stdout, `"found": false`)
}

// The newest record is the first, unless another order is asked for.
func TestListOrder(t *testing.T) {
	t.Parallel()
	b := newSQLite(t)
	for _, key := range searchedKeys {
		completeRecord(t, b.openStore(t), key, answer)
	}
	first, last := inspectKey(t, b, searchedKeys[0]), inspectKey(t, b, searchedKeys[3])
	require.True(t, first.Created.Before(last.Created), "the statements take longer than the clock's resolution")
	for order, want := range map[string]idempotency.Key{"newest": searchedKeys[3], "oldest": searchedKeys[0]} {
		var listing jsonListing
		require.NoError(t, json.Unmarshal([]byte(b.run(t, "list", "--json", "--order", order).stdout), &listing))
		require.Equal(t, want.OperationID().String(), listing.Entries[0].Operation, order)
	}
	require.Contains(t, b.run(t, "list", "--order", "best").stderr, "must be one of")
	require.Contains(t, b.run(t, "list", "--since", "yesterday", "--before=-1h").stderr, "--since: want a time like")
}

// An export has pseudonyms, which are the same in the next export only with a secret, unless names are asked for.
func TestExportHasPseudonyms(t *testing.T) {
	t.Parallel()
	b := newSQLite(t)
	named := answer
	named.Note = "note of alice"
	completeRecord(t, b.openStore(t), keyOfAlice, named)
	exportWith := func(env []string, flags ...string) string {
		got := runProcess(t, append(env, b.environment...), append([]string{"export"}, flags...)...)
		require.Zero(t, got.status, got.stderr)
		require.Equal(t, "Records exported: 1. Records that cannot be read: 0.\n", got.stderr)
		return got.stdout
	}
	first := exportWith(nil)
	require.NotContains(t, first, "alice")
	require.NotContains(t, first, "payments")
	require.NotContains(t, first, "order-1")
	require.Regexp(t, `"user":"user-[0-9a-f]{32}","endpoint":"endpoint-[0-9a-f]{32}","key":"key-[0-9a-f]{32}"`, first)
	require.NotEqual(t, first, exportWith(nil), "each export has its own secret")
	secret := []string{"IDEMPOTENCY_EXPORT_SECRET=long and random"}
	var again, same struct{ User, Key string }
	require.NoError(t, json.Unmarshal([]byte(exportWith(secret)), &again))
	require.NoError(t, json.Unmarshal([]byte(exportWith(secret)), &same))
	require.Equal(t, again, same)
	plain := exportWith(nil, "--names")
	require.Contains(t, plain, `"user":"alice","endpoint":"POST /payments","key":"order-1"`)
	require.Contains(t, plain, "note of alice")
}

// Erase removes the records of one user after a confirmation, counts them and names nobody. A running record stays.
func TestErase(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		for _, key := range searchedKeys {
			completeRecord(t, store, key, answer)
		}
		running := claimKey(t, store, idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "running"}, claimRequest)
		require.Contains(t, b.run(t, "erase", "--user", "alice").stderr, "want --yes")
		require.Equal(t, 2, b.run(t, "erase", "--user", "", "--yes").status)
		status, said := runOnTerminal(t, b.environment, func(string) string { return "3" }, "erase", "--user", "alice")
		require.Equal(t, 4, status, said)
		require.Contains(t, said, "Records of the user: 4.")
		require.Contains(t, said, "not erased")
		status, said = runOnTerminal(t, b.environment, func(string) string { return "4" }, "erase", "--user", "alice")
		require.Equal(t, 4, status, said)
		require.Contains(t, said, "Erased: 3.")
		require.Contains(t, said, "1 records stay, because an attempt is running")
		require.NoError(t, running.Complete(t.Context(), answer, time.Hour))
		got := b.run(t, "erase", "--user", "alice", "--yes", "--json")
		require.Zero(t, got.status, got.stderr)
		require.Contains(t, got.stdout, `"erased": 1`)
		require.Regexp(t, `msg="idempotency: erased the records of a user" erased=1 running=0 unreadable=0 complete=true`, got.stderr)
		require.NotContains(t, got.stdout+got.stderr, "alice")
		require.Equal(t, 1, b.run(t, "erase", "--user", "alice", "--yes").status)
		require.Contains(t, b.run(t, "list").stdout, "\n", "the record of bob is left")
		require.Equal(t, 0, b.run(t, "list", "--user", "bob").status)
	})
}

// A scan on a terminal says that it reads the whole store. Ctrl-C ends the scan.
func TestScanIsStopped(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	cmd := newCommand(t.Context(), []string{"TERM=xterm", "REDIS_URL=redis://" + silent.Addr().String()}, "list", "--timeout", "10m")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 200})
	require.NoError(t, err)
	defer terminal.Close()
	var said []byte
	wasStopped := false
	for buffer := make([]byte, 4096); ; {
		n, err := terminal.Read(buffer)
		said = append(said, buffer[:n]...)
		if !wasStopped && bytes.Contains(said, []byte("The store reads all of its records. Ctrl-C ends that.")) {
			wasStopped = true
			_, err := terminal.WriteString("\x03")
			require.NoError(t, err)
		}
		if err != nil { // the program has ended
			break
		}
	}
	_ = cmd.Wait()
	require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%s", said)
	require.Contains(t, string(said), "interrupted: not all records were read")
}
