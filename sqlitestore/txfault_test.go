package sqlitestore_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// Handlers take turns. One that gets none in time has done nothing, and the store is busy.
func TestHandlersTakeTurns(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	first, second, third := handle(t, store, "first"), handle(t, store, "second"), handle(t, store, "third")
	insert(t, first)
	hasty, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := second.tx.ExecContext(hasty, "INSERT INTO orders VALUES (2, '')")
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, second.answers(201), idempotency.ErrRolledBack)
	inserted := make(chan error)
	go func() { inserted <- third.does("INSERT INTO orders VALUES (3, '')") }()
	require.NoError(t, first.answers(201))
	require.NoError(t, <-inserted)
	require.NoError(t, third.answers(201))
	require.Equal(t, "1 3", orders(t, other))
}

// Another process that writes keeps a handler waiting for as long as its statement may.
func TestHandlerWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	hasty, patient := handle(t, store, "hasty"), handle(t, store, "patient")
	execute(t, other, "BEGIN IMMEDIATE")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := hasty.tx.ExecContext(ctx, "INSERT INTO orders VALUES (1, '')")
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.ErrorIs(t, hasty.answers(201), idempotency.ErrRolledBack)
	inserted := make(chan error)
	go func() { inserted <- patient.does("INSERT INTO orders VALUES (2, '')") }()
	execute(t, other, "COMMIT")
	require.NoError(t, <-inserted)
	require.NoError(t, patient.answers(201))
	require.Equal(t, "2", orders(t, other))
}

// Records of handlers that use no transaction share one.
func TestRecordsWithoutEffectsShareTransactions(t *testing.T) {
	t.Parallel()
	store, _ := openOrders(t, sqlitestore.Options{})
	const waiting = 64
	holder := handle(t, store, "holder")
	commits := 0
	require.NoError(t, store.OnCommit(func() int32 { commits++; return 0 }))
	insert(t, holder)
	answered := make(chan error, waiting)
	for i := range waiting {
		h := handle(t, store, strconv.Itoa(i))
		asks := make(chan struct{})
		go func() {
			close(asks)
			answered <- h.answers(404)
		}()
		<-asks
	}
	require.Empty(t, answered)
	require.NoError(t, holder.answers(201))
	for range waiting {
		assert.NoError(t, <-answered)
	}
	require.Less(t, commits, 1+waiting/4) // two, but for those who have only just asked
}

// If the disk does not answer in time, it is not known what comes of an operation. Where there are effects, nobody else
// runs it until that is known.
func TestStuckDiskOfATransaction(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 404} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			store, other := openOrders(t, sqlitestore.Options{})
			h := handle(t, store, "key")
			if status == 201 {
				insert(t, h)
			}
			stuck, proceed := make(chan struct{}), make(chan struct{})
			require.NoError(t, store.OnCommit(func() int32 {
				close(stuck)
				<-proceed
				return 0
			}))
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error)
			go func() { failed <- h.Complete(ctx, idempotency.Response{Status: status}, time.Hour) }()
			<-stuck
			cancel()
			err := <-failed
			require.ErrorIs(t, err, idempotency.ErrRolledBack)
			require.ErrorIs(t, err, context.Canceled)
			if status == 201 {
				record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
				require.NoError(t, err)
				require.Nil(t, claim)
				require.True(t, record.NoLease)
			}
			close(proceed)
			require.Eventually(t, func() bool {
				record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
				if claim != nil {
					assert.NoError(t, claim.Release(t.Context(), time.Hour))
				}
				return err == nil && record.Response != nil && record.Response.Status == status
			}, time.Minute, time.Millisecond)
			require.Equal(t, status == 201, orders(t, other) == "1")
		})
	}
}

