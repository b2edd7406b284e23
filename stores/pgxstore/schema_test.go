package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// findUnsafeSettings returns the names of the settings that Check reports, and requires that Check reports nothing
// else.
func findUnsafeSettings(t testing.TB, store interface{ Check(context.Context) error }) (names []string) {
	t.Helper()
	err := store.Check(t.Context())
	if err == nil {
		return nil
	}
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
		finding, ok := errors.AsType[*idempotency.UnsafeSetting](err)
		require.True(t, ok, "not a setting: %v", err)
		require.NotEmpty(t, finding.Risk)
		names = append(names, finding.Setting)
	}
	return names
}

// onlyFsync is the unsafe setting of the shared server.
var onlyFsync = []string{"fsync"}

func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, opts := range map[string]pgxstore.Options{
		"own schema and table": {Schema: `own "schema"`, Table: "own table"},
		"partitions":           {Schema: `own "schema"`, Table: "by day", PartitionDays: 3},
	} {
		t.Run(name, func(t *testing.T) {
			var instances sync.WaitGroup
			for range 4 {
				instances.Go(func() {
					if err := pgxstore.Migrate(ctx, pool, opts); err != nil {
						t.Error(err)
					}
				})
			}
			instances.Wait()
			store := pgxstore.New(pool, opts)
			key := completeNewKey(t, store)

			require.NoError(t, pgxstore.Migrate(ctx, pool, opts), "again")
			for _, m := range pgxstore.Migrations(opts) {
				execStatement(t, pool, m.SQL) // another tool applies the migration again
			}
			record, _, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.NotNil(t, record.Response, "the records are still there")
		})
	}
}

// Many instances start at the same time, with every isolation level of their sessions.
func TestMigrateOnSessionsOfAnotherLevel(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), withRepeatableRead)
	for i := range 5 {
		opts := pgxstore.Options{Table: fmt.Sprintf("start %d", i), PartitionDays: 10}
		var instances sync.WaitGroup
		for range 8 {
			instances.Go(func() {
				if err := pgxstore.Migrate(context.Background(), pool, opts); err != nil {
					t.Error(err)
				}
			})
		}
		instances.Wait()
	}
}

// Options that the server would refuse, or would silently change, are refused at once, with all faults together.
func TestFaultyOptions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	faulty := pgxstore.Options{
		Table: strings.Repeat("x", 60), PartitionDays: -1, Isolation: "SERIALIZABLE", IdleTimeout: 25 * 24 * time.Hour,
		FillFactor: 5,
	}
	_, _, leased := pgxstore.New(pool, faulty).Begin(ctx, keyOf("1"), attempt)
	_, made := idempotency.New(pgxstore.New(pool, faulty), idempotency.SingleUser, idempotency.Options{})
	for what, err := range map[string]error{
		"migrate": pgxstore.Migrate(ctx, pool, faulty), "check": pgxstore.NewTable(pool, faulty).Check(ctx),
		"store": leased, "middleware": made,
	} {
		for _, fault := range []string{
			"too long", "less than zero", "FillFactor is 5, not from 10 to 100", `Isolation is "SERIALIZABLE"`,
			"needs the isolation level", "IdleTimeout is 600h0m0s",
		} {
			require.ErrorContains(t, err, fault, what)
		}
	}
	for _, timeout := range []time.Duration{-1, 25 * 24 * time.Hour} {
		require.Error(t, pgxstore.Migrate(ctx, pool, pgxstore.Options{IdleTimeout: timeout}), timeout)
	}
}

// idempotency.New fails if the store could serve no request.
func TestOptionsThatNeverWork(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for name, test := range map[string]struct {
		store *pgxstore.Store
		ttl   time.Duration
		fault string
	}{
		"no pool": {pgxstore.New(nil, pgxstore.Options{}), time.Hour, "the pool is nil"},
		"fewer days than the TTL": {pgxstore.New(pool, pgxstore.Options{PartitionDays: 1}), 25 * time.Hour,
			"PartitionDays is 1, too few"},
		"enough days":   {pgxstore.New(pool, pgxstore.Options{PartitionDays: 2}), 25 * time.Hour, ""},
		"no partitions": {pgxstore.New(pool, pgxstore.Options{}), 25 * time.Hour, ""},
	} {
		_, err := idempotency.NewRunner(test.store, idempotency.RunnerOptions{TTL: test.ttl})
		if test.fault == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, test.fault, name)
	}
}

