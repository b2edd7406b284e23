//go:build unix

package servertest_test

import (
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestReplicasOfAClusterTakeOver(t *testing.T) {
	t.Parallel()
	c := servertest.RedisClusterOfSix(t)
	for n, name := range []string{"b", "c"} { // whose slots the first two masters have
		master, replica, err := c.Pair(n)
		check(t, err)
		if master != c.Nodes()[n] || replica != c.Nodes()[n+3] {
			t.Fatalf("got the master %s, want %s", master.Addr(), c.Nodes()[n].Addr())
		}
		redis(t, master, "SET "+name+" v")
		if got := redis(t, master, "WAIT 1 10000"); got != "1" {
			t.Fatalf("got %q replicas, want 1", got)
		}

		if n == 0 {
			master.Crash()
			check(t, c.AwaitFailover(master, replica))
			check(t, master.Restart())
		} else {
			heal, err := c.Isolate(master)
			check(t, err)
			redis(t, master, "SET "+name+" lost")
			if got := redis(t, master, "WAIT 1 100"); got != "0" {
				t.Fatalf("got %q replicas behind the cut, want 0", got)
			}
			check(t, c.AwaitFailover(master, replica))
			check(t, c.AwaitRefusal(master))
			check(t, heal())
		}
		check(t, c.AwaitReplica(master))
		if promoted, _, err := c.Pair(n); err != nil || promoted != replica {
			t.Fatalf("got the master %s (%v), want %s", promoted.Addr(), err, replica.Addr())
		}
		if got := redis(t, replica, "GET "+name); got != "v" {
			t.Errorf("got %q of the new master, want v", got)
		}
		if _, err := servertest.Ask(master, "SET "+name+" w"); err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
			t.Errorf("got %v of the old master, want MOVED", err)
		}
	}
}