// A commit that fails leaves nothing behind.
func TestFailedCommitOfEffects(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	for _, status := range []int{201, 404} {
		key := strconv.Itoa(status)
		h := handle(t, store, key)
		insert(t, h)
		require.NoError(t, store.OnCommit(func() int32 { return 1 }))
		require.ErrorIs(t, h.answers(status), idempotency.ErrRolledBack)
		require.NoError(t, store.OnCommit(nil))
		require.Empty(t, orders(t, other))
		requireFree(t, store, key)
	}
	requireWorks(t, store, other)
}

// A provider that compares keys charges once, although the first attempt has called it and its commit has failed.
func TestChargeInFrontOfACommitThatFails(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	charges := make(map[string]int)
	pay := func() error {
		_, _, err := runner.Do(t.Context(), keyOf("key"), nil, func(ctx context.Context) (idempotency.Response, error) {
			operation, _ := idempotency.FromContext(ctx)
			require.Equal(t, 1, operation.Attempt)
			charges[operation.DownstreamKey("charge")]++
			tx, _ := sqlitestore.Tx(ctx)
			_, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (7)")
			return answer, err
		})
		return err
	}
	require.NoError(t, store.OnCommit(func() int32 { return 1 }))
	require.ErrorIs(t, pay(), idempotency.ErrRolledBack)
	require.NoError(t, store.OnCommit(nil))
	require.NoError(t, pay())
	require.Equal(t, "7", orders(t, other))
	key := idempotency.Operation{ID: keyOf("key").OperationID()}.DownstreamKey("charge")
	require.Equal(t, map[string]int{key: 2}, charges)
	require.NoError(t, runner.Shutdown(t.Context()))
}

// On a full disk, a handler's effects are undone if there is no room for them, or for the answer. An answer without
// effects is kept without its body.
func TestFullDiskOfEffects(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	effects, large, idle := handle(t, store, "effects"), handle(t, store, "large"), handle(t, store, "idle")
	require.NoError(t, store.Execute("PRAGMA max_page_count = 1")) // no more than there are
	require.ErrorContains(t, effects.does("INSERT INTO orders VALUES (1, zeroblob(1000000))"), "full")
	require.ErrorIs(t, effects.answers(507), idempotency.ErrRolledBack)
	resp := answer
	resp.Body = bytes.Repeat([]byte("a"), 1<<20)
	insert(t, large)
	err := large.Complete(t.Context(), resp, time.Hour)
	require.ErrorIs(t, err, idempotency.ErrRolledBack)
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	requireOmitted(t, store, idle, "idle")
	require.Empty(t, orders(t, other))
	requireFree(t, store, "effects")
	requireWorks(t, store, other)
}

// Above MaxBytes, answers are not kept first. Then new operations are refused, until records expire.
func TestMaxBytesOfTransactions(t *testing.T) {
	t.Parallel()
	clock, path := newClock(), newPath(t)
	const limit = 2 << 20
	store := openTx(t, path, sqlitestore.Options{MaxBytes: limit, Synchronous: sqlitestore.Normal}.At(clock.now))
	execute(t, foreign(t, path), "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
	large := answer
	large.Body = bytes.Repeat([]byte("a"), limit*6/8)
	require.NoError(t, handle(t, store, "large").Complete(t.Context(), large, time.Hour))
	for i, key := range []string{"without effects", "with effects"} {
		h := handle(t, store, key)
		if i > 0 {
			insert(t, h)
		}
		require.NoError(t, h.Complete(t.Context(), large, time.Hour))
		record, _, err := store.Begin(t.Context(), keyOf(key), request)
		require.NoError(t, err)
		require.Equal(t, idempotency.Response{Status: 201, Omitted: true}, *record.Response)
	}
	err := error(nil)
	for i := 0; err == nil; i++ {
		err = complete(store, strconv.Itoa(i)+strings.Repeat("a", 2000))
	}
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	clock.step(2 * time.Hour)
	require.NoError(t, complete(store, "refused before"))
}

// A file that was deleted, or its log, is noticed before anything is acknowledged.
func TestFilesOfEffectsAreDeleted(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		t.Run("file"+suffix, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store, other := openTx(t, path, sqlitestore.Options{}), foreign(t, path)
			execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
			begins, marked, idle := handle(t, store, "begins"), handle(t, store, "marked"), handle(t, store, "idle")
			insert(t, begins)
			require.NoError(t, os.Remove(path+suffix))
			err := begins.answers(201)
			require.ErrorIs(t, err, idempotency.ErrRolledBack)
			require.ErrorIs(t, err, sqlitestore.ErrReplaced)
			require.ErrorIs(t, idle.answers(404), sqlitestore.ErrReplaced)
			require.ErrorIs(t, marked.does("CREATE TEMP TABLE items (id)"), sqlitestore.ErrReplaced)
			require.ErrorIs(t, store.Check(t.Context()), sqlitestore.ErrReplaced)
			require.NoError(t, os.WriteFile(path+suffix, nil, 0o600))
			require.ErrorIs(t, marked.answers(201), sqlitestore.ErrReplaced)
		})
	}
}

