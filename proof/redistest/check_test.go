package redistest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// masters are the ways to reach a master whose replicas Check has to find. Each way returns a function that turns
// the server at an address into a replica of the master.
var masters = map[string]func(*testing.T) (client redis.Cmdable, follow func(replica *redis.Client)){
	"one server": func(t *testing.T) (redis.Cmdable, func(*redis.Client)) {
		master := servertest.Redis(t, "--repl-diskless-sync-delay", "0")
		return testservice.NewRedisClient(t, master.Addr()), replicaOf(t, master)
	},
	"Sentinel": func(t *testing.T) (redis.Cmdable, func(*redis.Client)) {
		sentinel := servertest.RedisSentinel(t, 1)
		return newFailoverClient(t, sentinel), replicaOf(t, sentinel.Nodes()[0])
	},
	"Cluster": func(t *testing.T) (redis.Cmdable, func(*redis.Client)) {
		nodes := servertest.RedisCluster(t)
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{nodes[0].Addr()}, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
		})
		t.Cleanup(func() { _ = client.Close() })
		return client, func(replica *redis.Client) {
			master := testservice.NewRedisClient(t, nodes[0].Addr())
			host, port, _ := net.SplitHostPort(nodes[0].Addr())
			require.NoError(t, replica.ClusterMeet(t.Context(), host, port).Err())
			id := master.Do(t.Context(), "CLUSTER", "MYID").Val().(string)
			testservice.Until(t, func() bool { return replica.ClusterReplicate(t.Context(), id).Err() == nil })
			awaitReplica(t, master, replica)
		}
	},
}

func replicaOf(t *testing.T, server *servertest.Server) func(*redis.Client) {
	return func(replica *redis.Client) {
		host, port, _ := net.SplitHostPort(server.Addr())
		require.NoError(t, replica.Do(t.Context(), "REPLICAOF", host, port).Err())
		awaitReplica(t, testservice.NewRedisClient(t, server.Addr()), replica)
	}
}

// awaitReplica waits until the master reports the announced port of the replica, or the replica's own port.
func awaitReplica(t *testing.T, master, replica *redis.Client) {
	told := replica.ConfigGet(t.Context(), "*port").Val()
	port := told["replica-announce-port"]
	if port == "0" {
		port = told["port"]
	}
	testservice.Until(t, func() bool {
		return strings.Contains(master.Info(t.Context(), "replication").Val(), "port="+port+",state=online")
	})
}

// Check finds each unsafe setting of a server when all other settings are safe.
func TestRedisCheckFindsEachSetting(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "always").Addr())
	set := func(name, value string) {
		t.Helper()
		require.NoError(t, client.ConfigSet(t.Context(), name, value).Err())
	}
	set("maxmemory", "100mb")
	for _, row := range []struct{ name, safe, unsafe, found string }{
		{"maxmemory-policy", "noeviction", "allkeys-lru", "maxmemory_policy"},
		{"maxmemory-policy", "noeviction", "allkeys-lfu", "maxmemory_policy"},
		{"maxmemory-policy", "noeviction", "allkeys-random", "maxmemory_policy"},
		{"maxmemory-policy", "noeviction", "volatile-lru", "maxmemory_policy"},
		{"maxmemory-policy", "noeviction", "volatile-lfu", "maxmemory_policy"},
		{"maxmemory-policy", "noeviction", "volatile-random", "maxmemory_policy"},
		{"maxmemory-policy", "noeviction", "volatile-ttl", "maxmemory_policy"},
		{"appendonly", "yes", "no", "aof_enabled"},
		{"appendfsync", "always", "everysec", "appendfsync"},
		{"appendfsync", "always", "no", "appendfsync"},
		{"no-appendfsync-on-rewrite", "no", "yes", "no-appendfsync-on-rewrite"},
	} {
		set(row.name, row.unsafe)
		require.Equal(t, []string{row.found}, unsafeSettings(t, client), "%s %s", row.name, row.unsafe)
		set(row.name, row.safe)
		require.Empty(t, unsafeSettings(t, client))
	}
}

