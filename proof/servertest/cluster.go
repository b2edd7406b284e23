//go:build unix

package servertest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

const slots = 16384

// StartRedisCluster starts so many masters, which share the slots of a Redis Cluster, and waits until each of them finds
// the cluster complete, which takes Redis two seconds. Clients need [RedisPassword]. The connections between the
// masters have no password in Redis.
func StartRedisCluster(number int) (_ []*Server, err error) {
	var masters []*Server
	defer func() {
		if err != nil {
			closeAll(masters)
		}
	}()
	for range number {
		master, err := StartRedis("--cluster-enabled", "yes")
		if err != nil {
			return nil, err
		}
		masters = append(masters, master)
	}
	if err := introduce(masters); err != nil {
		return nil, err
	}
	return masters, awaitCluster(masters, "cluster_state:ok")
}

// awaitCluster waits until each node says something of the cluster.
func awaitCluster(nodes []*Server, wanted string) error {
	return await(nodes, "CLUSTER INFO", wanted, func(told string) bool { return strings.Contains(told, wanted+"\r\n") })
}

// RedisCluster starts a cluster of three masters as [StartRedisCluster] does, for the duration of the test. See [Require].
func RedisCluster(t testing.TB) []*Server {
	t.Helper()
	masters, err := StartRedisCluster(3)
	Require(t, err)
	t.Cleanup(func() { closeAll(masters) })
	return masters
}

func closeAll(servers []*Server) {
	for _, s := range servers {
		s.Close()
	}
}

// introduce gives each master a config epoch, its part of the slots and the addresses of the masters before it. Masters
// that begin with the same epoch change theirs later, and the replica of one that dies before it has told so is never elected.
func introduce(masters []*Server) error {
	for i, master := range masters {
		if _, err := ask(master, fmt.Sprint("CLUSTER SET-CONFIG-EPOCH ", i+1)); err != nil {
			return err
		}
		command := "CLUSTER ADDSLOTS"
		for slot := i * slots / len(masters); slot < (i+1)*slots/len(masters); slot++ {
			command += " " + strconv.Itoa(slot)
		}
		if _, err := ask(master, command); err != nil {
			return err
		}
		for _, other := range masters[:i] {
			if _, err := ask(master, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d", other.port)); err != nil {
				return err
			}
		}
	}
	return nil
}