// A store whose options differ from those of the table fails instead of doing something unsafe.
func TestMismatchOfTableAndOptions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, days := range map[string][2]int{"divided": {1, 0}, "plain": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			made := newTable(t, pool, pgxstore.Options{PartitionDays: days[0]})
			told := made
			told.PartitionDays = days[1]
			_, _, err := pgxstore.New(pool, told).Begin(ctx, keyOf("1"), attempt)
			require.ErrorContains(t, err, "does not exist") // the function of claims
			require.ErrorContains(t, pgxstore.New(pool, told).Check(ctx), "PartitionDays")
			require.ErrorContains(t, pgxstore.Migrate(ctx, pool, told), "PartitionDays")
			for _, m := range pgxstore.Migrations(told) {
				_, err := pool.Exec(ctx, m.SQL) // applies the migration as another tool
				require.ErrorContains(t, err, "PartitionDays")
			}
			require.Equal(t, onlyFsync, findUnsafeSettings(t, pgxstore.New(pool, made)), "nothing was changed")
			completeNewKey(t, pgxstore.New(pool, made))

			execStatement(t, pool, "ALTER TABLE "+tableName(made)+` RENAME TO "former `+made.Table+`"`)
			require.NoError(t, pgxstore.Migrate(ctx, pool, told), "a new table, with the other options")
			completeNewKey(t, pgxstore.New(pool, told))
			_, _, err = pgxstore.New(pool, made).Begin(ctx, keyOf("1"), attempt)
			require.ErrorContains(t, err, "does not exist", "what still has the former options is stopped")
		})
	}
}

// Migrate creates the missing function of claims beside the table, wherever the table is.
func TestMissingFunction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, days := range map[string]int{"plain": 0, "partitions": 2} {
		for where, lose := range map[string]string{
			"dropped":           `DROP FUNCTION "%[1]s_claim%[2]s"`,
			"table moved":       `ALTER TABLE "%[1]s" SET SCHEMA later`,
			"in a later schema": `ALTER TABLE "%[1]s" SET SCHEMA later`,
		} {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t))
				opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
				execStatement(t, pool, "CREATE SCHEMA IF NOT EXISTS later")
				key := completeNewKey(t, pgxstore.New(pool, opts))
				execStatement(t, pool, fmt.Sprintf(lose, opts.Table, map[int]string{0: "", 2: "_day"}[days]))
				switch where {
				case "table moved":
					opts.Schema = "later"
				case "in a later schema":
					pool = newPool(t, serverURL(t), func(c *pgxpool.Config) {
						c.ConnConfig.RuntimeParams["search_path"] = "public, later"
					})
				}
				store := pgxstore.New(pool, opts)
				require.ErrorContains(t, store.Check(ctx), "call Migrate")
				require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
				require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
				record, _, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NotNil(t, record.Response, "it is the same table")
				completeNewKey(t, store)
				if days != 0 {
					opts.PartitionDays++
					require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
					require.Equal(t, queryValue[string](t, pool,
						"SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = $1",
						opts.Table), queryValue[string](t, pool, `SELECT relnamespace::regnamespace::text FROM pg_class
						WHERE relkind = 'r' AND starts_with(relname, $1) ORDER BY relname DESC LIMIT 1`, opts.Table+"_"))
				}
			})
		}
	}
}

// Every name that PostgreSQL accepts works.
func TestNames(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for _, name := range []string{
		"a$$b", "a%sb", "\u00fc\"x'", "{now}", "q$1", "a.b", `a\b`, "x_claim", strings.Repeat("x", 53),
	} {
		for _, days := range []int{0, 1} {
			opts := pgxstore.Options{Schema: fmt.Sprintf("names '%d'", days), Table: name, PartitionDays: days}
			require.NoError(t, pgxstore.Migrate(ctx, pool, opts), name)
			for _, m := range pgxstore.Migrations(opts) {
				execStatement(t, pool, m.SQL)
			}
			store := pgxstore.New(pool, opts)
			require.Equal(t, onlyFsync, findUnsafeSettings(t, store), name)
			completeNewKey(t, store)
			require.NoError(t, store.Maintain(ctx), name)
		}
	}
}

