package pgxstore_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// A transaction that the database will refuse each time is not to be tried again, and the client is told so.
func TestRefusedCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, pool, "CREATE TABLE late_"+id+" (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	execute(t, pool, "CREATE ROLE clerk_"+id)
	for name, sql := range map[string]string{
		"deferred constraint": "INSERT INTO late_" + id + " VALUES (1), (1)",
		"role without rights": "SET LOCAL ROLE clerk_" + id,
	} {
		h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			tx, _ := pgxstore.Tx(r.Context())
			if _, err := tx.Exec(r.Context(), sql); err != nil {
				panic(err)
			}
			w.WriteHeader(http.StatusCreated)
		})
		for range 2 {
			w := post(h, strings.ReplaceAll(name, " ", "-"))
			require.Equal(t, http.StatusInternalServerError, w.Code, name)
			require.Empty(t, w.Header().Get("Retry-After"), name)
			var problem struct{ Type, Retry string }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
			require.Equal(t, "never", problem.Retry, name)
			require.True(t, strings.HasSuffix(problem.Type, "#rolled-back"), name)
		}
	}
	require.Zero(t, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
}

// What a retry may mend is answered so. Here the handler has committed by way of Conn, or the session has lost its prepared
// statements.
func TestRefusedCommitThatMayBeRetried(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 1} {
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
		for name, sql := range map[string]string{"hidden commit": "COMMIT; BEGIN", "no statements": "DEALLOCATE ALL"} {
			h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				tx, _ := pgxstore.Tx(r.Context())
				if _, err := tx.Conn().Exec(r.Context(), sql); err != nil {
					panic(err)
				}
				w.WriteHeader(http.StatusCreated)
			})
			for i := range 3 {
				w := post(h, strings.ReplaceAll(name, " ", "-"))
				if name == "no statements" && w.Code == http.StatusCreated {
					break // on a session that had none
				}
				if name == "hidden commit" && i > 0 {
					require.Equal(t, http.StatusConflict, w.Code)
					continue
				}
				require.Equal(t, http.StatusServiceUnavailable, w.Code, "%s, %s, %d: %s", form, name, i, w.Body)
				require.NotEmpty(t, w.Header().Get("Retry-After"))
			}
		}
	}
}

// What was committed behind our back is recorded, even if the sessions of the pool have forgotten their statements.
func TestHiddenCommitBesideForgottenStatements(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	store := pgxstore.NewTx(pool, newTable(t, newPool(t, serverURL(t)), pgxstore.Options{}))
	var claims []idempotency.Claim // at once, so that each has a session
	for range 4 {
		_, claim := begun(t, store)
		claims = append(claims, claim)
	}
	for _, claim := range claims {
		require.NoError(t, claim.Release(t.Context(), time.Hour))
	}
	h := newMiddleware(t, store, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		for _, conn := range pool.AcquireAllIdle(r.Context()) {
			_, err := conn.Conn().PgConn().Exec(r.Context(), "DEALLOCATE ALL").ReadAll() // unseen by pgx
			assert.NoError(t, err)
			conn.Release()
		}
		tx, _ := pgxstore.Tx(r.Context())
		_, err := tx.Conn().Exec(r.Context(), "COMMIT; BEGIN")
		assert.NoError(t, err)
		w.WriteHeader(http.StatusCreated)
	})
	require.Equal(t, http.StatusServiceUnavailable, post(h, "key").Code)
	require.Equal(t, http.StatusConflict, post(h, "key").Code)
}

// A role that the handler takes on for a part of the transaction does no harm.
func TestRoleOfAPart(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	role := "clerk_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, pool, "CREATE ROLE "+role)
	_, claim := begun(t, pgxstore.NewTx(pool, opts))
	tx, _ := pgxstore.Tx(claim.Context(t.Context()))
	for _, sql := range []string{"SET LOCAL ROLE " + role, "RESET ROLE"} {
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// An operation within a handler that changes the rows which the handler has changed waits for it, and the handler waits
// for the operation. After IdleTimeout the server ends the outer transaction. The retry replays the inner operation.
func TestNestedOperationOnTheSameRows(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{IdleTimeout: time.Second})
	b := newBank(t, pool, opts)
	store := pgxstore.NewTx(pool, opts)
	inner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	require.NoError(t, err)
	add := func(ctx context.Context, amount int) error {
		tx, _ := pgxstore.Tx(ctx)
		_, err := tx.Exec(ctx, "UPDATE "+b.accounts+" SET balance = balance + $1 WHERE id = 'bob'", amount)
		return err
	}
	first := true
	h := newMiddleware(t, store, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		change := func() error { return add(r.Context(), 1) }
		nested := func() error {
			_, _, err := inner.Do(context.WithoutCancel(r.Context()), keyOf("inner"), nil,
				func(ctx context.Context) (idempotency.Response, error) { return answer, add(ctx, 10) })
			return err
		}
		steps := []func() error{change, nested}
		if !first {
			steps = []func() error{nested, change}
		}
		first = false
		for _, step := range steps {
			if err := step(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		w.WriteHeader(http.StatusCreated)
	})
	require.Equal(t, http.StatusServiceUnavailable, post(h, "outer").Code)
	require.Equal(t, [2]int{100, 10}, b.balances(t))
	require.Equal(t, http.StatusCreated, post(h, "outer").Code)
	require.Equal(t, [2]int{100, 11}, b.balances(t))
}

// A standby executes nothing. What it refuses may pass, when the pool reaches the primary.
func TestStandby(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	key := keyOf("before")
	_, claim, err := pgxstore.New(pool, opts).Begin(t.Context(), key, attempt)
	require.NoError(t, err)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	execute(t, pool, "ALTER SYSTEM SET synchronous_standby_names = '*'") // as on a standby that is to take over
	require.NoError(t, db.Standby())
	for kind, store := range stores(pool, opts) {
		h := newMiddleware(t, store, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
		})
		w := post(h, "1")
		require.Equal(t, http.StatusServiceUnavailable, w.Code, kind)
		require.Equal(t, "1", w.Header().Get("Retry-After"), kind)
		record, _, err := store.Begin(t.Context(), key, attempt)
		require.NoError(t, err, kind)
		require.Equal(t, &answer, record.Response, "%s: what the standby has is replayed", kind)
	}
}
