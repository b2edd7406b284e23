//go:build unix

package servertest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// StartGalera starts a cluster of MariaDB nodes with an empty database. The settings are the settings of
// [StartMariaDB]. Every node accepts writes. A node that is started again joins the cluster. The cluster considers a
// node dead after a second of silence. The start takes a few seconds per node, because a joining node copies all
// files of another node. The error wraps [exec.ErrNotFound] if this machine lacks MariaDB or Galera.
func StartGalera(size int, settings ...string) (_ []*Maria, err error) {
	var nodes []*Maria
	defer func() {
		if err != nil {
			closeNodes(nodes)
		}
	}()
	provider, err := galeraProvider()
	if err != nil {
		return nil, err
	}
	for range size {
		node, err := startMaria(func(inst installation, dir string, port int) *exec.Cmd {
			args := append(mariaArgs(dir, port, settings), galeraArgs(provider, port, nodes)...)
			return inst.newCommand(filepath.Join(inst.binDir, "mariadbd"), args...)
		})
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// Galera starts a cluster for the duration of the test. See [StartGalera] and [Require].
func Galera(t testing.TB, size int, settings ...string) []*Maria {
	t.Helper()
	nodes, err := StartGalera(size, settings...)
	Require(t, err)
	t.Cleanup(func() { closeNodes(nodes) })
	return nodes
}

func closeNodes(nodes []*Maria) {
	for _, node := range nodes {
		node.Close()
	}
}

// galeraAddr returns the address for messages between nodes, for the node on port. The two ports above are for
// copies.
func galeraAddr(port int) string { return "127.0.0.1:" + strconv.Itoa(secondPort(port)) }

// galeraArgs returns the arguments for replication of the node on port. A node without peers creates the cluster: the
// first node at its first start.
func galeraArgs(provider string, port int, nodes []*Maria) []string {
	group := secondPort(port)
	var peers []string
	for _, node := range nodes {
		if node.port != port {
			peers = append(peers, galeraAddr(node.port))
		}
	}
	options := []string{
		"gmcast.listen_addr=tcp://" + galeraAddr(port), fmt.Sprintf("ist.recv_addr=127.0.0.1:%d", group+1),
		"gcache.size=8M", "pc.recovery=false", // after a crash of all nodes, no cluster is recovered
		"evs.keepalive_period=PT0.2S", "evs.inactive_check_period=PT0.2S", "evs.suspect_timeout=PT1S",
		"evs.inactive_timeout=PT3S", "evs.install_timeout=PT3S",
	}
	args := []string{
		"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON", "--wsrep-provider=" + provider,
		"--wsrep-cluster-name=test", "--wsrep-node-address=" + galeraAddr(port), "--wsrep-sst-method=rsync",
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", group+2),
		"--wsrep-cluster-address=gcomm://" + strings.Join(peers, ","),
		"--wsrep-provider-options=" + strings.Join(options, ";"),
	}
	if len(peers) == 0 {
		args = append(args, "--wsrep-new-cluster")
	}
	return args
}

// galeraProvider returns the path of the Galera library.
func galeraProvider() (string, error) {
	found, _ := filepath.Glob("/usr/lib*/galera*/libgalera_smm.so")
	if len(found) == 0 {
		return "", &exec.Error{Name: "libgalera_smm.so", Err: exec.ErrNotFound}
	}
	return found[0], nil
}