// If an answer needs fewer replicas than the master has, a failover by command may promote a replica without the
// answer.
func TestRedisCheckOfTooFewReplicas(t *testing.T) {
	t.Parallel()
	safe := []string{"--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"}
	master := servertest.Redis(t, safe...)
	client := testservice.NewRedisClient(t, master.Addr())
	for range 2 {
		newReplica(t, master, safe...)
	}
	testservice.Until(t, func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "connected_slaves:2")
	})
	for replicas, found := range map[int][]string{
		0: {"min-replicas-to-write"}, 1: {"min-replicas-to-write"}, 2: nil, 3: {"connected_slaves"},
	} {
		require.Equal(t, found, unsafeWith(t, client, idempotency.RedisOptions{Replicas: replicas}), replicas)
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	unsafe, lost := &idempotency.UnsafeSetting{Setting: "appendfsync"}, errors.New("no connection")
	require.Empty(t, idempotency.Findings(nil))
	require.Equal(t, []error{lost}, idempotency.Findings(lost))
	require.Equal(t, []error{unsafe, lost}, idempotency.Findings(errors.Join(nil, unsafe, lost)))
}

// readClockFindings returns the findings of Check about clocks.
func readClockFindings(t *testing.T, client redis.Cmdable) (findings []*idempotency.UnsafeSetting) {
	t.Helper()
	err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(t.Context())
	for _, found := range idempotency.Findings(err) {
		finding, ok := found.(*idempotency.UnsafeSetting) // unwrapped, because even the findings of a Cluster are joined side by side
		require.True(t, ok, "not a finding: %v", found)
		if finding.Setting == "clock" {
			findings = append(findings, finding)
		}
	}
	return findings
}

// A replica announces the address of a server with a different clock, so Check asks that server for the replica's
// time.
func TestRedisCheckOfClocks(t *testing.T) {
	t.Parallel()
	for name, start := range masters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, follow := start(t)
			fake := miniredis.RunT(t)
			fake.RequireAuth(servertest.RedisPassword())
			var ahead atomic.Int64
			fake.Server().SetPreHook(func(_ *miniserver.Peer, command string, _ ...string) bool {
				if command == "TIME" {
					fake.SetTime(time.Now().Add(time.Duration(ahead.Load())))
				}
				return false
			})
			replica := servertest.Redis(t, "--replica-announce-ip", "127.0.0.1", "--replica-announce-port", fake.Port(),
				"--cluster-enabled", map[bool]string{true: "yes", false: "no"}[name == "Cluster"])
			follow(testservice.NewRedisClient(t, replica.Addr()))
			for skew, value := range map[time.Duration]string{
				3 * time.Second: `^[123](\.\d+)?s ahead of its master's$`, // less by up to half of the round trip
				-time.Hour:      `^(1h0m0|59m5\d)(\.\d+)?s behind its master's$`,
			} {
				ahead.Store(int64(skew))
				var findings []*idempotency.UnsafeSetting
				testservice.Until(t, func() bool { // Check skips a replica that does not answer within a second
					findings = readClockFindings(t, client)
					return len(findings) > 0
				})
				require.Len(t, findings, 1)
				require.Equal(t, fake.Addr(), findings[0].Node)
				require.Regexp(t, value, findings[0].Value)
				require.NotEmpty(t, findings[0].Risk)
			}
			ahead.Store(0)
			require.Empty(t, readClockFindings(t, client))
			fake.Close()
			require.Empty(t, readClockFindings(t, client), "a replica that cannot be reached")
		})
	}
}

// A slow network does not count as a difference between clocks.
func TestRedisCheckOfClocksFarAway(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--repl-diskless-sync-delay", "0")
	replicaOf(t, server)(testservice.NewRedisClient(t, servertest.Redis(t, "--replica-announce-ip", "127.0.0.1").Addr()))
	client := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout)
	client.AddHook(slowReply("time"))
	require.Empty(t, readClockFindings(t, client))
}

