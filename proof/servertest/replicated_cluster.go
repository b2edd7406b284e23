//go:build unix

package servertest

import (
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"
)

// ReplicatedCluster is a Redis Cluster of three masters, each with a replica. The cluster considers a node dead after
// four seconds of silence. The nodes communicate through proxies, so that a node can be disconnected.
type ReplicatedCluster struct {
	nodes      []*Server
	busProxies map[*Server]*Proxy // proxy in front of the bus port of each node
}

// RedisClusterWithReplicas starts a cluster for the duration of the test. RedisClusterWithReplicas waits until the
// cluster is complete and each replica has the data of its master, which takes some seconds. See [Require].
func RedisClusterWithReplicas(t testing.TB) *ReplicatedCluster {
	t.Helper()
	c := &ReplicatedCluster{busProxies: map[*Server]*Proxy{}}
	t.Cleanup(func() { closeAll(c.nodes) })
	for range 6 {
		c.startNode(t)
	}
	Require(t, c.joinNodes())
	return c
}

func (c *ReplicatedCluster) startNode(t testing.TB) {
	t.Helper()
	var bus *Proxy
	var busPort int // port of the node behind bus
	node, err := startRedis(func(path, dir string, port int) *exec.Cmd {
		if busPort != port { // a restarted node keeps its proxy
			busPort, bus = port, NewProxy(t, fmt.Sprint("127.0.0.1:", secondPort(port)))
		}
		_, announced, _ := strings.Cut(bus.Addr(), ":")
		return redisCommand(path, dir, port, "--cluster-enabled", "yes", "--cluster-node-timeout", "4000",
			"--cluster-announce-bus-port", announced, "--repl-diskless-sync-delay", "0")
	})
	Require(t, err)
	c.nodes, c.busProxies[node] = append(c.nodes, node), bus
}

// joinNodes joins the nodes to a cluster.
func (c *ReplicatedCluster) joinNodes() error {
	masters, replicas := c.nodes[:3], c.nodes[3:]
	if err := joinMasters(masters); err != nil {
		return err
	}
	for _, replica := range replicas {
		if _, err := askRedis(replica, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d", masters[0].port)); err != nil {
			return err
		}
	}
	err := awaitReplies(c.nodes, "CLUSTER NODES", "all to know each other", func(told string) bool {
		return strings.Count(told, "\n") == len(c.nodes) && !strings.Contains(told, "handshake")
	})
	if err != nil {
		return err
	}
	for i, replica := range replicas {
		id, err := askRedis(masters[i], "CLUSTER MYID")
		if err != nil {
			return err
		}
		if _, err := askRedis(replica, "CLUSTER REPLICATE "+id); err != nil {
			return err
		}
	}
	if err := awaitReplies(c.nodes, "CLUSTER NODES", "three replicas, and all announced", c.knowsNodes); err != nil {
		return err
	}
	for _, replica := range replicas {
		if err := c.AwaitReplica(replica); err != nil {
			return err
		}
	}
	return awaitCluster(masters, "cluster_state:ok")
}

// knowsNodes reports whether told, the CLUSTER NODES of a node, has three replicas and the proxy of each node.
func (c *ReplicatedCluster) knowsNodes(told string) bool {
	known := strings.Count(told, "slave ") == 3
	for node, bus := range c.busProxies {
		_, port, _ := strings.Cut(bus.Addr(), ":")
		known = known && strings.Contains(told, node.Addr()+"@"+port)
	}
	return known
}

// Nodes returns the three first masters, and then their replicas in the same order. The first master has the slots up
// to 5460, and the second master the slots up to 10921.
func (c *ReplicatedCluster) Nodes() []*Server { return c.nodes }

// Pair returns the current master and the current replica of the nth pair.
func (c *ReplicatedCluster) Pair(n int) (master, replica *Server, err error) {
	first, second := c.nodes[n], c.nodes[n+3]
	told, err := askRedis(first, "INFO replication")
	if strings.Contains(told, "role:slave") {
		first, second = second, first
	}
	return first, second, err
}

// AwaitFailover waits until all nodes except old, the former master, report promoted as a master and the cluster as
// complete.
func (c *ReplicatedCluster) AwaitFailover(old, promoted *Server) error {
	id, err := askRedis(promoted, "CLUSTER MYID")
	if err != nil {
		return err
	}
	others := c.nodesExcept(old)
	err = awaitReplies(others, "CLUSTER NODES", "a failover", func(told string) bool {
		_, line, _ := strings.Cut("\n"+told, "\n"+id)
		line, _, _ = strings.Cut(line, "\n")
		return strings.Contains(line, "master -") && strings.Count(line, " ") > 7 // with slots
	})
	if err != nil {
		return err
	}
	return awaitCluster(others, "cluster_state:ok")
}

// AwaitReplica waits until node is a replica with the data of its master, and reports the cluster as complete.
func (c *ReplicatedCluster) AwaitReplica(node *Server) error {
	err := awaitReplication(node)
	if err == nil {
		err = awaitCluster([]*Server{node}, "cluster_state:ok")
	}
	return err
}

// AwaitRefusal waits until a disconnected node refuses writes.
func (c *ReplicatedCluster) AwaitRefusal(node *Server) error {
	return awaitCluster([]*Server{node}, "cluster_state:fail")
}

func (c *ReplicatedCluster) nodesExcept(one *Server) (others []*Server) {
	for _, node := range c.nodes {
		if node != one {
			others = append(others, node)
		}
	}
	return others
}

// Isolate disconnects a master from all other nodes, until heal is called. Clients still reach the master. The first
// 1024 slots must not have been moved.
func (c *ReplicatedCluster) Isolate(master *Server) (heal func() error, err error) {
	pattern, err := c.senderPattern(master)
	if err != nil {
		return nil, err
	}
	allowPeers, err := blockPeers(master)
	if err != nil {
		return nil, err
	}
	for node, bus := range c.busProxies {
		cut := Rule{Fault: LoseRequest, Times: math.MaxInt}
		if node != master {
			cut.Pattern = pattern
		}
		bus.Inject(cut)
	}
	return func() error {
		for _, bus := range c.busProxies {
			bus.Inject(Rule{})
		}
		return allowPeers()
	}, nil
}

// senderPattern returns a pattern that occurs only in messages from master to other nodes: the ID of the master,
// followed by the first 128 bytes of its bitmap of slots.
func (c *ReplicatedCluster) senderPattern(master *Server) (pattern string, err error) {
	told, err := askRedis(master, "CLUSTER NODES")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(told) {
		fields := strings.Fields(line)
		if !strings.Contains(fields[2], "myself") {
			continue
		}
		slots := "\x00"
		if len(fields) > 8 && strings.HasPrefix(fields[8], "0-") {
			slots = "\xff"
		}
		return fields[0] + strings.Repeat(slots, 128), nil
	}
	return "", fmt.Errorf("%s does not know itself: %s", master.Addr(), told)
}
