package pgxstore_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

func TestInspectorConformance(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	bouncer := newPool(t, startPgBouncer(t), withoutPreparing)
	plain := func(store idempotency.Store) idempotency.Store { return store }
	for name, test := range map[string]struct {
		pool  *pgxpool.Pool
		opts  pgxstore.Options
		outer func(idempotency.Store) idempotency.Store
	}{
		"plain":                 {direct, pgxstore.Options{}, plain},
		"digests in partitions": {direct, pgxstore.Options{DigestNames: true, PartitionDays: 3}, plain},
		"cached, sealed, pgbouncer, a schema": {bouncer, pgxstore.Options{Schema: "inspected"},
			func(store idempotency.Store) idempotency.Store {
				return cache.New(mustSeal(t, store, nil), cache.Options{})
			}},
	} {
		opts := newTable(t, direct, test.opts)
		store := pgxstore.New(test.pool, opts)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStore := func(*testing.T) idempotency.Store { return test.outer(store) }
			idempotencytest.RunInspector(t, newStore)
			idempotencytest.RunResolver(t, newStore)
			testservice.CheckStatus(t, newStore(t))
		})
	}
}

// The records of a user are found in both forms of names, and an entry shows only the names in the table.
func TestListByUser(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	own := map[bool]idempotency.Key{}
	for digests, user := range map[bool]string{false: "alice", true: "alice"} {
		store := pgxstore.New(pool, withDigests(opts, digests))
		for _, user := range []string{user, "bob", "a\x00b"} {
			key := idempotency.Key{User: user, Endpoint: "POST /payments", ID: uuid.NewString()}
			completeKey(t, store, key, time.Hour)
			if user == "alice" {
				own[digests] = key
			}
		}
	}
	for _, digests := range []bool{false, true} {
		table := pgxstore.NewTable(pool, withDigests(opts, digests))
		listing, err := table.List(ctx, idempotency.ListRequest{User: "alice"})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 2)
		require.Equal(t, 2, listing.Totals[idempotency.StateCompleted].Records)
		for _, entry := range listing.Entries {
			hidden := entry.Key == idempotency.Key{}
			require.Equal(t, own[hidden].OperationID(), entry.Operation)
			if !hidden {
				require.Equal(t, own[false], entry.Key)
			}
			for _, inspect := range []func() (idempotency.Entry, error){
				func() (idempotency.Entry, error) { return table.Inspect(ctx, own[hidden]) },
				func() (idempotency.Entry, error) { return table.InspectOperation(ctx, entry.Operation) },
			} {
				inspected, err := inspect()
				require.NoError(t, err)
				require.Equal(t, entry.Key, inspected.Key)
				require.Equal(t, entry.Size, inspected.Size)
				require.Equal(t, entry.Created, inspected.Created)
			}
		}
		listing, err = table.List(ctx, idempotency.ListRequest{User: "a\x00b"})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 2, "a name that PostgreSQL cannot hold as it is")
		for _, entry := range listing.Entries {
			inspected, err := table.InspectOperation(ctx, entry.Operation)
			require.NoError(t, err)
			require.Equal(t, entry.Key, inspected.Key)
			require.Contains(t, []string{"", "a\x00b"}, entry.Key.User)
		}
		users, err := table.LargestUsers(ctx, 10)
		require.NoError(t, err)
		require.Len(t, users, 6, "each form is counted for itself")
		require.True(t, slices.ContainsFunc(users, func(u pgxstore.UserTotal) bool { return u.User == "a\x00b" }))
	}
}

func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		rowtest.UnreadableRecords(t, newSubject(pool, opts, store), []string{
			"fingerprint = 'short'", "attempt = 0", "attempt = 2147483647", "completed_at = NULL", "status = NULL",
			"status = 199", "status = 1000", "lease_until = 'infinity'", "lease_until = '-infinity'",
		})
		key := keyOf("forgotten")
		completeKey(t, store, key, time.Hour)
		forgeRecord(t, pool, opts, key, "header = 'no end of line'")
		entry, err := store.Inspect(ctx, key)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.NoError(t, store.Forget(ctx, entry), "a record that blocks its key can be forgotten")

		key = keyOf("moved")
		completeKey(t, store, key, time.Hour)
		forgeRecord(t, pool, opts, key, "user_id = 'mallory'")
		_, err = store.Inspect(ctx, key)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		_, err = store.InspectOperation(ctx, key.OperationID())
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		listing, err := store.List(ctx, idempotency.ListRequest{User: "mallory"})
		require.NoError(t, err)
		require.Zero(t, listing.Entries[0].Key, "nobody is told that it is mallory's")
	})
}

