//go:build unix

package servertest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Galera is a cluster of MariaDB nodes with an empty database. Each of them takes writes. A node that is started again
// joins the others. They find a node dead when it has been silent for a second.
type Galera struct{ nodes []*Maria }

// StartGalera starts nodes one after the other, for which the settings are as for [StartMariaDB]. It takes a few seconds
// for each: a node that joins copies all files of another one. The error wraps [exec.ErrNotFound] if there is no MariaDB
// on this machine, or no Galera.
func StartGalera(nodes int, settings ...string) (*Galera, error) {
	provider, err := galeraProvider()
	if err != nil {
		return nil, err
	}
	g := &Galera{}
	for range nodes {
		node, err := g.join(provider, settings)
		if err != nil {
			g.Close()
			return nil, err
		}
		g.nodes = append(g.nodes, node)
	}
	return g, nil
}

// GaleraCluster starts nodes as [StartGalera] does, for the duration of the test. See [Require].
func GaleraCluster(t testing.TB, nodes int, settings ...string) *Galera {
	t.Helper()
	g, err := StartGalera(nodes, settings...)
	Require(t, err)
	t.Cleanup(g.Close)
	return g
}

// Nodes returns the nodes.
func (g *Galera) Nodes() []*Maria { return g.nodes }

// Close ends all nodes and removes their directories.
func (g *Galera) Close() {
	for _, node := range slices.Backward(g.nodes) {
		node.Close()
	}
}

// join starts a node. The first one makes the cluster.
func (g *Galera) join(provider string, settings []string) (*Maria, error) {
	return startMaria(func(inst installation, dir string, port int) *exec.Cmd {
		peers := g.peers(port)
		args := append(mariaArgs(dir, port, settings), galeraArgs(provider, port, peers)...)
		if len(peers) == 0 {
			args = append(args, "--wsrep-new-cluster")
		}
		return inst.command(filepath.Join(inst.bin, "mariadbd"), args...)
	})
}

// peers returns where the nodes other than that on a port hear each other.
func (g *Galera) peers(port int) (addrs []string) {
	for _, node := range g.nodes {
		if node.port != port {
			addrs = append(addrs, galeraAddr(node.port))
		}
	}
	return addrs
}

// galeraAddr returns where the node on a port hears the others. See [randomPort]. The next two ports are for copies.
func galeraAddr(port int) string { return "127.0.0.1:" + strconv.Itoa(galeraPort(port)) }

func galeraPort(port int) int { return port + 10000 }

func galeraArgs(provider string, port int, peers []string) []string {
	group := galeraPort(port)
	options := []string{
		"gmcast.listen_addr=tcp://" + galeraAddr(port), fmt.Sprintf("ist.recv_addr=127.0.0.1:%d", group+1),
		"gcache.size=8M", "pc.recovery=false", // a cluster whose nodes have all died is not made again
		"evs.keepalive_period=PT0.2S", "evs.inactive_check_period=PT0.2S", "evs.suspect_timeout=PT1S",
		"evs.inactive_timeout=PT3S", "evs.install_timeout=PT3S",
	}
	return []string{
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON", "--wsrep-provider=" + provider,
		"--wsrep-cluster-name=test", "--wsrep-node-address=" + galeraAddr(port), "--wsrep-sst-method=rsync",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", group+2),
		"--wsrep-cluster-address=gcomm://" + strings.Join(peers, ","),
		"--wsrep-provider-options=" + strings.Join(options, ";"),
	}
}

// galeraProvider returns the library by which a server replicates.
func galeraProvider() (string, error) {
	for _, pattern := range []string{"/usr/lib/galera/libgalera_smm.so", "/usr/lib*/galera*/libgalera_smm.so"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", &exec.Error{Name: "libgalera_smm.so", Err: exec.ErrNotFound}
}
