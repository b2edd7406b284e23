package sqlitestore_test

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Calls that wait for the writer share one transaction, and return when this transaction has committed.
func TestStepsShareTransactions(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	const waiting = 64
	var settle []idempotency.Claim
	for i := range waiting {
		_, claim := claimKey(t, store, strconv.Itoa(i))
		settle = append(settle, claim)
	}
	var commits, asked, answered atomic.Int64
	committing, proceed := make(chan struct{}), make(chan struct{})
	require.NoError(t, store.OnCommit(func() int32 {
		if commits.Add(1) == 1 {
			close(committing)
			<-proceed
		}
		return 0
	}))
	var callers sync.WaitGroup
	for i, claim := range settle {
		if i == 1 {
			<-committing
		}
		callers.Go(func() {
			asked.Add(1)
			assert.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			answered.Add(1)
		})
	}
	require.Eventually(t, func() bool { return asked.Load() == waiting }, time.Minute, time.Millisecond)
	require.Zero(t, answered.Load())
	close(proceed)
	callers.Wait()
	require.Less(t, commits.Load(), int64(waiting/4)) // two, and a few more for calls that reach the writer late
}

// A call returns when its context ends, even if the writer still commits the change.
func TestContextEndsDuringTheCommit(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	_, claim := claimKey(t, store, "key")
	proceed := make(chan struct{})
	require.NoError(t, store.OnCommit(func() int32 {
		<-proceed
		return 0
	}))
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return claim.Extend(ctx, time.Hour) },
		func(ctx context.Context) error { return claim.Complete(ctx, answer, time.Hour) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.ErrorIs(t, step(ctx), context.DeadlineExceeded)
		cancel()
	}
	close(proceed)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "key")
}

// A failed statement undoes only its own change, whatever SQLite does with the transaction.
func TestFailedStatementUndoesOnlyItself(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"ABORT", "FAIL", "ROLLBACK"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			store := openStore(t, newPath(t), sqlitestore.Options{})
			require.NoError(t, store.ExecOnWriter(`CREATE TRIGGER refuse BEFORE INSERT ON idempotency_records
				WHEN NEW.key LIKE 'refused%' BEGIN SELECT RAISE(`+how+`, 'refused by a trigger'); END`))
			var claims sync.WaitGroup
			for i := range 64 {
				claims.Go(func() {
					if i%8 > 0 {
						assert.NoError(t, tryComplete(store, strconv.Itoa(i)))
						return
					}
					_, _, err := store.Begin(t.Context(), keyOf("refused "+strconv.Itoa(i)), request)
					assert.ErrorContains(t, err, "refused by a trigger")
				})
			}
			claims.Wait()
			for i := range 64 {
				if i%8 > 0 {
					requireReplay(t, store, strconv.Itoa(i))
				}
			}
		})
	}
}