// Sizes and order need no answers, not even in compressed form. The list stays the same after the answers have gone,
// which PostgreSQL stores in a separate table.
func TestListReadsNoAnswers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	for i := range 3 {
		key := keyOf(fmt.Sprint(i))
		_, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		large := answer
		large.Note = "a note"
		large.Body = []byte(strings.Repeat("0123456789abcdef", 20_000*(i+1)))
		require.NoError(t, claim.Complete(ctx, large, time.Hour))
	}
	request := idempotency.ListRequest{Order: idempotency.LargestFirst, Limit: 2}
	before, err := store.List(ctx, request)
	require.NoError(t, err)
	require.Len(t, before.Entries, 2)
	require.Equal(t, "a note", before.Entries[0].Note)
	require.Greater(t, before.Entries[0].Size, int64(960_000), "as it is replayed, not as it is compressed")
	require.Greater(t, before.Entries[1].Size, int64(640_000))
	require.Equal(t, 3, before.Totals[idempotency.StateCompleted].Records)

	toast := queryValue[string](t, pool, "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = $1::text::regclass",
		tableName(opts))
	execStatement(t, pool, "CREATE EXTENSION IF NOT EXISTS pg_surgery")
	execStatement(t, pool, "SELECT heap_force_kill($1::text::regclass, ARRAY(SELECT ctid FROM "+toast+"))", toast)
	_, err = store.Inspect(ctx, keyOf("2"))
	require.Error(t, err, "the answers are gone")
	after, err := store.List(ctx, request)
	require.NoError(t, err)
	for i := range after.Entries {
		after.Entries[i].Remaining = before.Entries[i].Remaining
	}
	require.Equal(t, before, after)
}

func TestListPages(t *testing.T) {
	t.Parallel()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		rowtest.ListPages(t, store, func(keys []string) {
			for _, key := range keys {
				forgeRecord(t, pool, opts, keyOf(key), "created_at = '2023-11-14 22:13:20+00'")
			}
		})
	})
}

func TestListByNames(t *testing.T) {
	t.Parallel()
	testEachForm(t, func(t *testing.T, _ *pgxpool.Pool, _ pgxstore.Options, store *pgxstore.Store) {
		rowtest.ListByNames(t, store, "pgxstore")
	})
}

func TestListEach(t *testing.T) {
	t.Parallel()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		rowtest.ListEach(t, store)
		simple := newPool(t, serverURL(t), func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		})
		var keys []idempotency.Key
		listing, err := pgxstore.NewTable(simple, opts).List(t.Context(), idempotency.ListRequest{
			User: "u", Endpoint: "e", Since: time.Unix(1, 1), Before: time.Now().Add(time.Hour),
			Each: func(e idempotency.Entry) error {
				keys = append(keys, e.Key)
				return nil
			},
		})
		require.NoError(t, err)
		require.Equal(t, len(keys), listing.Totals[idempotency.StateCompleted].Records)
		require.Positive(t, len(keys))
	})
}

// List finds names in both forms, see DigestNames, but never mixes the forms: a user whose name is the digest of another
// user's name is not that user.
func TestListByNamesInBothForms(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	plain, digested := pgxstore.New(pool, opts), pgxstore.New(pool, withDigests(opts, true))
	alice := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "plain"}
	hidden := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "hidden"}
	imposter := idempotency.Key{User: digestParts(alice)[0], Endpoint: "POST /payments", ID: digestParts(alice)[2]}
	completeKey(t, plain, alice, time.Hour)
	completeKey(t, digested, hidden, time.Hour)
	completeKey(t, plain, imposter, time.Hour)
	for _, c := range []struct {
		request idempotency.ListRequest
		want    []idempotency.Key
	}{
		{idempotency.ListRequest{User: "alice"}, []idempotency.Key{hidden, alice}},
		{idempotency.ListRequest{Endpoint: "POST /payments"}, []idempotency.Key{imposter, hidden, alice}},
		{idempotency.ListRequest{ID: "plain"}, []idempotency.Key{alice}},
		{idempotency.ListRequest{ID: "hidden"}, []idempotency.Key{hidden}},
		{idempotency.ListRequest{User: "alice", Endpoint: "POST /payments", ID: "hidden"}, []idempotency.Key{hidden}},
		{idempotency.ListRequest{User: imposter.User}, []idempotency.Key{imposter, hidden}}, // a digest can be asked for
		{idempotency.ListRequest{User: "alice", ID: imposter.ID}, nil},
		{idempotency.ListRequest{Endpoint: "post /payments"}, nil},
	} {
		for _, store := range []*pgxstore.Store{plain, digested} {
			listing, err := store.List(t.Context(), c.request)
			require.NoError(t, err)
			var got, want []uuid.UUID
			for _, e := range listing.Entries {
				got = append(got, e.Operation)
			}
			for _, key := range c.want {
				want = append(want, key.OperationID())
			}
			require.Equal(t, want, got)
			require.Equal(t, len(want), listing.Totals[idempotency.StateCompleted].Records)
		}
	}
}

