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

// SentinelMaster is the name of the master for the sentinels.
const SentinelMaster = "records"

// Sentinel consists of a Redis master, its replicas, and three sentinels. A failover begins when two sentinels agree
// that the master is down. A sentinel considers the master down after two seconds of silence.
type Sentinel struct {
	nodes     []*Server
	sentinels []*Server
}

// StartRedisSentinel starts a master with replicas, and three sentinels. The args are the args of [StartRedis].
// StartRedisSentinel waits until the replicas have the data of the master, and each sentinel knows all servers, which
// takes Redis two seconds. Clients of the sentinels also need [RedisPassword].
func StartRedisSentinel(replicas int, args ...string) (_ *Sentinel, err error) {
	s := &Sentinel{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...) // the default delays the first copy by 5 s
	for range 1 + replicas {
		node, err := StartRedis(args...)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, node)
	}
	master := strconv.Itoa(s.nodes[0].port)
	for _, replica := range s.nodes[1:] {
		if _, err := askRedis(replica, "REPLICAOF 127.0.0.1 "+master); err != nil {
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
	err = s.awaitSentinels("that all know each other", func(told string) bool { return strings.Contains(told, known) })
	if err != nil {
		return nil, err
	}
	return s, awaitReplication(s.nodes[1:]...)
}

// sentinelCommand passes the configuration with the passwords through standard input to a shell, which writes the
// file for the sentinel. A restarted sentinel keeps its file.
func sentinelCommand(path, dir string, port int, master string) *exec.Cmd {
	const run = `[ -e sentinel.conf ] || cat >sentinel.conf
exec "$0" sentinel.conf --sentinel --port "$1" --bind 127.0.0.1`
	cmd := exec.Command("sh", "-c", run, path, strconv.Itoa(port))
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(strings.NewReplacer(
		"MASTER", SentinelMaster, "PORT", master, "PASSWORD", redisPassword, "PEER", peerUser,
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

// RedisSentinel starts a master with replicas and sentinels for the duration of the test. See [StartRedisSentinel]
// and [Require].
func RedisSentinel(t testing.TB, replicas int, args ...string) *Sentinel {
	t.Helper()
	s, err := StartRedisSentinel(replicas, args...)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() (addrs []string) {
	for _, sentinel := range s.sentinels {
		addrs = append(addrs, sentinel.Addr())
	}
	return addrs
}

// Nodes returns the first master, and then the replicas. After a failover, any node may be the master.
func (s *Sentinel) Nodes() []*Server { return s.nodes }

// Master returns the current master according to the first sentinel.
func (s *Sentinel) Master() (*Server, error) {
	told, err := askRedis(s.sentinels[0], "INFO sentinel")
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

// Failover starts a failover from a healthy master, and returns before the end of the failover.
func (s *Sentinel) Failover() error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		_, err := askRedis(s.sentinels[0], "SENTINEL FAILOVER "+SentinelMaster)
		// The sentinel has not contacted a replica yet, or is finishing an earlier failover.
		later := err != nil && (strings.HasPrefix(err.Error(), "NOGOODSLAVE") || strings.HasPrefix(err.Error(), "INPROG"))
		if !later || time.Now().After(deadline) {
			return err
		}
	}
}

// AwaitFailover waits until all sentinels report a master that is up and is not old.
func (s *Sentinel) AwaitFailover(old *Server) error {
	return s.awaitSentinels("a failover", func(told string) bool {
		return strings.Contains(told, ",status=ok,") && !strings.Contains(told, "address="+old.Addr()+",")
	})
}

// Isolate disconnects the master and the replicas in with from the sentinels and all other replicas, until heal is
// called. Clients still reach all servers.
func (s *Sentinel) Isolate(master *Server, with ...*Server) (heal func() error, err error) {
	var heals []func() error
	for _, node := range append([]*Server{master}, with...) {
		allowPeers, err := blockPeers(node)
		if err != nil {
			return nil, err
		}
		heals = append(heals, allowPeers)
	}
	for _, replica := range with { // as a client, the replica reaches the master
		if _, err := askRedis(replica, `CONFIG SET masteruser ""`); err != nil {
			return nil, err
		}
		heals = append(heals, func() error {
			_, err := askRedis(replica, "CONFIG SET masteruser "+peerUser)
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

// Close ends all servers, and removes their directories.
func (s *Sentinel) Close() {
	closeAll(s.sentinels)
	closeAll(s.nodes)
}

// awaitSentinels waits until wanted returns true for the INFO of each sentinel, which contains a line such as
// "master0:name=records,status=ok,address=127.0.0.1:12345,slaves=1,sentinels=3".
func (s *Sentinel) awaitSentinels(what string, wanted func(told string) bool) error {
	return awaitReplies(s.sentinels, "INFO sentinel", what, wanted)
}