// Without its index, Maintain would read the whole table. Migrate fails if the name of the index is taken.
func TestNameOfTheIndexIsTaken(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := pgxstore.Options{Schema: "taken", Table: "records"}
	execStatement(t, pool, "DROP SCHEMA IF EXISTS taken CASCADE; CREATE SCHEMA taken; CREATE TABLE taken.records_expires ()")
	require.ErrorContains(t, pgxstore.Migrate(context.Background(), pool, opts), "records_expires")
	execStatement(t, pool, "DROP TABLE taken.records_expires")
	require.NoError(t, pgxstore.Migrate(context.Background(), pool, opts))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := servertest.Postgres(t, "fsync=on")
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	require.NoError(t, store.Check(ctx))

	days := newTable(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1})
	require.NoError(t, pgxstore.New(pool, days).Check(ctx))
	days.PartitionDays = 9
	err := pgxstore.New(pool, days).Check(ctx)
	require.ErrorContains(t, err, "partitions for only 3 days")
	unready, ok := errors.AsType[*pgxstore.UnreadyTable](err)
	require.True(t, ok)
	require.Equal(t, tableName(days), unready.Table)
	require.Equal(t, "call Maintain every day", unready.Remedy)

	readOnly := newPool(t, db.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	require.Equal(t, []string{"default_transaction_read_only"}, findUnsafeSettings(t, pgxstore.New(readOnly, opts)))

	for _, table := range []string{tableName(opts), partitionName(days, time.Now().UTC().Format("20060102"))} {
		execStatement(t, pool, "ALTER TABLE "+table+" SET UNLOGGED")
	}
	days.PartitionDays = 1
	require.ErrorContains(t, store.Check(ctx), "is unlogged: a crash empties the table")
	require.Len(t, findUnsafeSettings(t, store), 1)
	require.Len(t, findUnsafeSettings(t, pgxstore.New(pool, days)), 1, "one of the days")

	unsafe := servertest.Postgres(t, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	pool = newPool(t, unsafe.URL())
	store = pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	require.Equal(t, []string{"synchronous_commit", "fsync", "full_page_writes"}, findUnsafeSettings(t, store))
	require.ErrorContains(t, store.Check(ctx), unsafe.Addr()+": fsync is off: a crash of the machine loses records")
	require.NoError(t, unsafe.Standby())
	pool.Reset()
	require.Contains(t, findUnsafeSettings(t, store), "in_hot_standby")

	unsafe.Stop()
	err = store.Check(ctx)
	require.ErrorContains(t, err, "pgxstore: check")
	_, isSetting := errors.AsType[*idempotency.UnsafeSetting](err)
	require.False(t, isSetting)
}

// Check identifies a server that is too old, and sends it no statement that it may not know.
func TestCheckOfAnOldServer(t *testing.T) {
	t.Parallel()
	var sent statementLog
	old := newPool(t, (&interceptor{parameterStatus: withVersion("13.23"), editStatement: sent.addStatement}).interceptedURL(t))
	err := pgxstore.New(old, pgxstore.Options{PartitionDays: 1}).Check(t.Context())
	require.ErrorIs(t, err, pgxstore.ErrEngine)
	require.Len(t, idempotency.Findings(err), 1)
	require.Empty(t, sent.joinStatements())
}

// Check names each missing part, and says what to do.
func TestCheckOfTheTable(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for _, days := range []int{0, 1} {
		for change, problem := range map[string]string{
			"DROP TABLE {table}":                             "there is no table {table}: call Migrate",
			"COMMENT ON TABLE {table} IS NULL":               "table {table} has no comment with its version: call Migrate",
			`DROP FUNCTION "{function}"`:                     "table {table} lacks its function {function}: call Migrate",
			"COMMENT ON TABLE {table} IS '{0}'":              "table {table} has version 0, not 1: call Migrate",
			"COMMENT ON TABLE {table} IS 'mine'":             `the comment of table {table} is "mine", not "idempotency records, version %d"`,
			"COMMENT ON TABLE {table} IS '{99}'":             "table {table} has version 99, newer than 1: use a newer version of pgxstore",
			"ALTER TABLE {table} DROP trailer, DROP replays": "table {table} lacks the columns trailer, replays",
			`ALTER TABLE {table} ADD tenant int NOT NULL, ADD "a b" int NOT NULL, ADD c int, ADD d int NOT NULL DEFAULT 1,
				{identity} ADD f int NOT NULL; ALTER TABLE {table} DROP f`: //
			"table {table} has the columns tenant, a b, which the store does not fill: give them a default, or allow null",
		} {
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			names := strings.NewReplacer("{table}", tableName(opts), "{0}", "idempotency records, version 0",
				"{99}", "idempotency records, version 99",
				"{identity}", map[int]string{0: "ADD e int NOT NULL GENERATED ALWAYS AS IDENTITY,", 1: ""}[days],
				"{function}", opts.Table+map[int]string{0: "_claim", 1: "_claim_day"}[days])
			execStatement(t, pool, names.Replace(change))
			store := pgxstore.NewTable(pool, opts)
			unready, ok := errors.AsType[*pgxstore.UnreadyTable](store.Check(ctx))
			require.True(t, ok, change)
			require.EqualError(t, unready, "pgxstore: "+names.Replace(problem))
			require.Equal(t, tableName(opts), unready.Table)
			if unready.Remedy == "call Migrate" {
				require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
				require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
			} else {
				require.EqualError(t, pgxstore.Migrate(ctx, pool, opts), "pgxstore: migrate: "+unready.Error())
			}
		}
	}
}

// Migrate refuses a table of another program with the same name.
func TestMigrateOfAnotherTable(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := pgxstore.Options{Table: "somebody's"}
	execStatement(t, pool, "DROP TABLE IF EXISTS "+tableName(opts))
	execStatement(t, pool, "CREATE TABLE "+tableName(opts)+" (operation uuid PRIMARY KEY, expires_minute timestamptz)")
	require.ErrorContains(t, pgxstore.Migrate(ctx, pool, opts), "lacks the columns fingerprint, ")
	require.ErrorContains(t, pgxstore.NewTable(pool, opts).Check(ctx), "has no comment", "nothing was changed")
}

// Check reports a shortage of future days before they run out.
func TestCheckOfPartitions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 3}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	set("2030-01-11 12:00:00+00")
	require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
	set("2030-01-12 12:00:00+00")
	require.ErrorContains(t, store.Check(ctx), "has partitions for only 3 days")
	set("2030-01-10 12:00:00+00")
	execStatement(t, pool, "DROP TABLE "+partitionName(opts, "20300111"))
	require.ErrorContains(t, store.Check(ctx), "has partitions for only 1 days", "what comes after a gap does not count")
}

