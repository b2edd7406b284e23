package servers_test

import (
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// Sentinel replaces the master of two replicas. The test counts the lost answers.
func TestRedisFailsOver(t *testing.T) {
	t.Parallel()
	runFailovers(t, 2, newSentinels, []failover{
		{fault: "killed"}, {fault: "killed", awaitedReplicas: 1}, {fault: "killed", awaitedReplicas: 2},
		{fault: "killed", minReplicas: 2},
		{fault: "replaced"}, {fault: "replaced", awaitedReplicas: 1}, {fault: "replaced", awaitedReplicas: 2, alwaysRuns: true},
		{fault: "replaced", minReplicas: 1}, {fault: "replaced", minReplicas: 2},
		{fault: "paused and replaced"},
		{fault: "cut off"}, {fault: "cut off", awaitedReplicas: 1}, {fault: "cut off", awaitedReplicas: 2},
		{fault: "cut off", awaitedReplicas: 2, outlastsTimeout: true},
		{fault: "cut off with a replica", awaitedReplicas: 1},
	})
}

// sentinels is a master with two replicas, its sentinels, and the clients that ask the sentinels for the master.
type sentinels struct {
	*servertest.Sentinel
	networkCut networkCut
	clients    []*redis.Client
}

func newSentinels(t *testing.T, row failover) deployment {
	t.Helper()
	s := &sentinels{Sentinel: servertest.RedisSentinel(t, 2, "--min-replicas-to-write", strconv.Itoa(row.minReplicas))}
	for _, away := range []bool{false, true} {
		client := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: servertest.SentinelMaster, SentinelAddrs: s.Addrs(),
			Password: servertest.RedisPassword(), SentinelPassword: servertest.RedisPassword(),
			ContextTimeoutEnabled: true, Dialer: s.networkCut.newDialer(away),
		})
		t.Cleanup(func() { _ = client.Close() })
		s.clients = append(s.clients, client)
	}
	return s
}

func (s *sentinels) openStores(_ *testing.T, replicas int) (stores []idempotency.Store) {
	for _, client := range s.clients {
		stores = append(stores, idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: replicas}))
	}
	return stores
}

func (s *sentinels) causeFault(t *testing.T, fault string, while func()) {
	t.Helper()
	old, err := s.Master()
	require.NoError(t, err)
	s.awaitReplicas(t, old)
	awaitReplicated(t, old, "barrier", 2)
	end := func() error { return nil }
	var with []*servertest.Server
	switch fault {
	case "killed":
		old.Crash()
		end = old.Restart // as a supervisor does
	case "cut off with a replica":
		with = s.Nodes()[2:]
		fallthrough
	case "cut off":
		end, err = s.Isolate(old, with...)
		require.NoError(t, err)
		s.networkCut.isolate(old)
	case "paused and replaced":
		pauseWrites(t, newClient(t, old))
		fallthrough
	case "replaced":
		require.NoError(t, s.Failover())
	}
	require.NoError(t, s.AwaitFailover(old))
	while()
	require.NoError(t, end())
	s.networkCut.heal()
	s.restoreReplicas(t, append(with, old)...)
	effort.Count(t, "failovers", 1)
}

// awaitReplicas waits until each sentinel knows the two replicas of master as replicas. A sentinel asks the nodes every ten
// seconds, and cannot promote a replica that the sentinel still regards as a master.
func (s *sentinels) awaitReplicas(t *testing.T, master *servertest.Server) {
	t.Helper()
	_, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	for _, addr := range s.Addrs() {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr, Password: servertest.RedisPassword()})
		defer sentinel.Close()
		require.Eventually(t, func() bool {
			replicas := 0
			for _, told := range sentinel.Replicas(t.Context(), servertest.SentinelMaster).Val() {
				if told["role-reported"] == "slave" && told["master-port"] == port {
					replicas++
				}
			}
			return replicas == 2
		}, patience, 100*time.Millisecond)
	}
}

// restoreReplicas makes nodes replicas of the new master, and waits until the clients ask the new master.
func (s *sentinels) restoreReplicas(t *testing.T, nodes ...*servertest.Server) {
	t.Helper()
	master, err := s.Master()
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	for _, node := range nodes { // a sentinel would do the same after it has seen two masters for eight seconds
		require.NoError(t, newClient(t, node).Do(t.Context(), "REPLICAOF", host, port).Err())
	}
	for _, client := range s.clients {
		require.Eventually(t, func() bool {
			return client.ConfigGet(t.Context(), "port").Val()["port"] == port
		}, patience, 10*time.Millisecond)
	}
	awaitInfo(t, newClient(t, master), "replication", "connected_slaves:2\r\n")
}

var offsetPattern = regexp.MustCompile(`(?:master_repl_|,)offset[:=](\d+)`)

// pauseWrites stops writes to a master, and waits until the replicas have every write that the master has accepted.
func pauseWrites(t *testing.T, master *redis.Client) {
	t.Helper()
	require.NoError(t, master.Do(t.Context(), "CLIENT", "PAUSE", 10_000, "WRITE").Err())
	require.Eventually(t, func() bool {
		offsets := map[string]bool{}
		for _, found := range offsetPattern.FindAllStringSubmatch(master.Info(t.Context(), "replication").Val(), -1) {
			offsets[found[1]] = true
		}
		return len(offsets) == 1
	}, patience, 10*time.Millisecond)
}