// A failed commit leaves no change behind.
func TestFailedCommit(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	_, settled := claimKey(t, store, "claimed")
	require.NoError(t, store.OnCommit(func() int32 { return 1 }))
	_, _, err := store.Begin(t.Context(), keyOf("refused"), request)
	require.ErrorContains(t, err, "sqlitestore: claim: ")
	require.Error(t, testservice.InDoubt(err).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	require.ErrorContains(t, settled.Complete(t.Context(), answer, time.Hour), "sqlitestore: complete: ")
	require.ErrorContains(t, settled.Extend(t.Context(), time.Hour), "sqlitestore: extend: ")
	require.NoError(t, store.OnCommit(nil))
	requireFree(t, store, "refused")
	require.NoError(t, settled.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "claimed")
}

// While another process writes, answers are replayed. Claims wait until their contexts end, and then report that the
// store is busy.
func TestAnotherProcessWrites(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	completeKey(t, store, "completed")
	_, claim := claimKey(t, store, "claimed")
	other := openConn(t, path)
	execStatement(t, other, "BEGIN IMMEDIATE")
	requireReplay(t, store, "completed")
	hasty, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err := store.Begin(hasty, keyOf("new"), request)
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	finished := make(chan error)
	go func() { finished <- claim.Complete(context.Background(), answer, time.Hour) }()
	select {
	case err := <-finished:
		t.Fatal("completed while another process writes: ", err)
	case <-hasty.Done():
	}
	execStatement(t, other, "COMMIT")
	require.NoError(t, <-finished)
	requireFree(t, store, "new")
}

// If the disk does not answer, the store reports a failure instead of ErrStoreBusy, so FailOpen can help. Meanwhile,
// answers are replayed.
func TestStuckDisk(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	completeKey(t, store, "completed")
	stuck, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	require.NoError(t, store.OnCommit(func() int32 {
		once.Do(func() { close(stuck) })
		<-proceed
		return 0
	}))
	hasty, cancel := context.WithCancel(t.Context())
	type result struct {
		claim idempotency.Claim
		err   error
	}
	results := make(chan result)
	begin := func(key string) {
		_, _, err := store.Begin(hasty, keyOf(key), request)
		results <- result{testservice.InDoubt(err), err}
	}
	go begin("committing")
	<-stuck
	requireReplay(t, store, "completed")
	cancel()
	first := <-results
	require.ErrorIs(t, first.err, context.Canceled)
	require.NotErrorIs(t, first.err, idempotency.ErrStoreBusy)

	hasty, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	go begin("waiting")
	second := <-results
	require.ErrorIs(t, second.err, context.DeadlineExceeded)
	require.NotErrorIs(t, second.err, idempotency.ErrStoreBusy)
	require.Nil(t, second.claim)

	close(proceed)
	require.NoError(t, first.claim.Release(t.Context(), idempotency.Release{TTL: time.Hour})) // the claim was granted
	requireFree(t, store, "waiting")
}

// The writer may still work on a completion when the caller has returned. The race detector checks that the writer
// and the caller share no unguarded memory.
func TestStuckDiskOutlastsTheCompletion(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	_, claim := claimKey(t, store, "key")
	stuck, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	require.NoError(t, store.OnCommit(func() int32 {
		once.Do(func() { close(stuck) })
		<-proceed
		return 0
	}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a cancel after stuck would synchronize the writer and the caller
	defer cancel()
	require.ErrorIs(t, claim.Complete(ctx, answer, time.Hour), context.DeadlineExceeded)
	<-stuck
	close(proceed)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "key")
}

// A full disk refuses new operations. Running operations end, if necessary without their answer: the page with the
// record has room for this, because another record in the page has expired.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := openStore(t, newPath(t), sqlitestore.Options{}.WithClock(clock.now))
	_, claim := claimKey(t, store, "claimed")
	_, brief := claimKey(t, store, "brief")
	require.NoError(t, brief.Release(t.Context(), idempotency.Release{TTL: time.Millisecond}))
	for i := range 100 { // fills other pages
		claimKey(t, store, "other "+strconv.Itoa(i))
	}
	clock.advance(time.Second)
	require.NoError(t, store.ExecOnWriter("PRAGMA max_page_count = 1")) // the file cannot grow
	var err error
	for i := 0; err == nil; i++ {
		_, _, err = store.Begin(t.Context(), keyOf(strconv.Itoa(i)), request)
	}
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	requireOmitted(t, store, claim, "claimed")
}

// requireOmitted completes an operation with an answer that is too large for the store, and requires that the stored
// answer is marked as omitted.
func requireOmitted(t *testing.T, store idempotency.Store, claim idempotency.Claim, key string) {
	t.Helper()
	large := answer
	large.Body = bytes.Repeat([]byte("a"), 1<<20)
	require.NoError(t, claim.Complete(t.Context(), large, time.Hour))
	record, _, err := store.Begin(t.Context(), keyOf(key), request)
	require.NoError(t, err)
	require.Equal(t, idempotency.Response{Status: 201, Omitted: true}, *record.Response)
}

// A file close to MaxBytes first omits the bodies of answers. Then the store refuses new operations until records
// expire.
func TestMaxBytes(t *testing.T) {
	t.Parallel()
	clock, path := newClock(), newPath(t)
	const limit = 2 << 20
	store := openStore(t, path, sqlitestore.Options{MaxBytes: limit, Synchronous: sqlitestore.Normal}.WithClock(clock.now))
	_, claim := claimKey(t, store, "large")
	large := answer
	large.Body = bytes.Repeat([]byte("a"), limit*6/8)
	require.NoError(t, claim.Complete(t.Context(), large, time.Hour))
	_, claim = claimKey(t, store, "larger")
	requireOmitted(t, store, claim, "larger")
	var last idempotency.Claim
	err := error(nil)
	for i := 0; err == nil; i++ {
		_, claim, err = store.Begin(t.Context(), keyOf(strconv.Itoa(i)), request)
		if err == nil {
			last = claim
		}
	}
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	require.NoError(t, last.Complete(t.Context(), answer, time.Hour)) // the body is omitted
	size := queryValue[int64](t, openConn(t, path), "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
	require.Less(t, size, int64(limit))
	clock.advance(2 * time.Hour)
	claimKey(t, store, "refused before")
}

// The store notices that the file or its log was deleted before a call is acknowledged.
func TestFilesAreDeleted(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		t.Run("file"+suffix, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := openStore(t, path, sqlitestore.Options{})
			_, claim := claimKey(t, store, "claimed")
			require.NoError(t, os.Remove(path+suffix))
			_, _, err := store.Begin(t.Context(), keyOf("new"), request)
			require.ErrorIs(t, err, sqlitestore.ErrReplaced)
			require.ErrorIs(t, claim.Complete(t.Context(), answer, time.Hour), sqlitestore.ErrReplaced)
			require.ErrorIs(t, store.Check(t.Context()), sqlitestore.ErrReplaced)
			require.NoError(t, os.WriteFile(path+suffix, nil, 0o600))
			require.ErrorIs(t, claim.Extend(t.Context(), time.Hour), sqlitestore.ErrReplaced)
		})
	}
}

// If the file cannot be written, the store still replays the answers in the file.
func TestReadOnlyFile(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	completeKey(t, store, "completed")
	_, running := claimKey(t, store, "running")
	require.NoError(t, store.ExecOnWriter("PRAGMA query_only = 1"))
	_, _, err := store.Begin(t.Context(), keyOf("new"), request)
	require.ErrorContains(t, err, "readonly")
	require.ErrorContains(t, running.Complete(t.Context(), answer, time.Hour), "readonly")
	requireReplay(t, store, "completed")
}

// A store on a damaged file grants no claim.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	for i := range 100 {
		completeKey(t, store, strconv.Itoa(i))
	}
	require.NoError(t, store.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for page := 4096; page < len(whole); page += 4096 {
		copy(whole[page:], bytes.Repeat([]byte{0xA5}, 512))
	}
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	store = openStore(t, path, sqlitestore.Options{})
	for i := range 120 {
		_, _, err := store.Begin(t.Context(), keyOf(strconv.Itoa(i)), request)
		require.ErrorContains(t, err, "malformed")
	}
}