// A role with SELECT alone can inspect and list. Forget also needs DELETE, and Resolve also needs UPDATE.
func TestInspectAsAReader(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		key, claim := claimNewKey(t, store)
		t.Cleanup(func() { _ = claim.Release(ctx, idempotency.Release{TTL: 0}) })
		role := "reader_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		execStatement(t, pool, "CREATE ROLE "+role+" LOGIN PASSWORD 'read'; GRANT SELECT ON "+tableName(opts)+" TO "+role)
		reader := pgxstore.NewTable(newPool(t, withUser(t, serverURL(t), role, "read")), opts)
		entry, err := reader.Inspect(ctx, key)
		require.NoError(t, err)
		require.Equal(t, idempotency.StateRunning, entry.State)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour))
		listing, err := reader.List(ctx, idempotency.ListRequest{})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 1)
		_, err = reader.LargestUsers(ctx, 1)
		require.NoError(t, err)
		entry, err = reader.Inspect(ctx, key)
		require.NoError(t, err)
		require.ErrorContains(t, reader.Forget(ctx, entry), "permission denied")
		execStatement(t, pool, "GRANT DELETE ON "+tableName(opts)+" TO "+role)
		require.NoError(t, reader.Forget(ctx, entry))

		key, entry = abandonKey(t, pool, opts)
		require.ErrorContains(t, reader.Resolve(ctx, entry, happened), "permission denied")
		execStatement(t, pool, "REVOKE DELETE ON "+tableName(opts)+" FROM "+role+"; GRANT UPDATE ON "+tableName(opts)+" TO "+role)
		later := happened
		later.TTL = 25 * time.Hour // moves the record to another partition
		require.NoError(t, reader.Resolve(ctx, entry, later))
		requireReplay(t, store, key)
	})
}

// withUser returns the URL with another user.
func withUser(t testing.TB, address, user, password string) string {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

// Each statement works in every mode of pgx, behind PgBouncer, and in a schema outside of the search path.
func TestInspectInEveryMode(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	direct := newPool(t, serverURL(t))
	execStatement(t, direct, `CREATE SCHEMA "of its own"`)
	pools := map[string]*pgxpool.Pool{"pgbouncer": newPool(t, startPgBouncer(t), withoutPreparing)}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		pools[mode.String()] = newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
	}
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			opts := newTable(t, direct, pgxstore.Options{Schema: "of its own", PartitionDays: 1})
			store := pgxstore.New(pool, opts)
			key := completeNewKey(t, store)
			entry, err := store.Inspect(ctx, key)
			require.NoError(t, err)
			listing, err := store.List(ctx, idempotency.ListRequest{
				States: []idempotency.State{idempotency.StateCompleted}, User: key.User, Order: idempotency.LargestFirst, Limit: 1,
			})
			require.NoError(t, err)
			require.Equal(t, entry.Created, listing.Entries[0].Created)
			users, err := store.LargestUsers(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, []pgxstore.UserTotal{{User: key.User, Total: listing.Totals[idempotency.StateCompleted]}}, users)
			require.NoError(t, store.Forget(ctx, entry))
			_, err = store.Inspect(ctx, key)
			require.ErrorIs(t, err, idempotency.ErrNoRecord)

			_, entry = abandonKey(t, pool, opts)
			require.NoError(t, store.Resolve(ctx, entry, notHappened))
			_, entry = abandonKey(t, pool, opts)
			require.NoError(t, store.Resolve(ctx, entry, happened))
			after := entry
			listing, err = store.List(ctx, idempotency.ListRequest{Order: idempotency.OldestFirst, Limit: 1, After: &after})
			require.NoError(t, err)
			require.Empty(t, listing.Entries)
		})
	}
}

// A standby shows the committed records.
func TestInspectAStandby(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key := completeNewKey(t, store)
	require.NoError(t, db.Standby())
	entry, err := store.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, &answer, entry.Response)
	require.Error(t, store.Forget(t.Context(), entry))
}

func TestInspectWithFaultyOptions(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "postgres://nobody@127.0.0.1:1/none")
	table := pgxstore.NewTable(pool, pgxstore.Options{FillFactor: 1})
	_, err := table.Inspect(t.Context(), keyOf("1"))
	require.ErrorContains(t, err, "FillFactor")
	require.ErrorContains(t, table.Forget(t.Context(), idempotency.Entry{}), "FillFactor")
	require.ErrorContains(t, table.Resolve(t.Context(), idempotency.Entry{}, happened), "FillFactor")
	_, err = table.List(t.Context(), idempotency.ListRequest{})
	require.ErrorContains(t, err, "FillFactor")
	_, err = table.LargestUsers(t.Context(), 1)
	require.ErrorContains(t, err, "FillFactor")
	_, err = pgxstore.NewTable(pool, pgxstore.Options{}).List(t.Context(), idempotency.ListRequest{Limit: -1})
	require.ErrorContains(t, err, "Limit")
}