// slowReply is a hook that delays the reply to the named command by 1.2 seconds.
type slowReply string

func (slowReply) DialHook(next redis.DialHook) redis.DialHook { return next }
func (slowReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (command slowReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == string(command) {
			time.Sleep(1200 * time.Millisecond)
		}
		return err
	}
}

func TestRedisCheckWithoutTime(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t, "--rename-command", "TIME", "").Addr())
	require.Empty(t, readClockFindings(t, client))
}

// unsafeSettings returns the settings that Check reports.
func unsafeSettings(t testing.TB, client redis.Cmdable) []string {
	t.Helper()
	return unsafeWith(t, client, idempotency.RedisOptions{})
}

func unsafeWith(t testing.TB, client redis.Cmdable, opts idempotency.RedisOptions) []string {
	t.Helper()
	err := idempotency.NewRedisStore(client, opts).Check(t.Context())
	var settings []string
	for _, err := range idempotency.Findings(err) {
		finding, ok := errors.AsType[*idempotency.UnsafeSetting](err)
		require.True(t, ok, "not a finding: %v", err)
		require.NotEmpty(t, finding.Risk)
		require.Contains(t, err.Error(), finding.Node+": "+finding.Setting+" is "+finding.Value)
		settings = append(settings, finding.Setting)
	}
	return settings
}

