package pgxstore_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// A handler whose session has died is told so by its context, while its successor begins, also if it does something
// else than to ask the database.
func TestHandlerIsToldThatItsSessionDied(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	kill := func(t *testing.T, pid uint32) { execute(t, direct, "SELECT pg_terminate_backend($1, 10000)", pid) }
	for name, c := range map[string]struct {
		idle time.Duration
		end  func(t *testing.T, ctx context.Context, tx pgx.Tx)
	}{
		"terminated": {end: func(t *testing.T, ctx context.Context, tx pgx.Tx) { kill(t, pidOf(t, ctx, tx)) }},
		"terminated by itself": {end: func(_ *testing.T, ctx context.Context, tx pgx.Tx) {
			_, _ = tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())") // and the handler ignores the error
		}},
		"silent for too long": {idle: time.Second, end: func(*testing.T, context.Context, pgx.Tx) {}},
		"cut in a statement": {end: func(_ *testing.T, ctx context.Context, tx pgx.Tx) {
			brief, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, _ = tx.Exec(brief, "SELECT pg_sleep(10)")
		}},
		"behind notices": {end: func(t *testing.T, ctx context.Context, tx pgx.Tx) {
			pid := pidOf(t, ctx, tx)
			execute(t, direct, "SELECT pg_reload_conf()")
			kill(t, pid)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			opts := newTable(t, direct, pgxstore.Options{IdleTimeout: c.idle})
			var attempts atomic.Int64
			var cause error
			h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				if attempts.Add(1) == 1 {
					tx, _ := pgxstore.Tx(r.Context())
					c.end(t, r.Context(), tx)
					select {
					case <-r.Context().Done():
						cause = context.Cause(r.Context())
					case <-time.After(30 * time.Second):
					}
				}
				w.WriteHeader(http.StatusCreated)
			})
			require.NotEqual(t, http.StatusCreated, post(h, "1").Code)
			require.ErrorIs(t, cause, idempotency.ErrClaimLost)
			require.Eventually(t, func() bool { return post(h, "1").Code == http.StatusCreated }, 10*time.Second, time.Millisecond)
			require.EqualValues(t, 2, attempts.Load())
		})
	}
}

func pidOf(t *testing.T, ctx context.Context, tx pgx.Tx) (pid uint32) {
	assert.NoError(t, tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid))
	return pid
}

// A check disturbs neither the statements of the handler nor what the server has to say besides, in no order.
func TestChecksBesideStatements(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	l := newLedger(t, pool, opts)
	key, claim := begun(t, pgxstore.NewTx(pool, opts))
	tx, _ := pgxstore.Tx(claim.Context(t.Context()))
	defer func() { _ = claim.Release(context.Background(), time.Hour) }() // in any case: the pool waits for its connections
	over, stop := context.WithCancel(t.Context())
	defer stop()
	var settled atomic.Bool
	var checks sync.WaitGroup
	checks.Go(func() {
		for over.Err() == nil {
			if err := claim.Extend(t.Context(), time.Minute); err != nil {
				assert.ErrorIs(t, err, idempotency.ErrClaimLost)
				assert.True(t, settled.Load(), "the claim is alive")
				return
			}
		}
	})
	for i := range 200 {
		_, err := tx.Exec(t.Context(), l.insert(), key.ID)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), fmt.Sprintf("SELECT set_config('application_name', '%d', true)", i)) // is reported
		require.NoError(t, err)
		rows, err := tx.Query(t.Context(), "SELECT generate_series(1, 100)")
		require.NoError(t, err)
		numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
		require.NoError(t, err)
		require.Len(t, numbers, 100)
		time.Sleep(time.Millisecond) // so that checks meet an idle session, too
	}
	_, err := tx.Conn().Exec(t.Context(), l.insert(), key.ID)
	require.NoError(t, err)
	settled.Store(true)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	stop()
	checks.Wait()
	require.Equal(t, 201, l.effects(t, key))
}

// A handler that does something else for longer than two checks apart still has its transaction.
func TestIdleHandlerIsNotDisturbed(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			panic(context.Cause(r.Context()))
		case <-time.After(2500 * time.Millisecond):
			w.WriteHeader(http.StatusCreated)
		}
	})
	require.Equal(t, http.StatusCreated, post(h, "1").Code)
}
