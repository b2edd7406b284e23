package killtest_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// child is the environment variable with the task of a process of these tests.
const child = "KILLTEST_CHILD"

func TestMain(m *testing.M) {
	switch what, effects, _ := strings.Cut(os.Getenv(child), " "); what {
	case "alone":
		killtest.RunProcess(func() (killtest.Work, error) {
			return killtest.Execute(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), effects)
		})
	case "same":
		killtest.RunProcess(func() (killtest.Work, error) {
			return func(key idempotency.Key) error {
				killtest.SayAnswered(key, []byte("answer"))
				time.Sleep(time.Millisecond)
				return nil
			}, nil
		})
	case "fails":
		killtest.RunProcess(func() (killtest.Work, error) { return nil, errors.New("first\nsecond") })
	case "ends":
		os.Exit(3)
	default:
		goleak.VerifyTestMain(m)
	}
}

// Each process has a store of its own, so the processes give different answers to a key, and execute acknowledged
// operations again. Even so, the provider charges once.
func TestStoresThatAreNotShared(t *testing.T) {
	t.Parallel()
	effects := filepath.Join(t.TempDir(), "effects")
	said, provider := killtest.NewOperations(), killtest.NewProvider(t)
	env := []string{child + "=alone " + effects, provider.Env()}
	var err error
	for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end); { // a round may end before any process works
		err = killtest.KillAll(3, said, env...)
	}
	require.ErrorContains(t, err, "has two answers")
	require.NoError(t, provider.Explain(said.Acknowledged()...))
	operations, calls, charges := provider.Counts()
	require.Equal(t, operations, charges)
	require.Less(t, charges, calls)

	_, err = said.Explain(t.Context(), idempotency.NewMemoryStore(idempotency.MemoryOptions{}), effects)
	require.ErrorContains(t, err, "was acknowledged and repeated")
	require.ErrorContains(t, err, "its record is lost")
}

func TestFaultsOfProcesses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, child, fault string }{
		{"cannot start", "fails", "a process has said: failed first second"},
		{"ends by itself", "ends", "a process has ended by itself: exit status 3"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := killtest.NewTransfers(t).Kill(1, child+"="+test.child)
			require.ErrorContains(t, err, test.fault)
		})
	}
}

// KillAll starts more processes than asked for until an operation is acknowledged.
func TestMoreProcessesUntilAnAnswer(t *testing.T) {
	t.Parallel()
	said := killtest.NewTransfers(t)
	require.NoError(t, said.Kill(0, child+"=same"))
	require.NotEmpty(t, said.Acknowledged())
}

func TestUnknownLines(t *testing.T) {
	t.Parallel()
	lines := []string{"", "answered", "answered key", "answered key a b", "ended", "lost", "overtaken", "panic: x y"}
	for _, line := range lines {
		for _, said := range []killtest.Witness{killtest.NewOperations(), killtest.NewTransfers(t)} {
			require.EqualError(t, said.RecordLine(line+"\n"), "a process has said: "+line)
		}
	}
}

func TestOperationsAreExplained(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		lines    string // separated by commas
		effects  string // separated by spaces
		repeated int
		fault    string // empty: no fault
	}{
		{"once", "ended 0/a/1,answered a A", "0/a/1", 0, ""},
		{"again after a death", "ended 1/a/2,answered a A", "0/a/1 1/a/2", 1, ""},
		{"again after a loss", "lost 9/a/1,ended 1/a/2,answered a A", "9/a/1 1/a/2", 0, ""},
		{"nobody has heard of b", "answered a A", "0/a/1 0/b/1", 0, ""},
		{"again without a cause", "answered a A", "9/a/1 1/a/2", 1,
			"9/a/1 was repeated without a cause: [9/a/1 1/a/2]"},
		{"again after its end", "ended 0/a/1,answered a A", "0/a/1 1/a/2", 1,
			"0/a/1 was acknowledged and repeated: [0/a/1 1/a/2]"},
		{"not executed", "answered a A", "0/b/1", 0, "a was answered and not executed"},
		{"another answer", "answered a B", "0/a/1", 0, "a has the answer A in the store, and not B"},
		{"forgotten", "answered c C", "0/c/1", 0, "c is claimed again: its record is lost"},
		{"runs", "answered running C", "0/running/1", 0, "running has no answer in the store"},
		{"nothing", "ended 0/a/1", "0/a/1", 0, "no process has acknowledged anything"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			said := killtest.NewOperations()
			for line := range strings.SplitSeq(test.lines, ",") {
				require.NoError(t, said.RecordLine(line+"\n"))
			}
			said.RecordKill("0")
			said.RecordKill("1")
			effects := filepath.Join(t.TempDir(), "effects")
			text := strings.ReplaceAll(test.effects, " ", "\n") + "\n"
			require.NoError(t, os.WriteFile(effects, []byte(text), 0o600))
			repeated, err := said.Explain(t.Context(), newStore(t), effects)
			requireFault(t, err, test.fault)
			require.Equal(t, test.repeated, repeated)
		})
	}
}

