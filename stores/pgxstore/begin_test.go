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

// trustConnections makes a pool hand out its connections without a health check. By default a pool checks
// connections that were idle for a second.
func trustConnections(c *pgxpool.Config) {
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
}

// withApplicationName sets the application name by which the server identifies the sessions of a pool.
func withApplicationName(name string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name }
}

// breakConnections fills a pool with connections, and makes the server terminate all of them.
func breakConnections(t testing.TB, pool *pgxpool.Pool, name string) {
	t.Helper()
	var all sync.WaitGroup
	for range pool.Config().MaxConns {
		all.Go(func() { _, _ = pool.Exec(context.Background(), "SELECT pg_sleep(0.1)") })
	}
	all.Wait()
	admin := newPool(t, serverURL(t), limitToOne)
	execStatement(t, admin, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1", name)
}

// After a restart of the server, all connections of the pool are broken. Each Begin succeeds, however many there
// are.
func TestPoolOfBrokenConnections(t *testing.T) {
	t.Parallel()
	name := uuid.NewString()
	pool := newPool(t, serverURL(t), withApplicationName(name), trustConnections)
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	completeNewKey(t, store)
	breakConnections(t, pool, name)
	for range pool.Config().MaxConns {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, claim, err := store.Begin(ctx, keyOf(uuid.NewString()), attempt)
		cancel()
		require.NoError(t, err)
		require.NoError(t, claim.Release(context.Background(), idempotency.Release{TTL: time.Hour}))
	}
}

// If row-level security hides a record from the claim, the key can never be claimed. Begin soon returns an error
// instead of retrying forever.
func TestHiddenRecord(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := "hidden_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execStatement(t, direct, "CREATE ROLE "+role+" LOGIN PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execStatement(t, direct, "GRANT SELECT, INSERT, UPDATE ON "+tableName(opts)+" TO "+role)
	execStatement(t, direct, "ALTER TABLE "+tableName(opts)+" ENABLE ROW LEVEL SECURITY")
	execStatement(t, direct, "CREATE POLICY seen ON "+tableName(opts)+" FOR SELECT USING (true)") // no policy allows updates
	execStatement(t, direct, "CREATE POLICY made ON "+tableName(opts)+" FOR INSERT WITH CHECK (true)")
	key := completeNewKey(t, pgxstore.New(direct, opts))
	execStatement(t, direct, "UPDATE "+tableName(opts)+" SET expires_at = now() - interval '1 minute'")

	pool, proxy := newProxiedPool(t, limitToOne, func(c *pgxpool.Config) { c.ConnConfig.User = role })
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

// A temporary table of the same name, or another search path, does not move the records.
func TestTableThatIsHidden(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), limitToOne)
	opts := newTable(t, pool, pgxstore.Options{})
	for _, sql := range []string{
		"CREATE TEMP TABLE " + tableName(opts) + " (LIKE " + tableName(opts) + " INCLUDING ALL)",
		"SET search_path = pg_catalog",
	} {
		store := pgxstore.New(pool, opts)
		key, claim := claimNewKey(t, store)
		execStatement(t, pool, sql)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour))
		record, _, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.NotNil(t, record.Response)
		kept := queryValue[int](t, pool, "SELECT count(*) FROM public."+tableName(opts)+" WHERE key = $1", key.ID)
		require.Equal(t, 1, kept, "%s: %s", sql)
		execStatement(t, pool, "DISCARD TEMP")
		execStatement(t, pool, "RESET search_path")
	}
}

// Without a schema in the options, the store uses the first table with the name in the search path.
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
		execStatement(t, direct, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	}
	opts := newTable(t, newPool(t, serverURL(t), path(second)), pgxstore.Options{})
	pool := newPool(t, serverURL(t), path(first, second))
	store := pgxstore.New(pool, opts)
	completeNewKey(t, store)
	require.Equal(t, 1, queryValue[int](t, direct, "SELECT count(*) FROM "+pgx.Identifier{second, opts.Table}.Sanitize()))
	missing := opts
	missing.Table = "missing"
	_, _, err := pgxstore.New(pool, missing).Begin(context.Background(), keyOf("1"), attempt)
	require.ErrorContains(t, err, "call Migrate")
	require.Nil(t, testservice.InDoubt(err))
}

// If the answer could not be stored, the handler does not run, and the error says what to do.
func TestNoPartitionForTheAnswer(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 2, SpareDays: 1}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	_, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{TTL: 49 * time.Hour})
	require.ErrorContains(t, err, "PartitionDays")

	s := newService(t, store, idempotency.Options{TTL: 48 * time.Hour})
	status, _ := s.sendRequest(t, "alice", "1")
	require.Equal(t, http.StatusCreated, status)
	set("2030-01-12 11:00:00+00") // Maintain has not run since
	for _, key := range []string{"2", "2", "3"} {
		status, _ = s.sendRequest(t, "alice", key)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.ErrorContains(t, s.readOutcome().Err, "Maintain")
	}
	require.Equal(t, int64(1), s.runCount.Load())
	status, _ = s.sendRequest(t, "alice", "1")
	require.Equal(t, http.StatusCreated, status, "is replayed")
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
	status, _ = s.sendRequest(t, "alice", "2")
	require.Equal(t, http.StatusCreated, status)
}

