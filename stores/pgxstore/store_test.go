package pgxstore_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var (
	attempt = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour}

	answer = idempotency.Response{
		Status: http.StatusCreated,
		Header: "Content-Type: application/json\n",
		Body:   []byte(`{"id":1}`),
	}
)

// claimNewKey claims a new key.
func claimNewKey(t testing.TB, store idempotency.Store) (idempotency.Key, idempotency.Claim) {
	t.Helper()
	key := keyOf(uuid.NewString())
	_, claim, err := store.Begin(context.Background(), key, attempt)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return key, claim
}

// completeNewKey completes an operation with a new key.
func completeNewKey(t testing.TB, store idempotency.Store) idempotency.Key {
	t.Helper()
	key, claim := claimNewKey(t, store)
	require.NoError(t, claim.Complete(context.Background(), answer, time.Hour))
	return key
}

func TestColumnsForAudits(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{CountReplays: true})
	store := pgxstore.New(pool, opts)
	key := completeNewKey(t, store)
	for range 2 {
		record, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.Nil(t, claim)
		require.Equal(t, answer, *record.Response)
	}
	reuse := attempt
	reuse.Fingerprint[0]++
	_, _, err := store.Begin(ctx, key, reuse) // refused because of the other fingerprint
	require.NoError(t, err)
	rows, err := pool.Query(ctx, `SELECT user_id, endpoint, key, attempt, status, header, body,
		substring(header FROM '(?n)^Content-Type: (.*)$') AS media_type,
		created_at <= completed_at AS ordered, expires_at > now() + interval '59 minutes' AS kept, replays
		FROM `+tableName(opts)+` WHERE key = $1`, key.ID)
	require.NoError(t, err)
	got, err := pgx.CollectOneRow(rows, pgx.RowToMap)
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"user_id": "user 42", "endpoint": "POST /payments", "key": key.ID, "attempt": int32(1),
		"status": int32(201), "header": "Content-Type: application/json\n", "body": answer.Body,
		"media_type": "application/json",
		"ordered":    true, "kept": true, "replays": int64(2),
	}, got)

	omitted, claim := claimNewKey(t, store)
	require.NoError(t, claim.Complete(ctx, idempotency.Response{Status: 200, Omitted: true}, time.Hour))
	_, _, err = store.Begin(ctx, omitted, attempt) // there is no response to replay
	require.NoError(t, err)
	require.Zero(t, queryValue[int](t, pool, "SELECT replays FROM "+tableName(opts)+" WHERE key = $1", omitted.ID))
}

// operators.sql has statements to copy. After the grants, Check reports nothing. Each query runs, and the last one
// finds an operation by its ID.
func TestSQLForOperators(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("operators.sql")
	require.NoError(t, err)
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	claimFunction := pgx.Identifier{opts.Table + "_claim"}.Sanitize()
	role, limited := newRole(t, pool)
	statements := strings.Split(strings.NewReplacer(
		"idempotency_records_claim TO", claimFunction+" TO", "idempotency_records", tableName(opts), " shop", " "+role,
	).Replace(string(file)), ";\n")
	require.Len(t, statements, 8) // includes the job for pg_cron, and the text after the last semicolon

	execStatement(t, pool, "REVOKE ALL ON FUNCTION "+claimFunction+" FROM PUBLIC")
	require.Len(t, findMissingPrivileges(t, pgxstore.New(limited, opts), role), 5)
	for _, statement := range statements[:3] {
		execStatement(t, pool, statement)
	}
	require.Empty(t, findMissingPrivileges(t, pgxstore.New(limited, opts), role))
	limited.Reset()
	require.Equal(t, "0", queryValue[string](t, limited, "SHOW log_parameter_max_length"))

	var key idempotency.Key
	for range 20 {
		key = completeNewKey(t, pgxstore.New(pool, opts))
	}
	for _, query := range statements[3:6] {
		execStatement(t, pool, query)
	}
	query := strings.Replace(statements[5], "7d4c8a1e-3b52-8f60-9a41-5e2d7c9b0f13", key.OperationID().String(), 1)
	require.Equal(t, []string{key.ID}, queryColumn[string](t, pool, "SELECT key FROM ("+query+") shown"))
}