// Close waits for the transaction of a handler. Nothing begins any more.
func TestCloseWaitsForHandlers(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := foreign(t, path)
	execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
	store, err := sqlitestore.OpenTx(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	works, late, idle := handle(t, store, "works"), handle(t, store, "late"), handle(t, store, "idle")
	insert(t, works)
	closed := make(chan error, 1)
	go func() { closed <- store.Close() }()
	require.Eventually(t, func() bool {
		_, _, err := store.Begin(t.Context(), keyOf("new"), request)
		return err != nil
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, late.does("INSERT INTO orders VALUES (2, '')"), sqlitestore.ErrClosed)
	require.ErrorIs(t, late.answers(201), sqlitestore.ErrClosed)
	require.ErrorIs(t, idle.answers(404), idempotency.ErrRolledBack)
	works.must(t, "INSERT INTO orders VALUES (3, '')")
	require.Empty(t, closed)
	require.NoError(t, works.answers(201))
	require.NoError(t, <-closed)
	require.Equal(t, "1 3", orders(t, other))
}

// The key stays claimed when SQLite rolls back, and an answer that refuses the operation is stored.
func TestExtendOfATransaction(t *testing.T) {
	t.Parallel()
	store, _ := openOrders(t, sqlitestore.Options{})
	h := handle(t, store, "key")
	require.NoError(t, h.Extend(t.Context(), time.Minute))
	insert(t, h)
	require.NoError(t, h.Extend(t.Context(), time.Minute))
	require.Error(t, h.does("INSERT OR ROLLBACK INTO orders VALUES (1, '')"))
	require.NoError(t, h.Extend(t.Context(), time.Minute))
	require.NoError(t, h.answers(409))
	record, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.NoError(t, err)
	require.Equal(t, 409, record.Response.Status)
}

// Parameters are those of the driver, but for what the store needs.
func TestParameters(t *testing.T) {
	t.Parallel()
	for parameters, want := range map[string]string{
		"mode=ro":                            "mode is not for the handlers",
		"_journal_mode=OFF":                  "_journal_mode is not",
		"_pragma=synchronous(OFF)":           "synchronous(OFF) is not",
		"_pragma=wal_autocheckpoint(0)":      "wal_autocheckpoint(0) is not",
		"_pragma=+/**/Journal_mode%3DDELETE": "is not for the handlers",
		"_pragma=main.synchronous(0)":        "is not for the handlers",
		"_pragma=foreign_keys(1)%3Bselect+1": "is not for the handlers",
		"%zz":                                "invalid URL escape",
	} {
		_, err := sqlitestore.OpenTx(t.Context(), newPath(t), sqlitestore.Options{Parameters: parameters})
		require.ErrorContains(t, err, "sqlitestore: Parameters: ", parameters)
		require.ErrorContains(t, err, want, parameters)
	}
}
