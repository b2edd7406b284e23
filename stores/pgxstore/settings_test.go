package pgxstore_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/stores/internal/settingtest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var thorough = flag.Bool("thorough", false, "run a whole round for each value of each setting of a session")

// withSettings sets settings of the sessions of a pool.
func withSettings(settings map[string]string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { maps.Copy(c.ConnConfig.RuntimeParams, settings) }
}

// requireContract requires that a store on pool, with its own table, keeps its contract. Admin is a pool with the
// usual settings.
func requireContract(t *testing.T, pool, admin *pgxpool.Pool, opts pgxstore.Options) {
	t.Helper()
	store := pgxstore.New(pool, opts)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, opts))
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, opts), "again")
	require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
	subject := settingtest.Subject{Store: store, Maintain: store.Maintain}
	if opts.PartitionDays == 0 {
		subject.Maintain = func(ctx context.Context) error { // Maintain may delete records a minute late
			execStatement(t, admin, "UPDATE "+tableName(opts)+
				" SET expires_minute = expires_minute - interval '2 minutes' WHERE expires_at <= statement_timestamp()")
			return store.Maintain(ctx)
		}
		subject.Records = func(context.Context) (int, error) {
			return queryValue[int](t, admin, "SELECT count(*) FROM "+tableName(opts)), nil
		}
	}
	require.NoError(t, settingtest.CheckContract(t.Context(), subject))
}

// Every name can be stored in all encodings of the database and of the sessions, and each session finds the names of
// the others.
func TestEncodings(t *testing.T) {
	t.Parallel()
	clients := map[string][]string{ // by the database's encoding; empty: the client sets none
		"UTF8":      {"", "LATIN1", "SJIS", "BIG5", "GB18030", "SQL_ASCII"},
		"LATIN1":    {"", "UTF8"},
		"EUC_JP":    {"", "UTF8", "SJIS"},
		"WIN1251":   {"", "UTF8", "KOI8R"},
		"SQL_ASCII": {"", "UTF8", "LATIN1"},
	}
	if !*thorough {
		clients["UTF8"] = []string{"", "SJIS"}
		delete(clients, "WIN1251")
	}
	server := newPool(t, serverURL(t))
	for encoding, clients := range clients {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			database := "encoding_" + strings.ToLower(encoding)
			execStatement(t, server, fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'",
				database, encoding))
			open := func(client string) *pgxpool.Pool {
				return newPool(t, serverURL(t), func(c *pgxpool.Config) {
					c.ConnConfig.Database = database
					if client != "" {
						c.ConnConfig.RuntimeParams["client_encoding"] = client
					}
				})
			}
			admin := open("")
			shared := pgxstore.Options{Table: "shared"}
			require.NoError(t, pgxstore.Migrate(t.Context(), admin, shared))
			stores := make(map[string]*pgxstore.Store)
			for _, client := range clients {
				pool := open(client)
				requireContract(t, pool, admin, pgxstore.Options{Table: "records " + client})
				stores["client "+client] = pgxstore.New(pool, shared)
			}
			requireSharedNames(t, stores)
		})
	}
}

// requireSharedNames completes an operation for each name by each store, and requires that all stores replay it.
func requireSharedNames(t *testing.T, stores map[string]*pgxstore.Store) {
	t.Helper()
	for by, writer := range stores {
		for _, name := range settingtest.Names {
			key := keyOf(uuid.NewString())
			key.User, key.Endpoint = name, name
			_, claim, err := writer.Begin(t.Context(), key, attempt)
			require.NoError(t, err, "%q by %s", name, by)
			require.NotNil(t, claim, "%q by %s", name, by)
			require.NoError(t, claim.Complete(t.Context(), answer, attempt.TTL), "%q by %s", name, by)
			for other, reader := range stores {
				record, _, err := reader.Begin(t.Context(), key, attempt)
				require.NoError(t, err, "%q by %s, read by %s", name, by, other)
				require.Equal(t, &answer, record.Response, "%q by %s, read by %s", name, by, other)
			}
		}
	}
}