// Operations are distinguished by the bytes of their names, and the columns show these bytes.
func TestUnprintableKeys(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	for _, user := range []string{"a\x00b", "a\xffb", "a\uFFFDb", `a\xffb`} {
		_, claim, err := store.Begin(context.Background(), idempotency.Key{User: user, ID: "1"}, attempt)
		require.NoError(t, err)
		require.NotNil(t, claim, "%q is another user", user)
	}
	require.Equal(t, []string{`a\x00b`, `a\xffb`, `a\xef\xbf\xbdb`, `a\x5cxffb`},
		queryColumn[string](t, pool, "SELECT user_id FROM "+tableName(opts)))
}

// A table that was changed by hand causes an error at once, because retries until the deadline would hide it.
func TestTableThatCannotBeRead(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	direct := newPool(t, serverURL(t))
	pool, proxy := newProxiedPool(t, limitToOne)
	opts := newTable(t, direct, pgxstore.Options{})
	key := completeNewKey(t, pgxstore.New(direct, opts))
	execStatement(t, direct, "ALTER TABLE "+tableName(opts)+" ALTER attempt TYPE bigint USING 1::bigint << 40")
	before := proxy.Flights()
	_, _, err := pgxstore.New(pool, opts).Begin(ctx, key, attempt)
	require.ErrorContains(t, err, "attempt")
	if claim := testservice.InDoubt(err); claim != nil { // the reply could not be read
		require.ErrorIs(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
	}
	require.Less(t, proxy.Flights()-before, 10, "round trips, with those that connect and prepare statements")
}

// If another program's index prevents a record, the claim fails at once instead of retrying forever.
func TestUniqueIndexOfSomebodyElse(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	direct := newPool(t, serverURL(t))
	pool, proxy := newProxiedPool(t, limitToOne)
	for name, days := range map[string]int{"plain": 0, "partitions": 1} {
		opts := newTable(t, direct, pgxstore.Options{PartitionDays: days})
		table := tableName(opts)
		if days != 0 {
			completeNewKey(t, pgxstore.New(direct, opts))
			table = queryValue[string](t, direct, "SELECT tableoid::regclass::text FROM "+tableName(opts)+" LIMIT 1")
		}
		execStatement(t, direct, "CREATE UNIQUE INDEX ON "+table+" (endpoint, left(key, 1))")
		store := pgxstore.New(pool, opts)
		_, _, err := store.Begin(ctx, keyOf("x1"), attempt)
		require.NoError(t, err, name)
		before := proxy.Flights()
		_, _, err = store.Begin(ctx, keyOf("x2"), attempt)
		require.ErrorContains(t, err, "duplicate key", name)
		require.LessOrEqual(t, proxy.Flights()-before, 2, name)
	}
}

// A lease that has lapsed before the reply is reported as a lease, not as released.
func TestLeaseThatHasLapsed(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	lapsed := attempt
	lapsed.Lease = 0
	_, claim, err := store.Begin(context.Background(), keyOf("1"), lapsed)
	require.NoError(t, err)
	require.NotNil(t, claim)
}

// A new operation with the key of an expired one starts counting again.
func TestReplaysOfANewOperation(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{CountReplays: true}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	key := completeNewKey(t, store)
	record, _, err := store.Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.NotNil(t, record.Response)
	require.Equal(t, 1, queryValue[int](t, pool, "SELECT replays FROM "+tableName(opts)))
	set("2030-01-10 14:00:00+00")
	_, claim, err := store.Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Zero(t, queryValue[int](t, pool, "SELECT replays FROM "+tableName(opts)))
}

// A restored record has the number of the same attempt, because the numbers are used for fencing and must never
// decrease.
func TestRestoredAttempt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, days := range map[string]int{"plain": 0, "partitions": 1} {
		t.Run(name, func(t *testing.T) {
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			store := pgxstore.New(pool, opts)
			key, first := claimNewKey(t, store)
			require.NoError(t, first.Release(ctx, idempotency.Release{TTL: time.Hour}))
			second, claim, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			execStatement(t, pool, "DELETE FROM "+tableName(opts))
			require.ErrorIs(t, claim.Extend(ctx, time.Minute), idempotency.ErrRestored)
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			third, _, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.Equal(t, 3, third.Attempt)
			require.True(t, second.Created.Equal(third.Created))
		})
	}
}

