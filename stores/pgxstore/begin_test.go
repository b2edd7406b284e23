package pgxstore_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// trusting makes a pool hand out its connections without a look at them, which it else does after a second.
func trusting(c *pgxpool.Config) {
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
}

// named lets the server tell the sessions of a pool from others.
func named(name string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name }
}

// cutAll fills a pool with connections, and has the server end all of them.
func cutAll(t testing.TB, pool *pgxpool.Pool, name string) {
	t.Helper()
	var all sync.WaitGroup
	for range pool.Config().MaxConns {
		all.Go(func() { _, _ = pool.Exec(context.Background(), "SELECT pg_sleep(0.1)") })
	}
	all.Wait()
	admin := newPool(t, serverURL(t), alone)
	execute(t, admin, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1", name)
}

// After a restart of the server, no connection of the pool works any more. However many there are, each Begin succeeds.
func TestPoolOfBrokenConnections(t *testing.T) {
	t.Parallel()
	name := uuid.NewString()
	pool := newPool(t, serverURL(t), named(name), trusting)
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	completed(t, store)
	cutAll(t, pool, name)
	for range pool.Config().MaxConns {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, claim, err := store.Begin(ctx, keyOf(uuid.NewString()), attempt)
		cancel()
		require.NoError(t, err)
		require.NoError(t, claim.Release(context.Background(), time.Hour))
	}
}

// A key whose record row security hides from the claim can never be claimed. That is an error before long, not a question
// without end.
func TestHiddenRecord(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := "hidden_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, direct, "CREATE ROLE "+role+" LOGIN PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execute(t, direct, "GRANT SELECT, INSERT, UPDATE ON "+tableName(opts)+" TO "+role)
	execute(t, direct, "ALTER TABLE "+tableName(opts)+" ENABLE ROW LEVEL SECURITY")
	execute(t, direct, "CREATE POLICY seen ON "+tableName(opts)+" FOR SELECT USING (true)") // and nobody may update
	execute(t, direct, "CREATE POLICY made ON "+tableName(opts)+" FOR INSERT WITH CHECK (true)")
	key := completed(t, pgxstore.New(direct, opts))
	execute(t, direct, "UPDATE "+tableName(opts)+" SET expires_at = now() - interval '1 minute'")

	pool, proxy := newProxiedPool(t, alone, func(c *pgxpool.Config) { c.ConnConfig.User = role })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _, err := pgxstore.New(pool, opts).Begin(ctx, key, attempt)
	require.ErrorContains(t, err, "row security")
	require.Nil(t, testservice.InDoubt(err))
	require.Less(t, proxy.Flights(), 50, "round trips, with those that connect and prepare statements")

	unready, ok := errors.AsType[*pgxstore.UnreadyTable](pgxstore.New(pool, opts).Check(ctx))
	require.True(t, ok)
	require.Contains(t, unready.Problem, "row security")
}

// A temporary table of the same name, or another search path, does not move a record.
func TestTableThatIsHidden(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), alone)
	opts := newTable(t, pool, pgxstore.Options{})
	for _, sql := range []string{
		"CREATE TEMP TABLE " + tableName(opts) + " (LIKE " + tableName(opts) + " INCLUDING ALL)",
		"SET search_path = pg_catalog",
	} {
		store := pgxstore.New(pool, opts)
		key, claim := begun(t, store)
		execute(t, pool, sql)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour))
		record, _, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.NotNil(t, record.Response)
		kept := one[int](t, pool, "SELECT count(*) FROM public."+tableName(opts)+" WHERE key = $1", key.ID)
		require.Equal(t, 1, kept, "%s: %s", sql)
		execute(t, pool, "DISCARD TEMP")
		execute(t, pool, "RESET search_path")
	}
}

// Without a schema in the options, the table is the first one of the search path that has the name.
func TestSchemaOfTheSearchPath(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	first, second := "a_"+uuid.NewString(), "b_"+uuid.NewString()
	path := func(schemas ...string) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["search_path"] = `"` + strings.Join(schemas, `", "`) + `"`
		}
	}
	for _, schema := range []string{first, second} {
		execute(t, direct, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	}
	opts := newTable(t, newPool(t, serverURL(t), path(second)), pgxstore.Options{})
	pool := newPool(t, serverURL(t), path(first, second))
	store := pgxstore.New(pool, opts)
	completed(t, store)
	require.Equal(t, 1, one[int](t, direct, "SELECT count(*) FROM "+pgx.Identifier{second, opts.Table}.Sanitize()))
	missing := opts
	missing.Table = "missing"
	_, _, err := pgxstore.New(pool, missing).Begin(context.Background(), keyOf("1"), attempt)
	require.ErrorContains(t, err, "call Migrate")
	require.Nil(t, testservice.InDoubt(err))
}

// A handler whose answer could not be stored does not run, and the error says what to do.
func TestNoPartitionForTheAnswer(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 2, SpareDays: 1}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	_, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{TTL: 49 * time.Hour})
	require.ErrorContains(t, err, "PartitionDays")

	s := newService(t, store, idempotency.Options{TTL: 48 * time.Hour})
	status, _ := s.ask(t, "alice", "1")
	require.Equal(t, http.StatusCreated, status)
	set("2030-01-12 11:00:00+00") // and nobody calls Maintain
	for _, key := range []string{"2", "2", "3"} {
		status, _ = s.ask(t, "alice", key)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.ErrorContains(t, s.outcome().Err, "Maintain")
	}
	require.Equal(t, int64(1), s.runs.Load())
	status, _ = s.ask(t, "alice", "1")
	require.Equal(t, http.StatusCreated, status, "is replayed")
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
	status, _ = s.ask(t, "alice", "2")
	require.Equal(t, http.StatusCreated, status)
}

