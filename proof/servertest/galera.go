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

// StartGalera starts a cluster of MariaDB nodes with an empty database, for which the settings are as for [StartMariaDB].
// Each node takes writes. One that is started again joins the others, which find it dead when it has been silent for a
// second. It takes a few seconds for each node: one that joins copies all files of another one. The error wraps
// [exec.ErrNotFound] if there is no MariaDB on this machine, or no Galera.
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
			return inst.command(filepath.Join(inst.bin, "mariadbd"), args...)
		})
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// Galera starts a cluster as [StartGalera] does, for the duration of the test. See [Require].
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

// galeraAddr returns where the node on a port hears the others. The next two ports are for copies.
func galeraAddr(port int) string { return "127.0.0.1:" + strconv.Itoa(secondPort(port)) }

// galeraArgs returns what the node on a port is told besides. The first one makes the cluster; it joins the others when it
// is started again.
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
		"gcache.size=8M", "pc.recovery=false", // a cluster whose nodes have all died is not made again
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

// galeraProvider returns the library by which a server replicates.
func galeraProvider() (string, error) {
	found, _ := filepath.Glob("/usr/lib*/galera*/libgalera_smm.so")
	if len(found) == 0 {
		return "", &exec.Error{Name: "libgalera_smm.so", Err: exec.ErrNotFound}
	}
	return found[0], nil
}