// newRole creates a role, and returns its name and a pool of its sessions.
func newRole(t testing.TB, pool *pgxpool.Pool) (string, *pgxpool.Pool) {
	t.Helper()
	role := fmt.Sprintf("role_%d", tableCount.Add(1))
	execStatement(t, pool, "CREATE ROLE "+role+" LOGIN PASSWORD '"+pool.Config().ConnConfig.Password+"'")
	return role, newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.User = role })
}

// findMissingPrivileges returns the missing privileges that Check reports, in the form of GRANT.
func findMissingPrivileges(t testing.TB, store interface{ Check(context.Context) error }, role string) (privileges []string) {
	t.Helper()
	for _, err := range store.Check(t.Context()).(interface{ Unwrap() []error }).Unwrap() {
		if lack, ok := errors.AsType[*pgxstore.MissingPrivilege](err); ok {
			require.Equal(t, role, lack.Role)
			require.ErrorContains(t, err, "lacks "+lack.Privilege+" on "+lack.Object+", which is needed for "+lack.For)
			privileges = append(privileges, lack.Privilege+" ON "+lack.Object+" FOR "+lack.For)
		}
	}
	return privileges
}

func TestCheckOfPrivileges(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	role, own := newRole(t, pool)
	store := pgxstore.New(own, opts)
	execStatement(t, pool, `REVOKE EXECUTE ON FUNCTION "`+opts.Table+`_claim" FROM PUBLIC`)
	on := ` ON table "` + opts.Table + `" FOR `
	lacks := []string{"SELECT" + on + "Store", "INSERT" + on + "Store", "UPDATE" + on + "Store",
		"DELETE" + on + "Maintain", `EXECUTE ON function "` + opts.Table + `_claim" FOR Store`}
	for len(lacks) > 0 {
		require.Equal(t, lacks, findMissingPrivileges(t, store, role))
		grant, _, _ := strings.Cut(lacks[0], " FOR ")
		execStatement(t, pool, "GRANT "+grant+" TO "+role)
		lacks = lacks[1:]
	}
	require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
	completeNewKey(t, store)
	require.NoError(t, store.Maintain(t.Context()))
}

