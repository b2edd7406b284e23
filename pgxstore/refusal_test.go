package pgxstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

var refusal = idempotency.Response{Status: http.StatusUnprocessableEntity, Body: []byte("insufficient funds")}

// bank is what transfers are made in. Alice has 100.
type bank struct {
	pool     *pgxpool.Pool
	accounts string
	runs     atomic.Int64 // of handlers
}

func newBank(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) *bank {
	b := &bank{pool: pool, accounts: `"accounts of ` + opts.Table + `"`}
	execute(t, pool, "CREATE TABLE "+b.accounts+" (id text PRIMARY KEY, balance int NOT NULL CHECK (balance > -1000))")
	execute(t, pool, "INSERT INTO "+b.accounts+" VALUES ('alice', 100), ('bob', 0)")
	return b
}

func (b *bank) balances(t testing.TB) (balances [2]int) {
	return [2]int(column[int](t, b.pool, "SELECT balance FROM "+b.accounts+" ORDER BY id"))
}

var errFunds = errors.New("insufficient funds")

// transfer moves an amount from alice to bob. It debits, and then sees whether that was too much.
func (b *bank) transfer(ctx context.Context, tx pgx.Tx, amount int) error {
	b.runs.Add(1)
	var left int
	const change = "UPDATE %s SET balance = balance + $2 WHERE id = $1 RETURNING balance"
	if err := tx.QueryRow(ctx, fmt.Sprintf(change, b.accounts), "alice", -amount).Scan(&left); err != nil {
		return err
	}
	if left < 0 {
		return errFunds
	}
	return tx.QueryRow(ctx, fmt.Sprintf(change, b.accounts), "bob", amount).Scan(&left)
}

func reply(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errFunds):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

func postAmount(h http.Handler, key string, amount int) *httptest.ResponseRecorder {
	body, _ := json.Marshal(amount)
	r := httptest.NewRequest(http.MethodPost, "/transfers", strings.NewReader(string(body)))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// transferHandler makes the transfers that it is asked for, and ends each by answer.
func (b *bank) transferHandler(answer func(context.Context, http.ResponseWriter, pgx.Tx, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var amount int
		if err := json.NewDecoder(r.Body).Decode(&amount); err != nil {
			panic(err)
		}
		tx, _ := pgxstore.Tx(r.Context())
		answer(r.Context(), w, tx, b.transfer(r.Context(), tx, amount))
	}
}

// A transfer that is refused moves nothing, however the handler is written, and its answer is stored.
func TestRefusedTransfer(t *testing.T) {
	t.Parallel()
	type end = func(context.Context, http.ResponseWriter, pgx.Tx, error)
	unchanged, debited := [2]int{100, 0}, [2]int{-400, 0}
	plain := func(_ context.Context, w http.ResponseWriter, _ pgx.Tx, err error) { reply(w, err) }
	rollsBack := func(ctx context.Context, w http.ResponseWriter, tx pgx.Tx, err error) {
		assert.NoError(t, tx.Rollback(ctx))
		reply(w, err)
	}
	keeps := func(ctx context.Context, w http.ResponseWriter, _ pgx.Tx, err error) {
		assert.True(t, pgxstore.KeepEffects(ctx))
		reply(w, err)
	}
	decides := func(status int) end {
		return func(ctx context.Context, w http.ResponseWriter, _ pgx.Tx, _ error) {
			idempotency.Decide(ctx, idempotency.Keep)
			w.WriteHeader(status)
		}
	}
	at := func(level pgx.TxIsoLevel) pgxstore.Options { return pgxstore.Options{Isolation: level} }
	mode := func(mode pgx.QueryExecMode) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }
	}
	for name, c := range map[string]struct {
		opts   pgxstore.Options
		mode   func(*pgxpool.Config)
		amount int
		end    end
		status int
		want   [2]int
	}{
		"answers":                {end: plain, status: 422, want: unchanged},
		"rolls back":             {end: rollsBack, status: 422, want: unchanged},
		"keeps its effects":      {end: keeps, status: 422, want: debited},
		"fails":                  {end: plain, amount: 5000, status: 409, want: unchanged},
		"fails, and rolls back":  {end: rollsBack, amount: 5000, status: 409, want: unchanged},
		"keeps an error":         {end: decides(500), status: 500, want: unchanged},
		"keeps the last success": {end: decides(399), status: 399, want: debited},
		"repeatable read":        {opts: at(pgx.RepeatableRead), end: plain, status: 422, want: unchanged},
		"serializable":           {opts: at(pgx.Serializable), end: plain, status: 422, want: unchanged},
		"partitions":             {opts: pgxstore.Options{PartitionDays: 3}, end: plain, status: 422, want: unchanged},
		"unprepared":             {mode: mode(pgx.QueryExecModeExec), end: plain, status: 422, want: unchanged},
		"described":              {mode: mode(pgx.QueryExecModeDescribeExec), end: plain, amount: 5000, status: 409, want: unchanged},
		"simple protocol":        {mode: mode(pgx.QueryExecModeSimpleProtocol), end: plain, status: 422, want: unchanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changes []func(*pgxpool.Config)
			if c.mode != nil {
				changes = append(changes, c.mode)
			}
			direct := newPool(t, serverURL(t))
			pool := newPool(t, serverURL(t), append(changes, alone)...) // which would show what is left of a connection
			opts := newTable(t, direct, c.opts)
			b := newBank(t, direct, opts)
			h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, b.transferHandler(c.end))
			if c.amount == 0 {
				c.amount = 500
			}
			first := postAmount(h, "1", c.amount)
			require.Equal(t, c.status, first.Code, first.Body)
			again := postAmount(h, "1", c.amount)
			require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
			require.Equal(t, []any{first.Code, first.Body.String()}, []any{again.Code, again.Body.String()})
			require.Equal(t, c.want, b.balances(t))
			require.Equal(t, int64(1), b.runs.Load())
		})
	}
}

