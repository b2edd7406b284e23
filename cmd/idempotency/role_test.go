package main_test

import (
	"database/sql"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// readDocumented returns the block after mark in docs/support.md.
func readDocumented(t testing.TB, mark string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/support.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)<!-- " + mark + " -->\n+```[a-z]*\n(.*?)```").FindStringSubmatch(string(text))
	require.NotNil(t, block, mark)
	return block[1]
}

// uncertain is the key of an abandoned operation.
var uncertain = idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "uncertain"}

// The documented role for support can read records. With the privileges DELETE and UPDATE, the role can also forget and
// resolve.
func TestRoleOfSupport(t *testing.T) {
	t.Parallel()
	b := newPostgres(t)
	completeRecord(t, b.openStore(t), keyOfAlice, answer)
	admin, err := pgx.Connect(t.Context(), b.url())
	require.NoError(t, err)
	defer func() { _ = admin.Close(t.Context()) }()
	for statement := range strings.SplitSeq(readDocumented(t, "role"), ";") {
		_, err = admin.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	_, err = admin.Exec(t.Context(), "ALTER ROLE support PASSWORD 'read'")
	require.NoError(t, err)
	env := []string{"DATABASE_URL=" + regexp.MustCompile(`//.*@`).ReplaceAllString(b.url(), "//support:read@")}
	for _, args := range [][]string{commandForAlice("inspect", "--body"), {"list"}, {"stats"}} {
		got := runProcess(t, env, args...)
		require.Zero(t, got.status, "%v: %s", args, got.stderr)
	}
	got := runProcess(t, env, commandForAlice("forget", "--yes")...)
	require.Equal(t, 3, got.status)
	require.Contains(t, got.stderr, "permission denied")
	require.Contains(t, runProcess(t, env, "check").stdout, "role support lacks INSERT")
	abandonAttempt(t, b, uncertain)
	got = runProcess(t, env, resolveCommand(uncertain, "--not-happened", "--yes")...)
	require.Equal(t, 3, got.status)
	require.Contains(t, got.stderr, "permission denied")
	_, err = admin.Exec(t.Context(), "GRANT UPDATE ON idempotency_records TO support")
	require.NoError(t, err)
	require.Zero(t, runProcess(t, env, resolveCommand(uncertain, "--not-happened", "--yes")...).status)
	_, err = admin.Exec(t.Context(), "GRANT DELETE ON idempotency_records TO support")
	require.NoError(t, err)
	require.Zero(t, runProcess(t, env, commandForAlice("forget", "--yes")...).status)
}

// The documented user of Redis can read records, and with more commands also forget and resolve. The user reads no other
// keys.
func TestUserOfSupport(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	defer admin.Close()
	completeRecord(t, idempotency.NewRedisStore(admin, idempotency.RedisOptions{}), keyOfAlice, answer)
	require.NoError(t, admin.Set(t.Context(), "another", "secret", 0).Err())
	setACL := func(mark string) {
		for line := range strings.Lines(readDocumented(t, mark)) {
			var words []any
			for word := range strings.FieldsSeq(line) {
				words = append(words, word)
			}
			require.NoError(t, admin.Do(t.Context(), words...).Err(), line)
		}
	}
	setACL("acl")
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "support", ">read").Err())
	env := []string{"REDIS_URL=redis://support:read@" + server.Addr()}
	for _, args := range [][]string{commandForAlice("inspect", "--body"), {"list"}, {"stats"}} {
		got := runProcess(t, env, args...)
		require.Zero(t, got.status, "%v: %s", args, got.stderr)
	}
	got := runProcess(t, env, commandForAlice("forget", "--yes")...)
	require.Equal(t, 3, got.status, got.stdout)
	require.Contains(t, got.stderr, "NOPERM")
	limited := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "support", Password: "read"})
	defer limited.Close()
	require.ErrorContains(t, limited.Get(t.Context(), "another").Err(), "NOPERM")
	names, _, err := limited.Scan(t.Context(), 0, "*", 100).Result()
	require.NoError(t, err)
	require.Contains(t, names, "another", "as the page says")
	store := func(testing.TB) idempotency.Store {
		return idempotency.NewRedisStore(admin, idempotency.RedisOptions{})
	}
	abandonAttempt(t, backend{openStore: store}, uncertain)
	require.Equal(t, 3, runProcess(t, env, resolveCommand(uncertain, "--not-happened", "--yes")...).status)
	setACL("acl of forget")
	require.Zero(t, runProcess(t, env, commandForAlice("forget", "--yes")...).status)
	require.Equal(t, 3, runProcess(t, env, resolveCommand(uncertain, "--not-happened", "--yes")...).status)
	setACL("acl of resolve")
	for _, flags := range [][]string{{"--not-happened", "--yes"}, {"--happened", "--status", "201", "--yes"}} {
		abandonAttempt(t, backend{openStore: store}, uncertain)
		got = runProcess(t, env, resolveCommand(uncertain, flags...)...)
		require.Zero(t, got.status, got.stderr)
	}
}

