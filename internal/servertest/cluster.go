//go:build unix

package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// StartRedisCluster starts three masters that share the slots of a Redis Cluster, and waits until each of them finds
// the cluster complete, which takes Redis two seconds. Clients need [RedisPassword]. The connections between the
// masters have no password in Redis.
func StartRedisCluster() (_ []*Server, err error) {
	var masters []*Server
	defer func() {
		if err != nil {
			closeAll(masters)
		}
	}()
	for range 3 {
		master, err := StartRedis("--cluster-enabled", "yes")
		if err != nil {
			return nil, err
		}
		masters = append(masters, master)
	}
	if err := introduce(masters); err != nil {
		return nil, err
	}
	return masters, awaitCluster(masters)
}

// RedisCluster starts a cluster as [StartRedisCluster] does, for the duration of the test. See [Require].
func RedisCluster(t testing.TB) []*Server {
	t.Helper()
	masters, err := StartRedisCluster()
	Require(t, err)
	t.Cleanup(func() { closeAll(masters) })
	return masters
}

func closeAll(servers []*Server) {
	for _, s := range servers {
		s.Close()
	}
}

// introduce gives each master its part of the slots and the addresses of the masters before it.
func introduce(masters []*Server) error {
	for i, master := range masters {
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

func awaitCluster(masters []*Server) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for _, master := range masters {
		for {
			info, err := ask(master, "CLUSTER INFO")
			if err != nil {
				return err
			}
			if strings.Contains(info, "cluster_state:ok") {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the cluster is not complete after %v:\n%s", patience, info)
			}
			<-tick.C
		}
	}
	return nil
}

// ask sends one command to a Redis server and returns the reply, which must be a simple or a bulk string.
func ask(s *Server, command string) (string, error) {
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\n%s\r\n", redisPassword, command); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	if _, err := readReply(r); err != nil {
		return "", err
	}
	return readReply(r)
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, line := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '+':
		return line, nil
	case '$':
		n, err := strconv.Atoi(line)
		if err != nil || n < 0 {
			return "", err
		}
		bulk := make([]byte, n)
		_, err = io.ReadFull(r, bulk)
		return string(bulk), err
	default:
		return "", errors.New(line)
	}
}