// What a handler keeps is kept whole or not at all.
func TestEffectsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	require.False(t, pgxstore.KeepEffects(t.Context()), "without a store")
	pool := newPool(t, serverURL(t), alone)
	for name, then := range map[string]func(context.Context, pgx.Tx){
		"rolls back":        func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(ctx) },
		"swallows an error": func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1/0") },
	} {
		t.Run(name, func(t *testing.T) {
			opts := newTable(t, pool, pgxstore.Options{})
			b := newBank(t, pool, opts)
			h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, b.transferHandler(
				func(ctx context.Context, w http.ResponseWriter, tx pgx.Tx, err error) {
					pgxstore.KeepEffects(ctx)
					then(ctx, tx)
					reply(w, err)
				}))
			require.Equal(t, http.StatusServiceUnavailable, postAmount(h, "1", 500).Code)
			require.Equal(t, [2]int{100, 0}, b.balances(t))
			require.Zero(t, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
		})
	}
}

// The answer to an error that may pass is not stored: the next attempt may be better off.
func TestRefusalsThatMayPass(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	raise := func(code string) string { return "DO $$ BEGIN RAISE SQLSTATE '" + code + "'; END $$" }
	rollsBack := func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(ctx) }
	nothing := func(context.Context, pgx.Tx) {}
	for name, c := range map[string]struct {
		sql    string
		then   func(context.Context, pgx.Tx)
		status int
	}{
		"serialization failure":     {raise("40001"), nothing, 503},
		"deadlock, then a rollback": {raise("40P01"), rollsBack, 503},
		"lock timeout":              {raise("55P03"), nothing, 503},
		"statement timeout":         {"SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)", nothing, 503},
		"no room":                   {raise("53100"), nothing, 503},
		"unique violation":          {raise("23505"), nothing, 409},
		"a rule of the database":    {raise("P0001"), rollsBack, 409},
		"not in this state":         {"SELECT lastval()", nothing, 409},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := newTable(t, pool, pgxstore.Options{})
			h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				tx, _ := pgxstore.Tx(r.Context())
				_, err := tx.Exec(r.Context(), c.sql)
				assert.Error(t, err)
				c.then(r.Context(), tx)
				reply(w, err)
			})
			require.Equal(t, c.status, post(h, "1").Code)
			require.Equal(t, c.status == 409, one[bool](t, pool, "SELECT EXISTS (SELECT FROM "+tableName(opts)+")"))
		})
	}
	t.Run("undone by a savepoint", func(t *testing.T) {
		t.Parallel()
		opts := newTable(t, pool, pgxstore.Options{})
		h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			tx, _ := pgxstore.Tx(r.Context())
			reply(w, pgx.BeginFunc(r.Context(), tx, func(part pgx.Tx) error {
				_, err := part.Exec(r.Context(), raise("40P01"))
				return err
			}))
		})
		require.Equal(t, http.StatusConflict, post(h, "1").Code)
	})
}

