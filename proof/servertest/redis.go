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

// redisPassword is not that of PostgreSQL: Redis clients send it in the clear, to whoever has the port by then.
var redisPassword = rand.Text()

// RedisPassword returns the password of all Redis servers that this process starts.
func RedisPassword() string { return redisPassword }

// StartRedis starts a redis-server, or the program that the environment variable IDEMPOTENCY_REDIS names, such as
// "valkey-server". Its clients need [RedisPassword]. It stores nothing on disk unless args, such as "--appendonly",
// "yes", tell it to. The error wraps [exec.ErrNotFound] if this machine does not have the program.
func StartRedis(args ...string) (*Server, error) {
	return startRedis(func(path, dir string, port int) *exec.Cmd { return redisCommand(path, dir, port, args...) })
}

// startRedis starts a server by a command of the program at path.
func startRedis(command func(path, dir string, port int) *exec.Cmd) (*Server, error) {
	program := cmp.Or(os.Getenv("IDEMPOTENCY_REDIS"), "redis-server")
	s, _, err := newServer(program, []string{"redis", "nobody"}, command)
	if err != nil {
		return nil, err
	}
	if err := s.startWith(func() error { return nil }); err != nil {
		return nil, err
	}
	return s, nil
}

// peer is the user as whom replicas and sentinels come to a server. It has the password, too.
const peer = "peer"

// redisCommand gives the password through standard input, since everybody can read arguments.
func redisCommand(path, dir string, port int, args ...string) *exec.Cmd {
	own := []string{"-", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", ""}
	cmd := exec.Command(path, append(own, args...)...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`requirepass %[1]s
user %[2]s on >%[1]s ~* &* +@all
masteruser %[2]s
masterauth %[1]s
`, redisPassword, peer))
	return cmd
}

// Redis starts a redis-server as [StartRedis] does, for the duration of the test. See [Require].
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := StartRedis(args...)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}

// shutOut has a server hear no replica and no sentinel, until letIn is called. Its clients notice nothing.
func shutOut(s *Server) (letIn func() error, err error) {
	if _, err := ask(s, "ACL SETUSER "+peer+" off"); err != nil {
		return nil, err
	}
	_, err = ask(s, "CLIENT KILL USER "+peer)
	return func() error {
		_, err := ask(s, "ACL SETUSER "+peer+" on")
		return err
	}, err
}

// awaitCopy waits until replicas have what their master has.
func awaitCopy(replicas ...*Server) error {
	return await(replicas, "INFO replication", "a copy of the master", func(told string) bool {
		return strings.Contains(told, "master_link_status:up")
	})
}
