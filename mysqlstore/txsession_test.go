package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// A connection goes back to the pool as it came, whatever became of the claim.
func TestConnectionGoesBackClean(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "wait_timeout=77", "multiStatements=true")
	w.db.SetMaxOpenConns(1)
	execute(t, w.db, "CREATE PROCEDURE "+w.table+"_p() ALTER TABLE "+w.effects+" COMMENT 'changed'")
	id := one[int](t, w.db, "SELECT CONNECTION_ID()")
	observer := w.other(t)
	requireClean := func(t *testing.T) {
		t.Helper()
		require.Equal(t, id, one[int](t, w.db, "SELECT CONNECTION_ID()"), "the connection was closed")
		require.Equal(t, 1, one[int](t, w.db, "SELECT @@autocommit"))
		require.Equal(t, 77, one[int](t, w.db, "SELECT @@wait_timeout"))
		require.Equal(t, 0, one[int](t, w.db, "SELECT @@in_transaction"))
		require.Zero(t, one[int](t, observer, `SELECT COUNT(*) FROM information_schema.METADATA_LOCK_INFO
			WHERE LOCK_TYPE = 'User lock' AND THREAD_ID = ?`, id))
	}
	execute(t, observer, "INSTALL SONAME 'metadata_lock_info'")
	t.Cleanup(func() { execute(t, pool(t, w.dsn), "UNINSTALL SONAME 'metadata_lock_info'") })
	h := w.handle(t, "probe")
	require.Equal(t, 1, one[int](t, observer, `SELECT COUNT(*) FROM information_schema.METADATA_LOCK_INFO
		WHERE LOCK_TYPE = 'User lock' AND THREAD_ID = ?`, id), "the lock is not seen")
	h.release(t)
	for _, test := range []struct {
		name string
		do   func(t *testing.T, h *handling)
	}{
		{"success", func(t *testing.T, h *handling) { require.NoError(t, h.answer(201)) }},
		{"refusal", func(t *testing.T, h *handling) { require.NoError(t, h.answer(409)) }},
		{"release", func(t *testing.T, h *handling) { h.release(t) }},
		{"rollback", func(t *testing.T, h *handling) {
			require.NoError(t, h.tx.Rollback())
			require.NoError(t, h.answer(409))
		}},
		{"rollback and success", func(t *testing.T, h *handling) {
			require.NoError(t, h.tx.Rollback())
			require.ErrorIs(t, h.answer(201), idempotency.ErrRolledBack)
		}},
		{"kept effects", func(t *testing.T, h *handling) {
			require.True(t, mysqlstore.KeepEffects(h.ctx))
			require.NoError(t, h.answer(409))
		}},
		{"hidden commit", func(t *testing.T, h *handling) {
			h.exec(t, "CALL "+w.table+"_p()")
			require.NoError(t, h.answer(201))
		}},
		{"hidden commit and refusal", func(t *testing.T, h *handling) {
			h.exec(t, "CALL "+w.table+"_p()")
			require.ErrorIs(t, h.answer(409), idempotency.ErrRolledBack)
		}},
		{"lock of the handler's own", func(t *testing.T, h *handling) {
			h.exec(t, "DO GET_LOCK('mine', 0), RELEASE_LOCK('mine')")
			require.NoError(t, h.answer(201))
		}},
		{"locks released", func(t *testing.T, h *handling) {
			h.exec(t, "DO RELEASE_ALL_LOCKS()")
			require.NoError(t, h.answer(201))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := w.handle(t, test.name)
			h.effect(t)
			test.do(t, h)
			requireClean(t)
		})
	}
	requireStored(t, w.store, "success") // a replay
	requireClean(t)
	execute(t, observer, "UPDATE "+w.table+" SET endpoint = 'another'")
	_, _, err := w.store.Begin(t.Context(), keyOf("success"), request)
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	requireClean(t)
	_, claim := begun(t, mysqlstore.NewTx(observer, mysqlstore.Options{Table: w.table}), "held")
	_, none, err := w.store.Begin(t.Context(), keyOf("held"), request)
	require.NoError(t, err)
	require.Nil(t, none)
	requireClean(t)
	require.NoError(t, claim.Release(t.Context(), time.Hour))
}

// A transaction that somebody still uses when the handler returns is not committed, and its connection is closed.
func TestTransactionInUseIsNotCommitted(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, h *handling) (end func()){
		"rows are open": func(t *testing.T, h *handling) func() {
			rows, err := h.tx.QueryContext(h.ctx, "SELECT seq FROM seq_1_to_1000000")
			require.NoError(t, err)
			require.True(t, rows.Next())
			require.ErrorContains(t, h.run("DO 1"), "in use")
			return func() { _ = rows.Close(); require.Error(t, rows.Err()) }
		},
		"a goroutine is left behind": func(t *testing.T, h *handling) func() {
			ended := make(chan error)
			go func() {
				// It goes on in the server when its connection is closed, so it does not compute.
				_, err := h.tx.ExecContext(context.Background(), "SELECT SLEEP(3600)")
				ended <- err
			}()
			requireStuck(t, h.w.other(t), "SLEEP(3600)")
			return func() { require.Error(t, <-ended) }
		},
	} {
		for _, how := range []string{"complete", "release"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.db.SetMaxOpenConns(1)
				h := w.handle(t, "key")
				effect := h.effect(t)
				end := use(t, h)
				began := time.Now()
				if how == "release" {
					h.release(t)
				} else {
					require.ErrorIs(t, h.answer(http.StatusCreated), idempotency.ErrRolledBack)
				}
				require.Less(t, time.Since(began), 5*time.Second)
				end()
				require.Zero(t, w.db.Stats().OpenConnections)
				w.requireEffects(t, 0, effect)
			})
		}
	}
}