// The store works the same with all settings that a role, a database, a pooler or a connection string may set.
func TestSettingsOfSessions(t *testing.T) {
	t.Parallel()
	admin := newPool(t, serverURL(t))
	for name, settings := range map[string]map[string]string{
		"strings": {
			"standard_conforming_strings": "off", "backslash_quote": "off", "escape_string_warning": "on",
			"client_min_messages": "debug1",
		},
		"styles": {
			"datestyle": "SQL, DMY", "timezone": "America/St_Johns", "intervalstyle": "sql_standard", "bytea_output": "escape",
			"extra_float_digits": "-15", "xmlbinary": "hex", "xmloption": "document", "lc_messages": "C", "lc_time": "C",
		},
		"serializable":     {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
		"repeatable read":  {"default_transaction_isolation": "repeatable read", "session_replication_role": "replica"},
		"read uncommitted": {"default_transaction_isolation": "read uncommitted", "row_security": "off"},
		"nulls":            {"transform_null_equals": "on", "array_nulls": "off", "check_function_bodies": "off"},
		"generic plans": {
			"plan_cache_mode": "force_generic_plan", "enable_indexscan": "off", "enable_bitmapscan": "off",
			"enable_hashagg": "off", "enable_partition_pruning": "off", "constraint_exclusion": "on", "work_mem": "64",
		},
		"custom plans": {
			"plan_cache_mode": "force_custom_plan", "enable_seqscan": "off", "enable_sort": "off", "jit": "off",
			"join_collapse_limit": "1", "from_collapse_limit": "1", "geqo_threshold": "2", "enable_tidscan": "off",
		},
		"compiled plans": {"enable_nestloop": "off", "jit": "off", "enable_material": "off", "enable_memoize": "off"},
		"timeouts": {
			"statement_timeout": "60000", "lock_timeout": "60000", "idle_in_transaction_session_timeout": "60000",
			"deadlock_timeout": "1", "commit_delay": "1000", "commit_siblings": "0",
		},
	} {
		for form, days := range map[string]int{"plain": 0, "partitions": 2} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t), withSettings(settings))
				requireContract(t, pool, admin, pgxstore.Options{Table: `\` + name + `'s ` + form, PartitionDays: days})
			})
		}
	}
}

// TestEverySetting sets each setting of a session to each of its values, or to its minimum and its maximum.
func TestEverySetting(t *testing.T) {
	if !*thorough {
		t.Skip("takes minutes: -args -thorough")
	}
	t.Parallel()
	admin := newPool(t, serverURL(t))
	rows, err := admin.Query(t.Context(), `SELECT name, coalesce(enumvals, CASE vartype WHEN 'bool' THEN '{on,off}'::text[]
		ELSE ARRAY[min_val, max_val] END) FROM pg_settings WHERE context IN ('user', 'superuser') AND vartype <> 'string'
		ORDER BY name`)
	require.NoError(t, err)
	values := make(map[string][]string)
	for rows.Next() {
		var name string
		var of []string
		require.NoError(t, rows.Scan(&name, &of))
		if !slices.Contains(skippedSettings, name) {
			values[name] = of
		}
	}
	require.NoError(t, rows.Err())
	require.Greater(t, len(values), 100)
	for name, values := range values {
		for i, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t), withSettings(map[string]string{name: value}))
				if pool.Ping(t.Context()) != nil {
					t.Skip("no session can have it")
				}
				requireContract(t, pool, admin, pgxstore.Options{Table: fmt.Sprint(name, i)})
			})
		}
	}
}

// skippedSettings are the settings that Check reports, and settings that make each statement so expensive that it is
// compiled for a second.
var skippedSettings = []string{
	"default_transaction_read_only", "synchronous_commit", "enable_nestloop", "enable_seqscan", "enable_sort",
	"cpu_tuple_cost", "cpu_operator_cost", "seq_page_cost", "transaction_read_only",
}

// Check reports a setting that makes PostgreSQL compile each claim.
func TestCheckOfCompiledPlans(t *testing.T) {
	t.Parallel()
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	for jit, found := range map[string][]string{"on": {"enable_nestloop", "fsync"}, "off": onlyFsync} {
		pool := newPool(t, serverURL(t), withSettings(map[string]string{"enable_nestloop": "off", "jit": jit}))
		require.ElementsMatch(t, found, findUnsafeSettings(t, pgxstore.New(pool, opts)))
	}
}