func TestCheckOfPrivilegesForMaintain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	now, set := newClock(t, pool)
	set("2030-01-10 12:00:00+00")
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}.WithClock(now))
	role, own := newRole(t, pool)
	store := pgxstore.New(own, opts)
	execStatement(t, pool, "REVOKE CREATE ON SCHEMA public FROM PUBLIC") // the default since PostgreSQL 15
	execStatement(t, pool, "GRANT SELECT ON "+strings.TrimSuffix(now, "_now()")+" TO "+role)
	execStatement(t, pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+tableName(opts)+" TO "+role)
	lacks := []string{"CREATE ON schema public FOR Maintain"}
	for _, table := range append(listTables(t, pool, opts), tableName(opts)) {
		lacks = append(lacks, "OWNERSHIP ON table "+table+" FOR Maintain")
	}
	require.ElementsMatch(t, lacks, findMissingPrivileges(t, store, role))
	completeNewKey(t, store)
	set("2030-01-12 12:00:00+00")
	require.ErrorContains(t, store.Maintain(ctx), "permission denied")

	execStatement(t, pool, "GRANT CREATE ON SCHEMA public TO "+role)
	for _, table := range append(listTables(t, pool, opts), tableName(opts)) {
		require.NotEmpty(t, findMissingPrivileges(t, store, role))
		execStatement(t, pool, "ALTER TABLE "+table+" OWNER TO "+role)
	}
	require.Empty(t, findMissingPrivileges(t, store, role))
	require.NoError(t, store.Maintain(ctx))
	require.Equal(t, []string{"20300112", "20300113", "20300114"}, listPartitionDays(t, pool, opts))
	require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
}

// If the schema exists, Migrate needs no privilege to create schemas.
func TestMigrateIntoASchemaOfAnother(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	role, own := newRole(t, pool)
	execStatement(t, pool, `CREATE SCHEMA "made before"; GRANT USAGE, CREATE ON SCHEMA "made before" TO `+role)
	for table, days := range map[string]int{"plain": 0, "divided": 2} {
		opts := pgxstore.Options{Schema: "made before", Table: table, PartitionDays: days}
		require.NoError(t, pgxstore.Migrate(ctx, own, opts))
		require.Equal(t, onlyFsync, findUnsafeSettings(t, pgxstore.New(own, opts)))
		completeNewKey(t, pgxstore.New(own, opts))

		execStatement(t, pool, `REVOKE CREATE ON SCHEMA "made before" FROM `+role)
		require.NoError(t, pgxstore.Migrate(ctx, own, opts), "there is nothing to do")
		execStatement(t, pool, `GRANT CREATE ON SCHEMA "made before" TO `+role)
	}
	require.ErrorContains(t, pgxstore.Migrate(ctx, own, pgxstore.Options{Schema: "not made"}), "permission denied")
}

// Services with different tables start for the first time at the same moment.
func TestFirstStartsInOneSchema(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for round := range 20 {
		var services sync.WaitGroup
		for i := range 6 {
			services.Go(func() {
				opts := pgxstore.Options{Schema: fmt.Sprintf("first %d", round), Table: fmt.Sprintf("service %d", i),
					PartitionDays: i % 2}
				if err := pgxstore.Migrate(context.Background(), pool, opts); err != nil {
					t.Error(err)
				}
			})
		}
		services.Wait()
	}
}

// A dump may lack the comments. Migrate restores them without any loss.
func TestRestoredWithoutComments(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, days := range map[string]int{"plain": 0, "partitions": 1} {
		t.Run(name, func(t *testing.T) {
			opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: days, SpareDays: days}, "2030-01-10 12:00:00+00")
			store := pgxstore.New(pool, opts)
			key := completeNewKey(t, store)
			tables := append(listTables(t, pool, opts), tableName(opts))
			comments := func() int {
				return queryValue[int](t, pool, `SELECT count(*) FROM unnest($1::text[]) name
					WHERE obj_description(name::regclass, 'pg_class') LIKE 'idempotency records%'`, tables)
			}
			for _, table := range tables {
				execStatement(t, pool, "COMMENT ON TABLE "+table+" IS NULL")
			}
			require.ErrorContains(t, store.Check(ctx), "no comment")
			require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
			require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
			require.Equal(t, len(tables), comments())
			record, _, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.NotNil(t, record.Response)

			if days == 0 {
				return
			}
			for _, table := range tables[:3] { // only the days
				execStatement(t, pool, "COMMENT ON TABLE "+table+" IS NULL")
			}
			require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
			set("2030-01-12 12:00:00+00")
			require.NoError(t, store.Maintain(ctx))
			require.Equal(t, []string{"20300112", "20300113", "20300114"}, listPartitionDays(t, pool, opts))
			require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM pg_class WHERE relname = $1", opts.Table+"_20300110"),
				"dropped")
		})
	}
}
