package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// newProxied returns a store that reaches its server through a proxy, and one that reaches it directly.
func newProxied(t *testing.T, opts mysqlstore.Options) (through, direct *world, proxy *servertest.Proxy) {
	t.Helper()
	m := server(t)
	proxy = servertest.NewProxy(t, m.Addr())
	direct = newWorldAt(t, m.DSN(), opts)
	copied := *direct
	through = &copied
	through.db = pool(t, m.DSNAt(proxy.Addr()))
	through.store = mysqlstore.NewTx(through.db, opts)
	return through, direct, proxy
}

// A commit whose outcome is unknown is looked up, and the handler's answer is given if and only if it has taken
// effect.
func TestConnectionIsLostAtTheCommit(t *testing.T) {
	t.Parallel()
	const commit, answer = "autocommit = 1", "UPDATE `records_"
	for _, test := range []struct {
		fault   servertest.Fault
		pattern string
		commits bool
	}{
		{servertest.LoseRequest, commit, false},
		{servertest.CutRequest, commit, false},
		{servertest.LoseReply, commit, true},
		{servertest.CutReply, commit, true},
		{servertest.HoldReply, commit, true},
		{servertest.LateRequest, commit, true}, // it arrives when the client has given up: the row is locked until then
		{servertest.LoseRequest, answer, false},
		{servertest.LoseReply, answer, false},
		{servertest.DelayRequest, commit, true},
		{servertest.DelayReply, commit, true},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			t.Parallel()
			w, direct, proxy := newProxied(t, newOptions())
			for i, status := range []int{http.StatusCreated, http.StatusConflict} {
				if test.pattern == answer && status == http.StatusConflict {
					continue // it is an INSERT
				}
				key := fmt.Sprint(i)
				h := w.handle(t, key)
				effect := h.effect(t)
				proxy.Inject(servertest.Rule{Fault: test.fault, Pattern: test.pattern})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				err := h.claim.Complete(ctx, idempotency.Response{Status: status}, time.Hour)
				cancel()
				require.Equal(t, 1, proxy.Strikes())
				made := 0
				if test.commits && status == http.StatusCreated {
					made = 1
				}
				direct.requireEffects(t, made, effect)
				if test.commits {
					require.NoError(t, err)
					require.Equal(t, status, requireStored(t, direct.store, key).Status)
					continue
				}
				require.ErrorIs(t, err, idempotency.ErrRolledBack)
				eventually(t, "the end of the session", func() bool {
					_, claim, err := direct.store.Begin(t.Context(), keyOf(key), request)
					require.NoError(t, err)
					return claim != nil && claim.Release(t.Context(), time.Hour) == nil
				})
			}
		})
	}
}

// A commit that is lost over a record that had expired was rolled back: nobody else has the key.
func TestCommitIsLostOverARecord(t *testing.T) {
	t.Parallel()
	w, direct, proxy := newProxied(t, newOptions())
	completed(t, direct.store, "key")
	execute(t, direct.db, "UPDATE "+w.table+" SET expires = 1")
	h := w.handle(t, "key")
	effect := h.effect(t)
	proxy.Inject(servertest.Rule{Fault: servertest.LoseRequest, Pattern: "autocommit = 1"})
	require.ErrorIs(t, h.answer(http.StatusCreated), idempotency.ErrRolledBack)
	direct.requireEffects(t, 0, effect)
}

// A provider that compares keys charges once, although the first attempt has called it and its commit was lost.
func TestChargeInFrontOfACommitThatIsLost(t *testing.T) {
	t.Parallel()
	w, direct, proxy := newProxied(t, newOptions())
	runner, err := idempotency.NewRunner(w.store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	effect, charges := uuid.NewString(), make(map[string]int)
	pay := func() error {
		_, _, err := runner.Do(t.Context(), keyOf("key"), nil, func(ctx context.Context) (idempotency.Response, error) {
			operation, _ := idempotency.FromContext(ctx)
			require.Equal(t, 1, operation.Attempt)
			charges[operation.DownstreamKey("charge")]++
			return answer, w.act(ctx, effect)
		})
		return err
	}
	proxy.Inject(servertest.Rule{Fault: servertest.LoseRequest, Pattern: "autocommit = 1"})
	require.ErrorIs(t, pay(), idempotency.ErrRolledBack)
	direct.requireEffects(t, 0, effect)
	require.Eventually(t, func() bool { // once the server has noticed that the session is gone
		err := pay()
		require.True(t, err == nil || errors.Is(err, idempotency.ErrInProgress), err)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	direct.requireEffects(t, 1, effect)
	key := idempotency.Operation{ID: keyOf("key").OperationID()}.DownstreamKey("charge")
	require.Equal(t, map[string]int{key: 2}, charges)
	require.NoError(t, runner.Shutdown(t.Context()))
}

// A connection that breaks while a key is claimed is replaced, and leaves nothing behind.
func TestConnectionIsLostAtTheClaim(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"SELECT @@autocommit", "SET autocommit = 0", "INSERT INTO"} {
		for _, fault := range []servertest.Fault{
			servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply, servertest.HoldReply,
		} {
			t.Run(fmt.Sprint(pattern, fault), func(t *testing.T) {
				t.Parallel()
				w, direct, proxy := newProxied(t, newOptions())
				completed(t, w.store, "warm")
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: pattern})
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				record, claim, err := w.store.Begin(ctx, keyOf("key"), request)
				require.NoError(t, err)
				require.Equal(t, 1, proxy.Strikes())
				require.NotNil(t, claim)
				require.Equal(t, 1, record.Attempt)
				require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
				requireReplay(t, direct.store, "key")
				require.Equal(t, 1, w.db.Stats().OpenConnections)
			})
		}
	}
}

