package sqlitestore_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// Two processes may run the same operation. One of them commits; the effects of the other are undone, and it has lost
// its claim, whether or not its transaction has begun.
func TestTwoProcessesRunOneKey(t *testing.T) {
	t.Parallel()
	for name, loses := range map[string]func(t *testing.T, h *handler) error{
		"before its transaction": func(t *testing.T, h *handler) error {
			require.ErrorIs(t, h.does("INSERT INTO orders VALUES (2, '')"), idempotency.ErrClaimLost)
			return h.answers(201)
		},
		"without a transaction": func(_ *testing.T, h *handler) error { return h.answers(404) },
		"within a second": func(t *testing.T, h *handler) error {
			require.ErrorIs(t, h.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
			return h.answers(201)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store, other := openTx(t, path, sqlitestore.Options{}), foreign(t, path)
			execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
			h := handle(t, store, "key")
			require.Equal(t, "completed\n", process(t, path))
			require.ErrorIs(t, loses(t, h), idempotency.ErrClaimLost)
			require.Equal(t, "1", orders(t, other))
			requireReplay(t, store, "key")
			requireWorks(t, store, other)
		})
	}
}

// While a transaction of this process goes on, that of another one waits, and finds that it was late.
func TestTwoProcessesWrite(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store, other := openTx(t, path, sqlitestore.Options{}), foreign(t, path)
	execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
	h := handle(t, store, "key")
	h.must(t, "INSERT INTO orders VALUES (2, 'tea')")
	said := make(chan string)
	go func() { said <- process(t, path) }()
	require.Eventually(t, func() bool {
		_, err := os.Stat(path + begins)
		return err == nil
	}, time.Minute, time.Millisecond)
	select {
	case <-said:
		t.Fatal("two processes write at once")
	case <-time.After(100 * time.Millisecond): // it would take much less
	}
	require.NoError(t, h.answers(201))
	require.Contains(t, []string{"lost\n", "replayed\n"}, <-said)
	require.Equal(t, "2", orders(t, other))
}

const (
	onePath = "SQLITESTORE_ONE"
	begins  = ".begins" // the end of the name of a file: the process is about to begin its transaction
)

// process executes an operation in another process, and returns what it says of that.
func process(t *testing.T, path string) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), onePath+"="+path), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		t.Error(err)
	}
	return string(output)
}

// executeOne is that process.
func executeOne(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	store, err := sqlitestore.OpenTx(context.Background(), path, sqlitestore.Options{})
	fail(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, claim, err := store.Begin(ctx, keyOf("key"), request)
	fail(err)
	if claim == nil {
		fmt.Println("replayed")
		return
	}
	ctx = claim.Context(ctx)
	tx, _ := sqlitestore.Tx(ctx)
	fail(os.WriteFile(path+begins, nil, 0o600))
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (1, '')"); err != nil {
		fmt.Println("lost")
		return
	}
	fail(claim.Complete(ctx, answer, time.Hour))
	fmt.Println("completed")
}

// The two kinds of stores may share a file, also while both are in use: each respects the records of the other one.
func TestBothKinds(t *testing.T) {
	t.Parallel()
	clock, path := newClock(), newPath(t)
	leased := open(t, path, sqlitestore.Options{}.At(clock.now))
	store, other := openTx(t, path, sqlitestore.Options{}.At(clock.now)), foreign(t, path)
	execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")

	running, lease := begun(t, leased, "key")
	record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.WithinDuration(t, running.Created, record.Created, 0)
	require.Equal(t, request.Lease, record.LeaseLeft)

	require.NoError(t, lease.Release(t.Context(), time.Hour)) // the operation goes on
	record, claim = begun(t, store, "key")
	require.Equal(t, 2, record.Attempt)
	require.True(t, record.Created.Equal(running.Created))
	require.True(t, record.NoLease)
	h := handlerOf(t, claim)
	insert(t, h)
	require.NoError(t, h.answers(201))
	requireReplay(t, leased, "key")
	require.Equal(t, 2, one[int](t, other, "SELECT attempt FROM idempotency_records"))
	require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), idempotency.ErrClaimLost)

	otherwise := request
	otherwise.Fingerprint = idempotency.Fingerprint{9}
	_, claim = begun(t, leased, "released")
	require.NoError(t, claim.Release(t.Context(), time.Hour))
	_, claim, err = store.Begin(t.Context(), keyOf("released"), otherwise)
	require.NoError(t, err)
	require.Nil(t, claim) // it is another request's
}

// A lease that is claimed, or renewed, while a handler runs without a transaction so far has the key.
func TestLeaseIsFaster(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, meanwhile func(t *testing.T, leased *sqlitestore.Store, clock *clock)
	}{
		"claimed": {
			func(*testing.T, *sqlitestore.Store, *clock) {},
			func(t *testing.T, leased *sqlitestore.Store, _ *clock) { begun(t, leased, "key") },
		},
		"claimed and released": {
			func(*testing.T, *sqlitestore.Store, *clock) {},
			func(t *testing.T, leased *sqlitestore.Store, _ *clock) {
				_, claim := begun(t, leased, "key")
				require.NoError(t, claim.Release(t.Context(), time.Hour))
			},
		},
		"taken over": {
			func(t *testing.T, leased *sqlitestore.Store, clock *clock) {
				begun(t, leased, "key")
				clock.step(2 * request.Lease)
			},
			func(t *testing.T, leased *sqlitestore.Store, _ *clock) {
				_, claim, err := leased.Begin(t.Context(), keyOf("key"), takeover)
				require.NoError(t, err)
				require.NotNil(t, claim)
			},
		},
	} {
		for _, status := range []int{201, 409} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				clock, path := newClock(), newPath(t)
				leased := open(t, path, sqlitestore.Options{}.At(clock.now))
				store, other := openTx(t, path, sqlitestore.Options{}.At(clock.now)), foreign(t, path)
				execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
				tt.before(t, leased, clock)
				_, claim, err := store.Begin(t.Context(), keyOf("key"), takeover)
				require.NoError(t, err)
				require.NotNil(t, claim)
				tt.meanwhile(t, leased, clock)
				h := handlerOf(t, claim)
				if status == 201 {
					require.ErrorIs(t, h.does("INSERT INTO orders VALUES (1, '')"), idempotency.ErrClaimLost)
				}
				require.ErrorIs(t, h.answers(status), idempotency.ErrClaimLost)
				require.Empty(t, orders(t, other))
				requireWorks(t, store, other)
			})
		}
	}
}

// What was acknowledged is there when the file is opened again, and nothing else.
func TestTransactionsSurviveRestart(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := foreign(t, path)
	execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
	store, err := sqlitestore.OpenTx(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	h := handle(t, store, "completed")
	insert(t, h)
	require.NoError(t, h.answers(201))
	begun(t, store, "running")
	require.NoError(t, store.Close())
	store = openTx(t, path, sqlitestore.Options{})
	requireReplay(t, store, "completed")
	requireFree(t, store, "running")
	require.Equal(t, "1", orders(t, other))
}