// A first execution takes two round trips and a replay takes one, even if claims take a lock.
func TestRoundTripsOfLeases(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]pgxstore.Options{
		"plain": {}, "partitions": {PartitionDays: 1, SpareDays: 1}, "counted": {MaxUserRecords: 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, proxy := newProxiedPool(t, limitToOne)
			store := pgxstore.New(pool, newTable(t, newPool(t, serverURL(t)), opts))
			completeNewKey(t, store) // prepares the statements

			before := proxy.Flights()
			key := completeNewKey(t, store)
			require.Equal(t, 2, proxy.Flights()-before, "round trips of a first execution")

			before = proxy.Flights()
			record, _, err := store.Begin(context.Background(), key, attempt)
			require.NoError(t, err)
			require.NotNil(t, record.Response)
			require.Equal(t, 1, proxy.Flights()-before, "round trips of a replay")
		})
	}
}

func TestReplayWritesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, servertest.Postgres(t, "autovacuum=off").URL())
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key := completeNewKey(t, store)
	replay := func() (written int64) {
		before := readWALPosition(t, pool)
		for range 50 {
			record, _, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.NotNil(t, record.Response)
		}
		return readWALPosition(t, pool) - before
	}
	// The server sometimes writes a few bytes of its own.
	least := min(replay(), replay(), replay())
	require.Zero(t, least, "bytes of WAL for 50 replays")
}

// A completion finds room in the page and changes no index, so no index needs a vacuum.
func TestCompletionIsHeapOnly(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), limitToOne)
	opts := newTable(t, pool, pgxstore.Options{})
	const operations = 200
	for range operations {
		completeNewKey(t, pgxstore.New(pool, opts))
	}
	execStatement(t, pool, "SELECT pg_stat_force_next_flush()")
	hot := queryValue[int64](t, pool, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", opts.Table)
	require.Greater(t, hot, int64(operations*6/10))
}

// limitToOne limits a pool to one connection.
func limitToOne(c *pgxpool.Config) { c.MaxConns = 1 }

// newProxiedPool returns a pool whose connections run through a proxy. The wire has the text of a statement unless
// the statement is prepared.
func newProxiedPool(t testing.TB, changes ...func(*pgxpool.Config)) (*pgxpool.Pool, *servertest.Proxy) {
	t.Helper()
	serverURL(t)
	db, _ := startSharedServer()
	proxy := servertest.NewProxy(t, db.Addr())
	return newPool(t, db.URLAt(proxy.Addr()), changes...), proxy
}

// withRepeatableRead sets the default isolation level of a pool's sessions to a level other than read committed.
func withRepeatableRead(c *pgxpool.Config) {
	c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
}

func withoutPreparing(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }

// readWALPosition returns the bytes of write-ahead log that the server has written since its creation.
func readWALPosition(t testing.TB, pool *pgxpool.Pool) int64 {
	return queryValue[int64](t, pool, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
}

// Another session changes or creates a record after a claim has read and before it writes.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	const columns = `(operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until,
		expires_at, expires_minute)`
	for name, c := range map[string]struct {
		otherChange string // statement of the other session
		replayed    bool
		wantAttempt int // attempt of the claim; 0: no claim
	}{
		"renewed": {otherChange: "UPDATE %s SET lease_until = now() + interval '1 minute'"},
		"completed": {otherChange: "UPDATE %s SET lease_until = NULL, completed_at = now(), status = 201, body = '{}'",
			replayed: true},
		"taken": {otherChange: "UPDATE %s SET token = gen_random_uuid(), attempt = 2, lease_until = now() + interval '1 minute'"},
		"replaced": {
			otherChange: "UPDATE %s SET token = gen_random_uuid(), created_at = '2030-01-01', attempt = 5, lease_until = NULL",
			wantAttempt: 6,
		},
		"deleted": {otherChange: "DELETE FROM %s", wantAttempt: 1},
		"made":    {otherChange: "INSERT INTO %s " + columns + " SELECT " + columns[1:len(columns)-1] + " FROM former"},
	} {
		for kind, opts := range map[string]pgxstore.Options{"plain": {}, "partitions": {PartitionDays: 1, SpareDays: 1}} {
			if name == "made" && kind == "partitions" {
				continue // claims run one after the other there
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				ctx := context.Background()
				pool := newPool(t, serverURL(t))
				opts := newTable(t, pool, opts)
				store := pgxstore.New(pool, opts)
				key, _ := claimNewKey(t, store)
				execStatement(t, pool, "UPDATE "+tableName(opts)+" SET lease_until = now() - interval '1 second'")

				other, err := pool.Begin(ctx)
				require.NoError(t, err)
				defer func() { _ = other.Rollback(ctx) }() // even if the test fails, because the pool waits for its connections
				if name == "made" {
					_, err = other.Exec(ctx, "CREATE TEMP TABLE former ON COMMIT DROP AS SELECT * FROM "+tableName(opts))
					require.NoError(t, err)
					_, err = other.Exec(ctx, "UPDATE former SET lease_until = now() + interval '1 minute'")
					require.NoError(t, err)
					execStatement(t, pool, "DELETE FROM "+tableName(opts))
				}
				_, err = other.Exec(ctx, fmt.Sprintf(c.otherChange, tableName(opts)))
				require.NoError(t, err)

				again := attempt
				again.TakeOver = true
				type outcome struct {
					record idempotency.Record
					claim  idempotency.Claim
					err    error
				}
				begun := make(chan outcome, 1)
				go func() {
					record, claim, err := store.Begin(ctx, key, again)
					begun <- outcome{record, claim, err}
				}()
				waitForLock(t, pool, opts)
				require.NoError(t, other.Commit(ctx))

				got := <-begun
				require.NoError(t, got.err)
				require.Equal(t, c.replayed, got.record.Response != nil)
				require.Equal(t, c.wantAttempt != 0, got.claim != nil)
				if got.claim == nil && !c.replayed {
					require.Greater(t, got.record.LeaseLeft, 50*time.Second, "it is running")
				}
				if got.claim != nil {
					require.Equal(t, c.wantAttempt, got.record.Attempt)
					require.NoError(t, got.claim.Complete(ctx, answer, time.Hour))
					created := queryValue[time.Time](t, pool, "SELECT created_at FROM "+tableName(opts))
					require.True(t, created.Equal(got.record.Created))
				}
			})
		}
	}
}

// A restored record lasts as long as the call requires, however short its first lease was. One statement restores
// the record, so no other state is ever visible.
func TestRestoredInOneStatement(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	direct := newPool(t, serverURL(t))
	fleeting := attempt
	fleeting.Lease, fleeting.TTL, fleeting.TakeOver = time.Microsecond, time.Microsecond, true
	for name, opts := range map[string]pgxstore.Options{"plain": {}, "partitions": {PartitionDays: 1, SpareDays: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, proxy := newProxiedPool(t, limitToOne)
			opts := newTable(t, direct, opts)
			store := pgxstore.New(pool, opts)
			for _, gone := range []string{"SELECT FROM ", "DELETE FROM "} { // the record has expired in both cases
				for _, step := range []func(idempotency.Claim) error{
					func(c idempotency.Claim) error { return c.Extend(ctx, time.Hour) },
					func(c idempotency.Claim) error { return c.Complete(ctx, answer, time.Hour) },
				} {
					var trips int
					for range 2 { // the first run prepares the statements
						key := keyOf(uuid.NewString())
						own, claim, err := store.Begin(ctx, key, fleeting)
						require.NoError(t, err)
						execStatement(t, direct, gone+tableName(opts)+" WHERE key = $1", key.ID)
						before := proxy.Flights()
						require.ErrorIs(t, step(claim), idempotency.ErrRestored)
						trips = proxy.Flights() - before

						seen, second, err := store.Begin(ctx, key, attempt)
						require.NoError(t, err)
						require.Nil(t, second)
						require.True(t, own.Created.Equal(seen.Created))
						require.Equal(t, 1, seen.Attempt)
						require.Equal(t, seen.Response == nil, seen.LeaseLeft > 59*time.Minute)
						require.True(t, queryValue[bool](t, direct, `SELECT expires_at > now() + interval '59 minutes' AND
							expires_minute = date_bin('1 minute', expires_at, 'epoch') FROM `+tableName(opts)+" WHERE key = $1", key.ID))
					}
					require.Equal(t, 2, trips, "the step, and the statement that restores")
				}
			}
		})
	}
}

// Two claims of a key were forgotten. The earlier claim is not restored, because the key has been claimed since.
func TestRestoredBehindALaterClaim(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, days := range map[string]int{"plain": 0, "partitions": 2} {
		for first, ttl := range map[string]time.Duration{"lapsed": time.Hour, "expired": time.Microsecond} {
			t.Run(name+"/"+first, func(t *testing.T) {
				store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{PartitionDays: days}))
				fleeting := attempt
				fleeting.Lease, fleeting.TTL, fleeting.TakeOver = time.Microsecond, ttl, true
				_, early, err := store.Begin(ctx, keyOf("1"), fleeting)
				require.NoError(t, err)
				fleeting.TTL = time.Microsecond
				second, late, err := store.Begin(ctx, keyOf("1"), fleeting)
				require.NoError(t, err)
				require.Equal(t, map[string]int{"lapsed": 2, "expired": 1}[first], second.Attempt)

				require.ErrorIs(t, early.Extend(ctx, time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, early.Complete(ctx, answer, time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, late.Extend(ctx, time.Hour), idempotency.ErrRestored)
				require.ErrorIs(t, early.Extend(ctx, time.Hour), idempotency.ErrClaimLost)
				require.NoError(t, late.Release(ctx, idempotency.Release{TTL: time.Hour}))
				third, _, err := store.Begin(ctx, keyOf("1"), attempt)
				require.NoError(t, err)
				require.Equal(t, second.Attempt+1, third.Attempt)
			})
		}
	}
}

// A restoration with a lost reply is found, and a late restoration changes nothing.
func TestLostRestoration(t *testing.T) {
	t.Parallel()
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		for _, fault := range []servertest.Fault{servertest.LoseRequest, servertest.LoseReply, servertest.HoldReply} {
			for name, step := range map[string]func(context.Context, idempotency.Claim) error{
				"extend":   func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Hour) },
				"complete": func(ctx context.Context, c idempotency.Claim) error { return c.Complete(ctx, answer, time.Hour) },
			} {
				t.Run(form+"/"+string(fault)+"/"+name, func(t *testing.T) {
					t.Parallel()
					direct := newPool(t, serverURL(t))
					pool, proxy := newProxiedPool(t, withoutPreparing)
					opts := newTable(t, direct, pgxstore.Options{PartitionDays: days})
					key, claim := claimNewKey(t, pgxstore.New(pool, opts))
					execStatement(t, direct, "DELETE FROM "+tableName(opts))
					proxy.Inject(servertest.Rule{Fault: fault, Pattern: "idempotency: restore"})
					ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
					defer cancel()
					if err := step(ctx, claim); name != "complete" || fault == servertest.LoseRequest || err != nil {
						require.ErrorIs(t, err, idempotency.ErrRestored)
					}
					require.Equal(t, 1, proxy.Strikes())
					before := dumpRecord(t, direct, opts, key)
					proxy.Release()
					require.Equal(t, before, dumpRecord(t, direct, opts, key))
					require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
				})
			}
		}
	}
}