// Where there is no table, nobody waits for it until the deadline, and the error says what to do.
func TestNoTable(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	dropped := newTable(t, pool, pgxstore.Options{})
	used := pgxstore.New(pool, dropped)
	completed(t, used)
	execute(t, pool, "DROP TABLE "+tableName(dropped))
	for name, store := range map[string]*pgxstore.Store{
		"in the search path": pgxstore.New(pool, pgxstore.Options{Table: "nowhere"}),
		"in a schema":        pgxstore.New(pool, pgxstore.Options{Table: "nowhere", Schema: "public"}),
		"no schema":          pgxstore.New(pool, pgxstore.Options{Table: "nowhere", Schema: "nowhere"}),
		"dropped":            used,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, claim, err := store.Begin(ctx, keyOf("1"), attempt)
		requireMigrate(t, err, name)
		_, err = store.Inspect(ctx, keyOf("1"))
		requireMigrate(t, err, name)
		requireMigrate(t, store.Maintain(ctx), name)
		require.NoError(t, ctx.Err())
		require.Nil(t, claim)
		cancel()
	}
}

func requireMigrate(t *testing.T, err error, where ...any) {
	t.Helper()
	unready, ok := errors.AsType[*pgxstore.UnreadyTable](err)
	require.True(t, ok, "%v: %v", where, err)
	require.Equal(t, "call Migrate", unready.Remedy, "%v", where)
}

// A session that has forgotten its prepared statements, which pgx does not notice, costs no request. DISCARD ALL cannot be
// executed in a transaction.
func TestForgottenStatements(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, sql := range []string{"DEALLOCATE ALL", "DISCARD ALL"} {
		for kind, days := range map[string]int{"plain": 0, "partitions": 1} {
			pool := newPool(t, serverURL(t), alone)
			opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{PartitionDays: days})
			store := pgxstore.New(pool, opts)
			t.Run(sql+"/"+kind, func(t *testing.T) {
				key := completed(t, store)
				execute(t, pool, sql) // by somebody else who uses the pool
				key2, claim := begun(t, store)
				execute(t, pool, sql)
				require.NoError(t, claim.Extend(ctx, time.Minute))
				execute(t, pool, sql)
				require.NoError(t, claim.Complete(ctx, answer, time.Hour))
				execute(t, pool, sql)
				require.NotNil(t, answered(t, store, key))
				execute(t, pool, sql)
				require.NotNil(t, answered(t, store, key2))
				execute(t, pool, sql)
				_, claim = begun(t, store)
				execute(t, pool, sql)
				require.NoError(t, claim.Release(ctx, time.Hour))
			})
		}
	}
}

// A step in a transaction that forgets the statements of its session, as a function of the handler may do, fails at the commit.
// Its rows are rolled back, and the next attempt runs it.
func TestStepThatForgetsStatements(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), alone)
			opts := newTable(t, pool, pgxstore.Options{Isolation: level})
			l := newLedger(t, pool, opts)
			first := true
			h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				_, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (int, error) {
					if _, err := tx.Exec(r.Context(), l.insert(), "1"); err != nil || !first {
						return 1, err
					}
					first = false
					_, err := tx.Exec(r.Context(), "DEALLOCATE ALL")
					return 1, err
				})
				if err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			post(h, "warm") // so that there are prepared statements
			first = true
			for range 2 {
				if post(h, "1").Code == http.StatusCreated {
					break
				}
			}
			require.Equal(t, http.StatusCreated, post(h, "1").Code)
			require.Equal(t, 2, one[int](t, pool, "SELECT count(*) FROM "+l.table), "one row of each key")
		})
	}
}

// answered returns the response of a key.
func answered(t *testing.T, store idempotency.Store, key idempotency.Key) *idempotency.Response {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), key, attempt)
	require.NoError(t, err)
	require.Nil(t, claim)
	return record.Response
}

// claims notes the statements that claim, with their arguments.
type claims struct {
	mu   sync.Mutex
	sent []func(ctx context.Context, pool *pgxpool.Pool) error // sends one of them again
}

func (c *claims) note(sql string, args []any) {
	if !strings.Contains(sql, "/* idempotency: claim */") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, sql, args...)
		return err
	})
}

func (c *claims) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.note(data.SQL, data.Args)
	return ctx
}

func (c *claims) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *claims) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *claims) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	c.note(data.SQL, data.Args)
}

func (c *claims) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A statement that claims was sent twice, because the first connection broke. When the first one arrives at last, the handler
// has run and the claim was released. It claims nothing, because nobody would renew or release that claim.
func TestLateClaimOfAReleasedKey(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		for name, ttls := range map[string][]time.Duration{
			"freed": {0}, "freed twice": {0, 0}, "released": {time.Hour}, "released twice": {time.Hour, time.Hour},
		} {
			t.Run(form+", "+name, func(t *testing.T) {
				sent := &claims{}
				pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = sent })
				store := pgxstore.New(pool, newTable(t, direct, pgxstore.Options{PartitionDays: days}))
				key := keyOf("1")
				release := func(request idempotency.ClaimRequest, ttl time.Duration) {
					record, claim, err := store.Begin(t.Context(), key, request)
					require.NoError(t, err)
					require.NotNil(t, claim, "the key is not free: %+v", record)
					require.NoError(t, claim.Release(t.Context(), ttl))
				}
				for _, ttl := range ttls {
					sent.sent = nil
					release(attempt, ttl)
				}
				require.NotEmpty(t, sent.sent)
				for _, again := range sent.sent {
					require.NoError(t, again(t.Context(), direct))
				}
				next := attempt
				next.TakeOver = false
				if ttls[0] == 0 {
					next.Fingerprint[0]++
				}
				release(next, 0)
			})
		}
	}
}
