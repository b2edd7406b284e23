//go:build unix

package servertest

import (
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"
)

// Six is a Redis Cluster of three masters, each with a replica. A node is found dead when it has been silent for four
// seconds. The nodes hear each other through proxies, so that one of them can be cut off.
type Six struct {
	nodes []*Server
	buses map[*Server]*Proxy // each is in front of where a node hears the others
}

// RedisClusterOfSix starts a cluster for the duration of the test, and waits until it is complete and each replica has
// what its master has, which takes some seconds. See [Require].
func RedisClusterOfSix(t testing.TB) *Six {
	t.Helper()
	c := &Six{buses: map[*Server]*Proxy{}}
	t.Cleanup(func() { closeAll(c.nodes) })
	for range 6 {
		c.start(t)
	}
	Require(t, c.introduce())
	return c
}

func (c *Six) start(t testing.TB) {
	t.Helper()
	var bus *Proxy
	var heard int
	node, err := startRedis(func(path, dir string, port int) *exec.Cmd {
		if heard != port { // else it is started again
			heard, bus = port, NewProxy(t, fmt.Sprint("127.0.0.1:", secondPort(port)))
		}
		_, announced, _ := strings.Cut(bus.Addr(), ":")
		return redisCommand(path, dir, port, "--cluster-enabled", "yes", "--cluster-node-timeout", "4000",
			"--cluster-announce-bus-port", announced, "--repl-diskless-sync-delay", "0")
	})
	Require(t, err)
	c.nodes, c.buses[node] = append(c.nodes, node), bus
}

// introduce makes a cluster of the nodes.
func (c *Six) introduce() error {
	masters, replicas := c.nodes[:3], c.nodes[3:]
	if err := introduce(masters); err != nil {
		return err
	}
	for _, replica := range replicas {
		if _, err := ask(replica, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d", masters[0].port)); err != nil {
			return err
		}
	}
	err := await(c.nodes, "CLUSTER NODES", "all to know each other", func(told string) bool {
		return strings.Count(told, "\n") == len(c.nodes) && !strings.Contains(told, "handshake")
	})
	if err != nil {
		return err
	}
	for i, replica := range replicas {
		id, err := ask(masters[i], "CLUSTER MYID")
		if err != nil {
			return err
		}
		if _, err := ask(replica, "CLUSTER REPLICATE "+id); err != nil {
			return err
		}
	}
	if err := await(c.nodes, "CLUSTER NODES", "three replicas, and all announced", c.announced); err != nil {
		return err
	}
	for _, replica := range replicas {
		if err := c.AwaitReplica(replica); err != nil {
			return err
		}
	}
	return awaitCluster(masters, "cluster_state:ok")
}

// announced reports whether a node knows who is a replica, and the proxies of all others.
func (c *Six) announced(told string) bool {
	known := strings.Count(told, "slave ") == 3
	for node, bus := range c.buses {
		_, port, _ := strings.Cut(bus.Addr(), ":")
		known = known && strings.Contains(told, node.Addr()+"@"+port)
	}
	return known
}

// Nodes returns the three masters of the beginning, and then their replicas in the same order. The first master has the
// slots up to 5460, and the next one those up to 10921.
func (c *Six) Nodes() []*Server { return c.nodes }

// Pair returns which of the nth master and its replica is the master now, and which is the replica.
func (c *Six) Pair(n int) (master, replica *Server, err error) {
	first, second := c.nodes[n], c.nodes[n+3]
	told, err := ask(first, "INFO replication")
	if strings.Contains(told, "role:slave") {
		first, second = second, first
	}
	return first, second, err
}

// AwaitFailover waits until all nodes but old, which was a master, find the cluster complete, and promoted a master.
func (c *Six) AwaitFailover(old, promoted *Server) error {
	id, err := ask(promoted, "CLUSTER MYID")
	if err != nil {
		return err
	}
	others := c.except(old)
	err = await(others, "CLUSTER NODES", "a failover", func(told string) bool {
		_, line, _ := strings.Cut("\n"+told, "\n"+id)
		line, _, _ = strings.Cut(line, "\n")
		return strings.Contains(line, "master -") && strings.Count(line, " ") > 7 // with slots
	})
	if err != nil {
		return err
	}
	return awaitCluster(others, "cluster_state:ok")
}

// AwaitReplica waits until a node is a replica that has what its master has, and finds the cluster complete.
func (c *Six) AwaitReplica(node *Server) error {
	err := awaitCopy(node)
	if err == nil {
		err = awaitCluster([]*Server{node}, "cluster_state:ok")
	}
	return err
}

// AwaitRefusal waits until a node that is cut off takes no more writes.
func (c *Six) AwaitRefusal(node *Server) error {
	return awaitCluster([]*Server{node}, "cluster_state:fail")
}

func (c *Six) except(one *Server) (others []*Server) {
	for _, node := range c.nodes {
		if node != one {
			others = append(others, node)
		}
	}
	return others
}

// Isolate cuts a master off from all other nodes, until heal is called. Clients still reach it. None of the first 1,024
// slots may have been moved.
func (c *Six) Isolate(master *Server) (heal func() error, err error) {
	pattern, err := c.sender(master)
	if err != nil {
		return nil, err
	}
	letIn, err := shutOut(master)
	if err != nil {
		return nil, err
	}
	for node, bus := range c.buses {
		cut := Rule{Fault: LoseRequest, Times: math.MaxInt}
		if node != master {
			cut.Pattern = pattern
		}
		bus.Inject(cut)
	}
	return func() error {
		for _, bus := range c.buses {
			bus.Inject(Rule{})
		}
		return letIn()
	}, nil
}

// sender returns what only messages of a master to other nodes contain: its id, with the first of a bit for each slot
// behind it.
func (c *Six) sender(master *Server) (pattern string, err error) {
	told, err := ask(master, "CLUSTER NODES")
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