// If the table is missing, Begin fails before the deadline, and the error says what to do.
func TestNoTable(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	dropped := newTable(t, pool, pgxstore.Options{})
	used := pgxstore.New(pool, dropped)
	completeNewKey(t, used)
	execStatement(t, pool, "DROP TABLE "+tableName(dropped))
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

// If a session has forgotten its prepared statements, which pgx does not notice, the requests still succeed. DISCARD
// ALL cannot run in a transaction.
func TestForgottenStatements(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, sql := range []string{"DEALLOCATE ALL", "DISCARD ALL"} {
		for kind, days := range map[string]int{"plain": 0, "partitions": 1} {
			pool := newPool(t, serverURL(t), limitToOne)
			opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{PartitionDays: days})
			store := pgxstore.New(pool, opts)
			t.Run(sql+"/"+kind, func(t *testing.T) {
				key := completeNewKey(t, store)
				execStatement(t, pool, sql) // as another user of the pool may do
				key2, claim := claimNewKey(t, store)
				execStatement(t, pool, sql)
				require.NoError(t, claim.Extend(ctx, time.Minute))
				execStatement(t, pool, sql)
				require.NoError(t, claim.Complete(ctx, answer, time.Hour))
				execStatement(t, pool, sql)
				require.NotNil(t, readResponse(t, store, key))
				execStatement(t, pool, sql)
				require.NotNil(t, readResponse(t, store, key2))
				execStatement(t, pool, sql)
				_, claim = claimNewKey(t, store)
				execStatement(t, pool, sql)
				require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			})
		}
	}
}

// A step fails at its commit if its function makes the session forget its prepared statements. The rows are rolled
// back, and the next attempt runs the step again.
func TestStepThatForgetsStatements(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), limitToOne)
			opts := newTable(t, pool, pgxstore.Options{Isolation: level})
			l := newLedger(t, pool, opts)
			first := true
			h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				_, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (int, error) {
					if _, err := tx.Exec(r.Context(), l.insertStatement(), "1"); err != nil || !first {
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
			post(h, "warm") // prepares the statements
			first = true
			for range 2 {
				if post(h, "1").Code == http.StatusCreated {
					break
				}
			}
			require.Equal(t, http.StatusCreated, post(h, "1").Code)
			require.Equal(t, 2, queryValue[int](t, pool, "SELECT count(*) FROM "+l.table), "one row of each key")
		})
	}
}

// readResponse returns the stored response of a key.
func readResponse(t *testing.T, store idempotency.Store, key idempotency.Key) *idempotency.Response {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), key, attempt)
	require.NoError(t, err)
	require.Nil(t, claim)
	return record.Response
}

// claimRecorder records the statements that claim, with their arguments.
type claimRecorder struct {
	mu           sync.Mutex
	resendClaims []func(ctx context.Context, pool *pgxpool.Pool) error // each function sends a recorded statement again
}

func (c *claimRecorder) recordClaim(sql string, args []any) {
	if !strings.Contains(sql, "/* idempotency: claim */") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resendClaims = append(c.resendClaims, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, sql, args...)
		return err
	})
}

func (c *claimRecorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.recordClaim(data.SQL, data.Args)
	return ctx
}

func (c *claimRecorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *claimRecorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *claimRecorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	c.recordClaim(data.SQL, data.Args)
}

func (c *claimRecorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// The statement of a claim was sent twice, because the first connection broke. The first one arrives only after the
// handler has run and the claim was released. This late statement must not claim the key, because the claim would
// never be renewed or released.
func TestLateClaimOfAReleasedKey(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		for name, ttls := range map[string][]time.Duration{
			"freed": {0}, "freed twice": {0, 0}, "released": {time.Hour}, "released twice": {time.Hour, time.Hour},
		} {
			t.Run(form+", "+name, func(t *testing.T) {
				sent := &claimRecorder{}
				pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = sent })
				store := pgxstore.New(pool, newTable(t, direct, pgxstore.Options{PartitionDays: days}))
				key := keyOf("1")
				release := func(request idempotency.ClaimRequest, ttl time.Duration) {
					record, claim, err := store.Begin(t.Context(), key, request)
					require.NoError(t, err)
					require.NotNil(t, claim, "the key is not free: %+v", record)
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: ttl}))
				}
				for _, ttl := range ttls {
					sent.resendClaims = nil
					release(attempt, ttl)
				}
				require.NotEmpty(t, sent.resendClaims)
				for _, again := range sent.resendClaims {
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
