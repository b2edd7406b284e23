//go:build unix

package servertest

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// redisPassword differs from the password of PostgreSQL, because Redis clients send the password in plain text, even
// to a different server that has taken the port.
var redisPassword = rand.Text()

// RedisPassword returns the password of all Redis servers that this process starts.
func RedisPassword() string { return redisPassword }

// StartRedis starts a redis-server, or the program named by the environment variable IDEMPOTENCY_REDIS, such as
// "valkey-server". Clients need [RedisPassword]. By default the server stores nothing on disk; args, such as
// "--appendonly", "yes", can change that. The error wraps [exec.ErrNotFound] if this machine lacks the program.
func StartRedis(args ...string) (*Server, error) {
	return startRedis(func(path, dir string, port int) *exec.Cmd { return redisCommand(path, dir, port, args...) })
}

// startRedis starts a server with the command that command returns for the program at path.
func startRedis(command func(path, dir string, port int) *exec.Cmd) (*Server, error) {
	program := cmp.Or(os.Getenv("IDEMPOTENCY_REDIS"), "redis-server")
	s, _, err := newServer(program, []string{"redis", "nobody"}, command)
	if err != nil {
		return nil, err
	}
	if err := s.fillAndStart(func() error { return nil }); err != nil {
		return nil, err
	}
	return s, nil
}

// peerUser is the user of replicas and sentinels. The user has the same password as clients.
const peerUser = "peer"

// redisCommand passes the password through standard input, because all users of the machine can read arguments.
func redisCommand(path, dir string, port int, args ...string) *exec.Cmd {
	own := []string{"-", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", ""}
	cmd := exec.Command(path, append(own, args...)...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`requirepass %[1]s
user %[2]s on >%[1]s ~* &* +@all
masteruser %[2]s
masterauth %[1]s
`, redisPassword, peerUser))
	return cmd
}

// Redis starts a redis-server for the duration of the test. See [StartRedis] and [Require].
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := StartRedis(args...)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}

// blockPeers makes a server refuse replicas and sentinels until allowPeers is called. Clients are not affected.
func blockPeers(s *Server) (allowPeers func() error, err error) {
	if _, err := askRedis(s, "ACL SETUSER "+peerUser+" off"); err != nil {
		return nil, err
	}
	_, err = askRedis(s, "CLIENT KILL USER "+peerUser)
	return func() error {
		_, err := askRedis(s, "ACL SETUSER "+peerUser+" on")
		return err
	}, err
}

// awaitReplication waits until the replicas have copied the data of their masters.
func awaitReplication(replicas ...*Server) error {
	return awaitReplies(replicas, "INFO replication", "a copy of the master", func(told string) bool {
		return strings.Contains(told, "master_link_status:up")
	})
}