// A claim that is begun anew may meet the lock of its own session that is lost. It waits for the server to notice.
func TestClaimMeetsItsOwnLock(t *testing.T) {
	t.Parallel()
	w, _, proxy := newProxied(t, newOptions())
	completed(t, w.store, "warm")
	proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "INSERT INTO"})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	claimed := make(chan idempotency.Claim, 1)
	go func() {
		_, claim, err := w.store.Begin(ctx, keyOf("key"), request)
		if err != nil {
			t.Error(err)
		}
		claimed <- claim
	}()
	eventually(t, "the loss", func() bool { return proxy.Strikes() == 1 })
	before := proxy.Flights()
	eventually(t, "more looks", func() bool { return proxy.Flights() > before+5 || len(claimed) > 0 })
	proxy.Release()
	claim := <-claimed
	require.NotNil(t, claim)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// A handler whose connection has broken is refused everything else, and so is its answer.
func TestConnectionIsLostUnderTheHandler(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusCreated, http.StatusConflict, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			w, direct, proxy := newProxied(t, newOptions())
			h := w.handle(t, "key")
			require.NoError(t, h.claim.Extend(t.Context(), time.Minute))
			effect := h.effect(t)
			proxy.Inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: "lost"})
			require.Error(t, h.run("INSERT INTO "+w.effects+" (name) VALUES ('lost')"))
			require.ErrorContains(t, h.run("INSERT INTO "+w.effects+" (name) VALUES ('later')"), "has ended")
			require.ErrorIs(t, h.claim.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
			require.ErrorIs(t, h.answer(status), idempotency.ErrRolledBack)
			direct.requireEffects(t, 0, effect, "lost", "later")
			require.Zero(t, w.db.Stats().InUse)
		})
	}
}

// A server that dies takes the transactions with it, and comes back with what was committed.
func TestServerCrashes(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1")
	w := newWorldAt(t, m.DSN(), newOptions())
	for i := range 8 {
		completed(t, w.store, fmt.Sprint(i))
	}
	h := w.handle(t, "key")
	effect := h.effect(t)
	idle := w.handle(t, "idle")
	require.NoError(t, m.Restart())
	require.ErrorIs(t, idle.claim.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
	require.ErrorIs(t, idle.answer(http.StatusCreated), idempotency.ErrRolledBack)
	require.ErrorIs(t, h.answer(http.StatusCreated), idempotency.ErrRolledBack)
	w.requireEffects(t, 0, effect)
	for i := range 8 {
		requireReplay(t, w.store, fmt.Sprint(i))
	}
	w.requireFree(t, "key")
	w.requireFree(t, "idle")
}

// The server ends a session that has fallen silent, and gives its key to others. A handler that takes longer keeps
// its own, because its store asks the server for it.
func TestIdleTimeoutFreesAKey(t *testing.T) {
	t.Parallel()
	opts := newOptions()
	opts.IdleTimeout = 2*time.Second - time.Millisecond // counts as two seconds
	w, direct, proxy := newProxied(t, opts)
	busy, silent := direct.handle(t, "busy"), w.handle(t, "silent")
	busyEffect, silentEffect := busy.effect(t), silent.effect(t)
	proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Times: 1000}) // the network is gone
	began := time.Now()
	eventually(t, "another attempt", func() bool {
		require.NoError(t, busy.claim.Extend(t.Context(), time.Minute))
		record, claim, err := direct.store.Begin(t.Context(), keyOf("silent"), request)
		require.NoError(t, err)
		if claim == nil {
			require.True(t, record.NoLease)
			return false
		}
		require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
		return true
	})
	require.Greater(t, time.Since(began), time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := silent.claim.Complete(ctx, answer, time.Hour)
	require.True(t, errors.Is(err, idempotency.ErrRolledBack) || errors.Is(err, idempotency.ErrClaimLost), "%v", err)
	require.NoError(t, busy.answer(http.StatusCreated))
	direct.requireEffects(t, 0, silentEffect)
	direct.requireEffects(t, 1, busyEffect)
}

// A commit that the server is slow to make is waited for, although its connection is gone: nobody says that it was
// rolled back as long as it may yet take effect.
func TestCommitIsLate(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	w := newWorldAt(t, m.DSN(), newOptions())
	h := w.handle(t, "key")
	effect := h.effect(t)
	blocker, err := w.other(t).Conn(t.Context())
	require.NoError(t, err)
	for _, stage := range []string{"START", "BLOCK_COMMIT"} {
		_, err := blocker.ExecContext(t.Context(), "BACKUP STAGE "+stage)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	completed := make(chan error, 1)
	go func() { completed <- h.claim.Complete(ctx, answer, time.Hour) }()
	requireStuck(t, w.other(t), "SELECT token")
	_, err = blocker.ExecContext(t.Context(), "BACKUP STAGE END")
	require.NoError(t, err)
	require.NoError(t, <-completed)
	require.NoError(t, blocker.Close())
	w.requireEffects(t, 1, effect)
	requireReplay(t, w.store, "key")
}