// Explain fails without the file of the effects.
func TestMissingEffects(t *testing.T) {
	t.Parallel()
	said := killtest.NewOperations()
	_, err := said.Explain(t.Context(), newStore(t), filepath.Join(t.TempDir(), "effects"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRowsAreCompared(t *testing.T) {
	t.Parallel()
	row := func(operation, receipt, entry string, amount int) killtest.Row {
		return killtest.Row{Operation: operation, Receipt: receipt, Entry: entry, Amount: amount}
	}
	out, in := row("a", "R", "E", -5), row("a", "R", "E", 5)
	tests := []struct {
		name  string
		rows  []killtest.Row
		fault string // empty: the rows are right
	}{
		{"once", []killtest.Row{out, in}, ""},
		{"lost", nil, "a was answered and has no rows"},
		{"twice", []killtest.Row{out, in, out, in}, "a has 4 rows, whose sum is 0"},
		{"in part", []killtest.Row{out}, "a has 1 rows, whose sum is -5"},
		{"by an attempt that was undone", []killtest.Row{out, row("a", "R", "X", 5)},
			"a has the answer R-E, and a row with R-X"},
		{"with the receipt of another charge", []killtest.Row{out, row("a", "X", "E", 5)},
			"a has the answer R-E, and a row with X-E"},
		{"of an operation that has no answer", []killtest.Row{out, in, row("b", "R", "E", 5)}, "b has rows and no answer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			said := killtest.NewTransfers(t)
			require.NoError(t, said.RecordLine("answered a R-E\n"))
			requireFault(t, said.Compare(test.rows), test.fault)
		})
	}
}

func TestChargesAreExplained(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		calls string // operation and key of each call
		count string
		fault string // empty: no fault
	}{
		{"once", "a A", "1 calls of the provider for 1 operations: 1 charges", ""},
		{"again", "a A,a A", "2 calls of the provider for 1 operations: 1 charges", ""},
		{"another key", "a A,a B", "2 calls of the provider for 1 operations: 2 charges",
			"a was charged 2 times, with the keys [A B]"},
		{"one that nobody was told", "a A,b B,b B", "3 calls of the provider for 2 operations: 2 charges", ""},
		{"not at all", "b B", "1 calls of the provider for 1 operations: 1 charges", "a was answered and not charged"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			provider := killtest.NewProvider(t)
			for call := range strings.SplitSeq(test.calls, ",") {
				operation, key, _ := strings.Cut(call, " ")
				require.Equal(t, http.StatusOK, charge(t, provider, operation, key))
			}
			requireFault(t, provider.Explain("a"), test.fault)
			require.Equal(t, test.count, provider.String())
		})
	}
	provider := killtest.NewProvider(t)
	require.Equal(t, http.StatusOK, charge(t, provider, "a", "A"))
	require.Equal(t, http.StatusUnprocessableEntity, charge(t, provider, "b", "A"), "the key of another operation")
}

// charge calls the provider with a key, and returns the status of its answer.
func charge(t *testing.T, provider *killtest.Provider, operation, key string) int {
	t.Helper()
	_, url, _ := strings.Cut(provider.Env(), "=")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(operation))
	require.NoError(t, err)
	r.Close = true
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// newStore returns a store in which key a has the answer A, key b has the answer B, and an attempt of key running is
// running.
func newStore(t *testing.T) idempotency.Store {
	t.Helper()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	request := idempotency.ClaimRequest{Fingerprint: killtest.Request.Fingerprint, Lease: time.Hour, TTL: time.Hour}
	for id, answer := range map[string]string{"a": "A", "b": "B", "running": ""} {
		key := idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
		_, claim, err := store.Begin(t.Context(), key, request)
		require.NoError(t, err)
		if answer != "" {
			resp := idempotency.Response{Status: 201, Body: []byte(answer)}
			require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
		}
	}
	return store
}

func requireFault(t *testing.T, err error, fault string) {
	t.Helper()
	if fault == "" {
		require.NoError(t, err)
		return
	}
	require.EqualError(t, err, fault)
}