// Of many transfers at once, each sent several times, those are refused that the balance does not allow, and no other.
func TestRefusedTransfersAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for name, end := range map[string]func(context.Context, http.ResponseWriter, pgx.Tx, error){
			"answers": func(_ context.Context, w http.ResponseWriter, _ pgx.Tx, err error) { reply(w, err) },
			"rolls back": func(ctx context.Context, w http.ResponseWriter, tx pgx.Tx, err error) {
				if err != nil {
					_ = tx.Rollback(ctx)
				}
				reply(w, err)
			},
		} {
			t.Run(fmt.Sprint(level, "/", name), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t))
				opts := newTable(t, pool, pgxstore.Options{Isolation: level})
				b := newBank(t, pool, opts)
				h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, b.transferHandler(end))
				const transfers, copies, amount = 8, 4, 30 // of which 3 can be made
				var mu sync.Mutex
				answers := make(map[string]int)
				var crowd sync.WaitGroup
				for transfer := range transfers {
					for range copies {
						crowd.Go(func() {
							w := postAmount(h, fmt.Sprint(transfer), amount)
							for w.Header().Get("Idempotent-Replayed") == "" {
								w = postAmount(h, fmt.Sprint(transfer), amount)
							}
							mu.Lock()
							defer mu.Unlock()
							answers[fmt.Sprint(transfer, " ", w.Code)]++
						})
					}
				}
				crowd.Wait()
				require.Len(t, answers, transfers, "one answer each")
				require.Equal(t, [2]int{10, 90}, b.balances(t))
				require.Equal(t, 3, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE status = 201"))
				require.Equal(t, transfers-3, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE status = 422"))
			})
		}
	}
}

// Between the rollback and the new claim the key is free. If somebody else has claimed it then, the refusal is void.
func TestRefusalIsOvertaken(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for form, options := range map[string]pgxstore.Options{"plain": {}, "partitions": {PartitionDays: 3}} {
		for name, overtake := range map[string]func(store idempotency.Store, leases idempotency.Store, key idempotency.Key){
			"by one that runs": func(store, _ idempotency.Store, key idempotency.Key) {
				_, other, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				t.Cleanup(func() { _ = other.Release(ctx, time.Hour) })
			},
			"by one that is completed": func(store, _ idempotency.Store, key idempotency.Key) {
				_, other, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NoError(t, other.Complete(ctx, answer, time.Hour))
			},
			"by a lease that is released": func(_, leases idempotency.Store, key idempotency.Key) {
				_, other, err := leases.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NoError(t, other.Release(ctx, time.Hour))
			},
		} {
			t.Run(form+"/"+name, func(t *testing.T) {
				opts := newTable(t, pool, options)
				store := pgxstore.NewTx(pool, opts)
				key, claim := begun(t, store)
				tx, _ := pgxstore.Tx(claim.Context(ctx))
				require.NoError(t, tx.Rollback(ctx)) // and the lock is gone
				overtake(store, pgxstore.New(pool, opts), key)
				before := rowOf(t, pool, opts, key)
				require.ErrorIs(t, claim.Complete(ctx, refusal, time.Hour), idempotency.ErrClaimLost)
				require.Equal(t, before, rowOf(t, pool, opts, key))
			})
		}
	}
}

// The record of a refusal is that of the attempt: its number, and when the first one began.
func TestRecordOfARefusal(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for form, options := range map[string]pgxstore.Options{"plain": {}, "partitions": {PartitionDays: 3}} {
		opts := newTable(t, pool, options)
		store, leases := pgxstore.NewTx(pool, opts), pgxstore.New(pool, opts)
		for name, prepare := range map[string]func(key idempotency.Key){
			"first": func(idempotency.Key) {},
			"second": func(key idempotency.Key) {
				_, lease, err := leases.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NoError(t, lease.Release(ctx, time.Hour))
			},
			"after a record that has expired": func(key idempotency.Key) {
				_, former, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NoError(t, former.Complete(ctx, answer, time.Hour))
				forge(t, pool, opts, key, "expires_at = now() - interval '1 second'")
			},
		} {
			t.Run(form+"/"+name, func(t *testing.T) {
				key := keyOf(uuid.NewString())
				prepare(key)
				want, claim, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				tx, _ := pgxstore.Tx(claim.Context(ctx))
				_, err = tx.Exec(ctx, "SELECT pg_sleep(0.001)")
				require.NoError(t, err)
				require.NoError(t, claim.Complete(ctx, refusal, time.Hour))
				got, _, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.Equal(t, &refusal, got.Response)
				require.Equal(t, want.Attempt, got.Attempt)
				require.True(t, want.Created.Equal(got.Created), "%v, not %v", got.Created, want.Created)
			})
		}
	}
}