// A user of MySQL with SELECT can read records, and with DELETE and UPDATE also forget and resolve.
func TestUserOfSupportInMySQL(t *testing.T) {
	t.Parallel()
	b := newMySQL(t)
	completeRecord(t, b.openStore(t), keyOfAlice, answer)
	abandonAttempt(t, b, uncertain)
	server, err := sharedMariaDB()
	require.NoError(t, err)
	admin, err := sql.Open("mysql", server.DSN())
	require.NoError(t, err)
	defer admin.Close()
	database := b.url()[strings.LastIndex(b.url(), "/")+1:]
	grant := func(privilege string) {
		_, err := admin.Exec("GRANT " + privilege + " ON " + database + ".idempotency_records " +
			"TO support@'127.0.0.1' IDENTIFIED BY 'read'")
		require.NoError(t, err)
	}
	grant("SELECT")
	env := []string{"DATABASE_URL=" + regexp.MustCompile(`//.*@`).ReplaceAllString(b.url(), "//support:read@")}
	for _, args := range [][]string{commandForAlice("inspect", "--body"), {"list"}, {"stats"}} {
		got := runProcess(t, env, args...)
		require.Zero(t, got.status, "%v: %s", args, got.stderr)
	}
	for _, change := range []struct {
		privilege string
		args      []string
	}{
		{"DELETE", commandForAlice("forget", "--yes")},
		{"UPDATE", resolveCommand(uncertain, "--not-happened", "--yes")},
	} {
		got := runProcess(t, env, change.args...)
		require.Equal(t, 3, got.status, got.stdout)
		require.Contains(t, got.stderr, "denied")
		grant(change.privilege)
		got = runProcess(t, env, change.args...)
		require.Zero(t, got.status, got.stderr)
	}
}

// The program finds the records of a service that uses Redis Cluster or Sentinel.
func TestClusterAndSentinel(t *testing.T) {
	t.Parallel()
	password := servertest.RedisPassword()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		var addrs []string
		for _, master := range servertest.RedisCluster(t) {
			addrs = append(addrs, master.Addr())
		}
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Password: password})
		defer client.Close()
		requireFound(t, client, "redis://:"+password+"@"+addrs[0], "--cluster")
		requireFound(t, client, "redis://:"+password+"@"+addrs[0]+"?addr="+addrs[1])
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		addrs := servertest.RedisSentinel(t, 1).Addrs()
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: servertest.SentinelMaster, SentinelAddrs: addrs, Password: password, SentinelPassword: password,
		})
		defer client.Close()
		requireFound(t, client, "redis://:"+password+"@"+addrs[0]+"?master_name="+servertest.SentinelMaster+"&password="+password)
	})
}

// requireFound completes operations, and requires that the program finds and forgets their records at url.
func requireFound(t testing.TB, client redis.UniversalClient, url string, flags ...string) {
	t.Helper()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "of the service:"})
	for _, id := range []string{"1", "2", "3", "4"} {
		completeRecord(t, store, idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}, answer)
	}
	env, flags := []string{"REDIS_URL=" + url}, append(flags, "--prefix", "of the service:")
	require.Contains(t, runProcess(t, env, append([]string{"list", "--limit", "1"}, flags...)...).stdout, "1 of 4 records")
	for _, id := range []string{"1", "2", "3", "4"} {
		key := keyFlags(idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id})
		got := runProcess(t, env, append(append([]string{"inspect"}, key...), flags...)...)
		require.Zero(t, got.status, got.stdout+got.stderr)
		got = runProcess(t, env, append(append([]string{"forget", "--yes"}, key...), flags...)...)
		require.Zero(t, got.status, got.stdout+got.stderr)
	}
}