func TestRedisCheck(t *testing.T) {
	t.Parallel()
	safe := []string{"--appendonly", "yes", "--appendfsync", "always"}
	limited := append(slices.Clone(safe), "--maxmemory", "100mb", "--maxmemory-policy")
	for name, test := range map[string]struct {
		args     []string
		findings []string
	}{
		"safe":                     {safe, nil},
		"safe with a limit":        {append(slices.Clip(limited), "noeviction"), nil},
		"policy without a limit":   {append(slices.Clip(safe), "--maxmemory-policy", "allkeys-lru"), nil},
		"evicts":                   {append(slices.Clip(limited), "allkeys-lru"), []string{"maxmemory_policy"}},
		"evicts what expires":      {append(slices.Clip(limited), "volatile-ttl"), []string{"maxmemory_policy"}},
		"keeps nothing":            {[]string{"--appendfsync", "no"}, []string{"aof_enabled"}},
		"keeps snapshots":          {[]string{"--save", "1 1"}, []string{"aof_enabled"}},
		"synchronises each second": {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, []string{"appendfsync"}},
		"evicts and keeps nothing": {
			[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lfu"},
			[]string{"maxmemory_policy", "aof_enabled"},
		},
		"does not tell": {append(slices.Clip(safe), "--rename-command", "CONFIG", ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.findings, unsafeSettings(t, testservice.NewRedisClient(t, servertest.Redis(t, test.args...).Addr())))
		})
	}
	t.Run("replication", func(t *testing.T) {
		master := servertest.Redis(t, safe...)
		host, port, err := net.SplitHostPort(master.Addr())
		require.NoError(t, err)
		replica := servertest.Redis(t, append(slices.Clip(safe), "--replicaof", host, port)...)
		client := testservice.NewRedisClient(t, master.Addr())
		require.Eventually(t, func() bool {
			return strings.Contains(client.Info(t.Context(), "replication").Val(), "connected_slaves:1")
		}, 10*time.Second, 10*time.Millisecond)
		require.Equal(t, []string{"role"}, unsafeSettings(t, testservice.NewRedisClient(t, replica.Addr())))
		require.Equal(t, []string{"min-replicas-to-write"}, unsafeSettings(t, client))
		require.NoError(t, client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		require.Equal(t, []string{"min-replicas-to-write"}, unsafeSettings(t, client), "it narrows what a failover loses")
	})
	t.Run("version", func(t *testing.T) {
		for version, findings := range map[string][]string{
			"5.0.14": {"redis_version"}, "6.2.20": {"redis_version"}, "7.0.15": nil, "10.0.1": nil,
		} {
			client := testservice.NewRedisClient(t, "127.0.0.1:1", testservice.WithContextTimeout)
			client.AddHook(infoHook("redis_version:" + version + "\r\nrole:master\r\n"))
			require.Equal(t, findings, unsafeSettings(t, client), version)
		}
	})
	t.Run("every master of a cluster", func(t *testing.T) {
		masters := servertest.RedisCluster(t)
		client := testservice.NewClusterClient(t, masters)
		require.Equal(t, []string{"aof_enabled", "aof_enabled", "aof_enabled"}, unsafeSettings(t, client))
		for _, master := range masters {
			node := testservice.NewRedisClient(t, master.Addr())
			require.NoError(t, node.ConfigSet(t.Context(), "appendonly", "yes").Err())
			require.NoError(t, node.ConfigSet(t.Context(), "appendfsync", "always").Err())
		}
		require.Empty(t, unsafeSettings(t, client))
	})
	t.Run("miniredis", func(t *testing.T) {
		_, client := testservice.NewMiniredis(t)
		require.Empty(t, unsafeSettings(t, client))
	})
	t.Run("no server", func(t *testing.T) {
		server := servertest.Redis(t)
		client := testservice.NewRedisClient(t, server.Addr())
		server.Close()
		err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(t.Context())
		require.Error(t, err)
		_, ok := errors.AsType[*idempotency.UnsafeSetting](err)
		require.False(t, ok, "that nobody answers is not a setting: %v", err)
	})
}

// infoHook answers INFO instead of the server, and fails CONFIG.
type infoHook string

func (infoHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (infoHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (info infoHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if cmd, ok := cmd.(*redis.StringCmd); ok {
			cmd.SetVal(string(info))
			return nil
		}
		cmd.SetErr(errors.New("NOPERM"))
		return cmd.Err()
	}
}

// Check names each missing right of the Redis user before the first request needs the right.
func TestRedisCheckNamesMissingRights(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	admin := testservice.NewRedisClient(t, server.Addr())
	commands := []string{"get", "getex", "set", "getrange", "pttl", "pexpire", "exists", "rename", "unlink",
		"hget", "hset", "hgetall", "eval", "evalsha"}
	limited := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "service", Password: "secret", DisableIdentity: true})
	t.Cleanup(func() { _ = limited.Close() })
	check := func(keys string, without ...string) (missing []string) {
		t.Helper()
		rule := []any{"ACL", "SETUSER", "service", "reset", "on", ">secret", keys, "+info", "+config|get", "+time"}
		for _, command := range commands {
			if !slices.Contains(without, command) {
				rule = append(rule, "+"+command)
			}
		}
		require.NoError(t, admin.Do(t.Context(), rule...).Err())
		for _, found := range idempotency.Findings(idempotency.NewRedisStore(limited, idempotency.RedisOptions{}).Check(t.Context())) {
			require.ErrorContains(t, found, "is not given to user service")
			missing = append(missing, found.(*idempotency.UnsafeSetting).Setting)
		}
		return missing
	}
	require.Empty(t, check("~idempotency:*"))
	for _, command := range commands {
		require.Equal(t, []string{"right +" + command}, check("~idempotency:*", command))
	}
	require.Equal(t, []string{"right +set", "right +hset"}, check("~idempotency:*", "set", "hset"))
	for _, keys := range []string{"~other:*", "%R~idempotency:*", "%W~idempotency:*"} {
		require.Equal(t, []string{"right ~idempotency:*"}, check(keys), keys)
	}
	require.Equal(t, []string{"right +get", "right ~idempotency:*"}, check("~other:*", "get"))
	require.Equal(t, []string{"right ~idempotency:*"}, check("~idempotency:{*}"), "large answers and steps are under other names")
	require.Empty(t, admin.Keys(t.Context(), "*").Val(), "Check leaves nothing behind")
}