// The claim of a key whose former record was deleted in the meantime is as good.
func TestRefusalAfterTheFormerRecordIsGone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.NewTx(pool, opts)
	key := completed(t, store)
	forge(t, pool, opts, key, "expires_at = now() - interval '1 second'")
	_, claim, err := store.Begin(ctx, key, attempt)
	require.NoError(t, err)
	tx, _ := pgxstore.Tx(claim.Context(ctx))
	_, err = tx.Exec(ctx, "SELECT 1")
	require.NoError(t, err)
	execute(t, pool, "DELETE FROM "+tableName(opts))
	require.NoError(t, claim.Complete(ctx, refusal, time.Hour))
	require.Contains(t, rowOf(t, pool, opts, key), ",422,")
}

// A refusal costs a round trip more than a success: it rolls back and claims again in one. One that has not used the
// transaction has nothing to roll back.
func TestRoundTripsOfRefusals(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool, proxy := newProxiedPool(t, alone)
	for name, c := range map[string]struct {
		level pgx.TxIsoLevel
		work  func(pgx.Tx)
		want  int // begin, those of the handler, rollback and claim, commit
	}{
		"no statement":    {"", func(pgx.Tx) {}, 2},
		"a statement":     {"", func(tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1") }, 1 + 1 + 2},
		"a rollback":      {"", func(tx pgx.Tx) { _ = tx.Rollback(ctx) }, 1 + 1 + 2},
		"a failure":       {"", func(tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1/0") }, 1 + 1 + 3},
		"serializable":    {pgx.Serializable, func(tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1") }, 2 + 1 + 2},
		"repeatable read": {pgx.RepeatableRead, func(tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1") }, 1 + 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			store := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{Isolation: c.level}))
			refuse := func() {
				_, claim := begun(t, store)
				tx, _ := pgxstore.Tx(claim.Context(ctx))
				c.work(tx)
				require.NoError(t, claim.Complete(ctx, refusal, time.Hour))
			}
			refuse() // prepares the statements
			before := proxy.Flights()
			refuse()
			require.Equal(t, c.want, proxy.Flights()-before)
		})
	}
}

// The request or the reply of a step of a refusal is lost, or late.
func TestLostMessagesOfRefusals(t *testing.T) {
	t.Parallel()
	var executed error
	for _, c := range []struct {
		statement string
		fault     servertest.Fault
		want      error
		replayed  bool // the next time
	}{
		{"idempotency: lock", servertest.LoseRequest, idempotency.ErrRolledBack, false},
		{"idempotency: lock", servertest.LoseReply, idempotency.ErrRolledBack, false},
		{"idempotency: lock", servertest.HoldReply, idempotency.ErrRolledBack, false},
		{"idempotency: lock", servertest.HoldRequest, idempotency.ErrRolledBack, false},
		{"idempotency: record", servertest.LoseRequest, idempotency.ErrRolledBack, false},
		{"idempotency: record", servertest.LoseReply, executed, true},
		{"idempotency: record", servertest.HoldReply, executed, true},
		{"idempotency: record", servertest.HoldRequest, idempotency.ErrRolledBack, true}, // in doubt
	} {
		t.Run(c.statement+"/"+string(c.fault), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			direct := newPool(t, serverURL(t))
			pool, proxy := newProxiedPool(t, unprepared)
			opts := newTable(t, direct, pgxstore.Options{})
			b := newBank(t, direct, opts)
			work := func(ctx context.Context) (idempotency.Response, error) {
				if b.runs.Load() == 0 {
					proxy.Inject(servertest.Rule{Fault: c.fault, Pattern: c.statement})
				}
				tx, _ := pgxstore.Tx(ctx)
				assert.ErrorIs(t, b.transfer(ctx, tx, 500), errFunds)
				return refusal, nil
			}
			settings := idempotency.RunnerOptions{StoreTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}
			runner, err := idempotency.NewRunner(pgxstore.NewTx(pool, opts), settings)
			require.NoError(t, err)
			settings.Wait = 10 * time.Second // for the server to notice the end of a session
			patient, err := idempotency.NewRunner(pgxstore.NewTx(pool, opts), settings)
			require.NoError(t, err)

			_, _, err = runner.Do(ctx, keyOf("1"), nil, work)
			require.Equal(t, 1, proxy.Strikes())
			require.ErrorIs(t, err, c.want)
			require.Eventually(t, func() bool {
				s := pool.Stat()
				return s.TotalConns() == s.IdleConns()
			}, 20*time.Second, time.Millisecond)
			proxy.Release() // what was held comes late

			resp, replayed, err := patient.Do(ctx, keyOf("1"), nil, work)
			require.NoError(t, err)
			require.Equal(t, refusal, resp)
			require.Equal(t, c.replayed, replayed)
			require.Equal(t, [2]int{100, 0}, b.balances(t))
		})
	}
}
