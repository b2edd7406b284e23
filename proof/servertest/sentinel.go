//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// SentinelMaster is the name by which sentinels know their master.
const SentinelMaster = "records"

// Sentinel is a Redis master with replicas, and three sentinels that watch them. Two of those have to agree that the
// master is down. They find it so when it has been silent for two seconds.
type Sentinel struct {
	nodes     []*Server
	sentinels []*Server
}

// StartRedisSentinel starts a master with replicas, for which args are as for [StartRedis], and their sentinels. It
// waits until the replicas have what the master has, and every sentinel knows all of them, which takes Redis two
// seconds. Clients of the sentinels, too, need [RedisPassword].
func StartRedisSentinel(replicas int, args ...string) (_ *Sentinel, err error) {
	s := &Sentinel{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...) // else a replica gets its first copy after 5 s
	for range 1 + replicas {
		node, err := StartRedis(args...)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, node)
	}
	master := strconv.Itoa(s.nodes[0].port)
	for _, replica := range s.nodes[1:] {
		if _, err := ask(replica, "REPLICAOF 127.0.0.1 "+master); err != nil {
			return nil, err
		}
	}
	for range 3 {
		sentinel, err := startRedis(func(path, dir string, port int) *exec.Cmd {
			return sentinelCommand(path, dir, port, master)
		})
		if err != nil {
			return nil, err
		}
		s.sentinels = append(s.sentinels, sentinel)
	}
	known := fmt.Sprintf(",slaves=%d,sentinels=3", replicas)
	err = s.await("that all know each other", func(told string) bool { return strings.Contains(told, known) })
	if err != nil {
		return nil, err
	}
	return s, awaitCopy(s.nodes[1:]...)
}

// sentinelCommand gives the configuration, with the passwords, through standard input to a shell, which writes the file
// that a sentinel needs. A sentinel that is started again has one already.
func sentinelCommand(path, dir string, port int, master string) *exec.Cmd {
	const run = `[ -e sentinel.conf ] || cat >sentinel.conf
exec "$0" sentinel.conf --sentinel --port "$1" --bind 127.0.0.1`
	cmd := exec.Command("sh", "-c", run, path, strconv.Itoa(port))
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(strings.NewReplacer(
		"MASTER", SentinelMaster, "PORT", master, "PASSWORD", redisPassword, "PEER", peer,
	).Replace(`requirepass PASSWORD
sentinel sentinel-pass PASSWORD
sentinel monitor MASTER 127.0.0.1 PORT 2
sentinel auth-user MASTER PEER
sentinel auth-pass MASTER PASSWORD
sentinel down-after-milliseconds MASTER 2000
sentinel failover-timeout MASTER 6000
`))
	return cmd
}

// RedisSentinel starts a master with replicas as [StartRedisSentinel] does, for the duration of the test. See
// [Require].
func RedisSentinel(t testing.TB, replicas int, args ...string) *Sentinel {
	t.Helper()
	s, err := StartRedisSentinel(replicas, args...)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}

// Addrs returns the hosts and ports of the sentinels.
func (s *Sentinel) Addrs() (addrs []string) {
	for _, sentinel := range s.sentinels {
		addrs = append(addrs, sentinel.Addr())
	}
	return addrs
}

// Nodes returns the master and the replicas, of which each may be the master by now.
func (s *Sentinel) Nodes() []*Server { return s.nodes }

// Master returns the server that is the master according to one of the sentinels.
func (s *Sentinel) Master() (*Server, error) {
	told, err := ask(s.sentinels[0], "INFO sentinel")
	if err != nil {
		return nil, err
	}
	for _, node := range s.nodes {
		if strings.Contains(told, "address="+node.Addr()+",") {
			return node, nil
		}
	}
	return nil, fmt.Errorf("an unknown master: %s", told)
}

// Failover orders a failover, though nothing is wrong with the master. It does not wait for its end.
func (s *Sentinel) Failover() error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		_, err := ask(s.sentinels[0], "SENTINEL FAILOVER "+SentinelMaster)
		// The sentinel has not asked a replica yet, or is about to end another failover.
		later := err != nil && (strings.HasPrefix(err.Error(), "NOGOODSLAVE") || strings.HasPrefix(err.Error(), "INPROG"))
		if !later || time.Now().After(deadline) {
			return err
		}
	}
}

// AwaitFailover waits until all sentinels have another master than old, and that it is up.
func (s *Sentinel) AwaitFailover(old *Server) error {
	return s.await("a failover", func(told string) bool {
		return strings.Contains(told, ",status=ok,") && !strings.Contains(told, "address="+old.Addr()+",")
	})
}

// Isolate cuts the master off from the sentinels and from all replicas but those that are cut off with it, until heal is
// called. Clients still reach it.
func (s *Sentinel) Isolate(master *Server, with ...*Server) (heal func() error, err error) {
	var heals []func() error
	for _, node := range append([]*Server{master}, with...) {
		letIn, err := shutOut(node)
		if err != nil {
			return nil, err
		}
		heals = append(heals, letIn)
	}
	for _, replica := range with { // as a client it gets in
		if _, err := ask(replica, `CONFIG SET masteruser ""`); err != nil {
			return nil, err
		}
		heals = append(heals, func() error {
			_, err := ask(replica, "CONFIG SET masteruser "+peer)
			return err
		})
	}
	return func() (err error) {
		for _, heal := range heals {
			err = errors.Join(err, heal())
		}
		return err
	}, nil
}

// Close ends all servers and removes their directories.
func (s *Sentinel) Close() {
	closeAll(s.sentinels)
	closeAll(s.nodes)
}

// await waits until every sentinel tells of its master what is wanted. It tells
// "master0:name=records,status=ok,address=127.0.0.1:12345,slaves=1,sentinels=3".
func (s *Sentinel) await(what string, wanted func(told string) bool) error {
	return await(s.sentinels, "INFO sentinel", what, wanted)
}
