//go:build unix

package servertest_test

import (
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestSentinelMakesAReplicaTheMaster(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		replicas int
		end      func(*servertest.Sentinel, *servertest.Server) error
	}{
		"on command":    {1, func(s *servertest.Sentinel, _ *servertest.Server) error { return s.Failover() }},
		"after a crash": {2, func(_ *servertest.Sentinel, master *servertest.Server) error { master.Crash(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := servertest.RedisSentinel(t, test.replicas)
			old, err := s.Master()
			check(t, err)
			if old != s.Nodes()[0] || len(s.Nodes()) != 1+test.replicas || len(s.Addrs()) != 3 {
				t.Fatalf("got %d servers and sentinels %v with the master %s", len(s.Nodes()), s.Addrs(), old.Addr())
			}
			redis(t, old, "SET k v")
			for _, replica := range s.Nodes()[1:] {
				eventually(t, "the replication", func() bool { return redis(t, replica, "GET k") == "v" })
			}

			check(t, test.end(s, old))
			check(t, s.AwaitFailover(old))
			promoted, err := s.Master()
			check(t, err)
			if promoted == old {
				t.Error("the master is still the same")
			}
			if got := redis(t, promoted, "GET k"); got != "v" {
				t.Errorf("got %q from the new master, want v", got)
			}
			redis(t, promoted, "SET k w")
		})
	}
}

func TestSentinelRefusesWhoHasNoPassword(t *testing.T) {
	t.Parallel()
	s := servertest.RedisSentinel(t, 1)
	conn := dial(t, s.Addrs()[0])
	send(t, conn, "PING\r\n")
	expect(t, conn, "-NOAUTH Authentication required.\r\n")
	for _, server := range s.Sentinels() {
		expectNoPassword(t, strings.Join(server.Args(), " "))
		expectMode(t, server.Dir(), 0o700)
	}
}