// A statement that comes when the handler has returned meets nobody else's transaction.
func TestLateStatementIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.SetMaxOpenConns(1)
	h := w.handle(t, "key")
	prepared, err := h.tx.PrepareContext(h.ctx, "INSERT INTO "+w.effects+" (name) VALUES (?)")
	require.NoError(t, err)
	_, err = prepared.Exec("first")
	require.NoError(t, err)
	require.NoError(t, h.answer(http.StatusCreated))
	next := w.handle(t, "next")
	require.ErrorIs(t, h.run("INSERT INTO "+w.effects+" (name) VALUES ('late')"), sql.ErrTxDone)
	_, err = prepared.Exec("late")
	require.Error(t, err)
	require.NoError(t, next.answer(http.StatusCreated))
	w.requireEffects(t, 0, "late")
	w.requireEffects(t, 1, "first")
}

// Requests that wait for an operation hold no connection, so that a pool of one is enough, and serves one after the
// other.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.SetMaxOpenConns(1)
	runner, err := idempotency.NewRunner(w.store, idempotency.RunnerOptions{Wait: 20 * time.Second})
	require.NoError(t, err)
	var runs atomic.Int64
	var callers sync.WaitGroup
	for i := range 30 {
		callers.Go(func() {
			key := idempotency.Key{User: "user", ID: fmt.Sprint(i % 3)}
			resp, _, err := runner.Do(context.Background(), key, nil, func(ctx context.Context) (idempotency.Response, error) {
				runs.Add(1)
				if err := w.act(ctx, key.ID); err != nil {
					return idempotency.Response{}, err
				}
				time.Sleep(20 * time.Millisecond) // the work
				return idempotency.Response{Status: 201, Body: []byte(key.ID)}, nil
			})
			if err != nil || string(resp.Body) != key.ID {
				t.Errorf("%s: %s, %v", key.ID, resp.Body, err)
			}
		})
	}
	callers.Wait()
	require.NoError(t, runner.Shutdown(t.Context()))
	require.EqualValues(t, 3, runs.Load())
	w.requireEffects(t, 1, "0")
	w.requireEffects(t, 1, "1")
	w.requireEffects(t, 1, "2")
}

// One that finds no connection in time says that the store is busy.
func TestPoolIsEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.SetMaxOpenConns(1)
	h := w.handle(t, "key")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, claim, err := w.store.Begin(ctx, keyOf("other"), request)
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.Nil(t, claim)
	require.NoError(t, h.answer(http.StatusCreated))
}

// KeepEffects and Rollback decide what becomes of the effects, as the answer does without them.
func TestHandlerDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		name   string
		decide func(t *testing.T, h *handling)
		status int
		stored bool
		made   int
	}{
		{"keep", func(t *testing.T, h *handling) { require.True(t, mysqlstore.KeepEffects(h.ctx)) }, 409, true, 1},
		{"roll back", func(t *testing.T, h *handling) { require.NoError(t, h.tx.Rollback()) }, 409, true, 0},
		{"roll back and succeed", func(t *testing.T, h *handling) { require.NoError(t, h.tx.Rollback()) }, 201, false, 0},
		{"roll back and keep", func(t *testing.T, h *handling) {
			require.NoError(t, h.tx.Rollback())
			require.True(t, mysqlstore.KeepEffects(h.ctx))
		}, 409, false, 0},
		{"undo a part", func(t *testing.T, h *handling) {
			h.exec(t, "SAVEPOINT part")
			h.exec(t, "INSERT INTO "+w.effects+" (name) VALUES ('undone')")
			h.exec(t, "ROLLBACK TO SAVEPOINT part")
		}, 201, true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := w.handle(t, test.name)
			effect := h.effect(t)
			test.decide(t, h)
			err := h.answer(test.status)
			w.requireEffects(t, test.made, effect)
			w.requireEffects(t, 0, "undone")
			if !test.stored {
				require.ErrorIs(t, err, idempotency.ErrRolledBack)
				w.requireFree(t, test.name)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.status, requireStored(t, w.store, test.name).Status)
		})
	}
}

// A record of a lease is in the way as long as it counts. What it was released with goes on.
func TestLeasedRecordInTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leased := mysqlstore.New(w.db, mysqlstore.Options{Table: w.table})

	owned, lease := begun(t, leased, "leased")
	record, claim, err := w.store.Begin(t.Context(), keyOf("leased"), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.WithinDuration(t, owned.Created, record.Created, 0)
	require.Positive(t, record.LeaseLeft)

	require.NoError(t, lease.Release(t.Context(), time.Hour))
	for range 2 { // rolled back, it is as before
		record, claim = begun(t, w.store, "leased")
		require.Equal(t, 2, record.Attempt)
		require.True(t, record.NoLease)
		require.WithinDuration(t, owned.Created, record.Created, 0)
		require.NoError(t, claim.Release(t.Context(), time.Hour))
	}
	h := w.handle(t, "leased")
	h.effect(t)
	require.NoError(t, h.answer(http.StatusConflict))
	record, _, err = leased.Begin(t.Context(), keyOf("leased"), request)
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, record.Response.Status)
	require.Equal(t, 2, record.Attempt)
	require.WithinDuration(t, owned.Created, record.Created, 0)

	short := request
	short.TTL, short.Lease = time.Millisecond, time.Millisecond
	_, _, err = leased.Begin(t.Context(), keyOf("expired"), short)
	require.NoError(t, err)
	eventually(t, "the expiry", func() bool {
		record, claim, err = w.store.Begin(t.Context(), keyOf("expired"), request)
		require.NoError(t, err)
		return claim != nil
	})
	require.Equal(t, 1, record.Attempt)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, leased, "expired")
}
