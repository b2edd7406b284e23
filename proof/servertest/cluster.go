//go:build unix

package servertest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

const slotCount = 16384

// StartRedisCluster starts a Redis Cluster with number masters, and waits until each master reports the cluster as
// complete, which takes Redis two seconds. Clients need [RedisPassword]. In Redis, the connections between masters
// have no password.
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
	if err := joinMasters(masters); err != nil {
		return nil, err
	}
	return masters, awaitCluster(masters, "cluster_state:ok")
}

// awaitCluster waits until CLUSTER INFO of each node contains the line wanted.
func awaitCluster(nodes []*Server, wanted string) error {
	return awaitReplies(nodes, "CLUSTER INFO", wanted, func(reply string) bool {
		return strings.Contains(reply, wanted+"\r\n")
	})
}

// RedisCluster starts a cluster of three masters for the duration of the test. See [StartRedisCluster] and [Require].
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

// joinMasters gives each master a config epoch, a share of the slots, and the addresses of the masters before. The
// epochs differ, because masters with the same epoch change their epochs later, and the replica of a master that
// crashes before announcing the new epoch is never elected.
func joinMasters(masters []*Server) error {
	for i, master := range masters {
		if _, err := askRedis(master, fmt.Sprint("CLUSTER SET-CONFIG-EPOCH ", i+1)); err != nil {
			return err
		}
		command := "CLUSTER ADDSLOTS"
		for slot := i * slotCount / len(masters); slot < (i+1)*slotCount/len(masters); slot++ {
			command += " " + strconv.Itoa(slot)
		}
		if _, err := askRedis(master, command); err != nil {
			return err
		}
		for _, other := range masters[:i] {
			if _, err := askRedis(master, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d", other.port)); err != nil {
				return err
			}
		}
	}
	return nil
}
