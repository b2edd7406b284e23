//go:build unix

package servertest_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

const (
	soon  = 10 * time.Second       // time limit for expected events
	while = 100 * time.Millisecond // time without an unexpected event
)

func TestRedisProgramFromEnvironment(t *testing.T) {
	servertest.Redis(t) // skips the test if Redis is missing
	for program, want := range map[string]string{
		"no-such-server": exec.ErrNotFound.Error(),
		"false":          "/false - --port", // ends at once
	} {
		t.Setenv("IDEMPOTENCY_REDIS", program)
		if _, err := servertest.StartRedis(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func TestStartTriesAnotherPort(t *testing.T) {
	t.Parallel()
	other := servertest.Redis(t)
	_, taken, _ := net.SplitHostPort(other.Addr())
	port, err := strconv.Atoi(taken)
	check(t, err)
	var tried []int
	s, err := servertest.StartCommand(func(dir string, free int) *exec.Cmd {
		tried = append(tried, port)
		if len(tried) == 3 {
			tried[2] = free
		}
		return servertest.RedisCommand(dir, tried[len(tried)-1])
	})
	check(t, err)
	defer s.Close()
	if len(tried) != 3 || tried[2] == port {
		t.Fatalf("tried %v, want another port than %d at the third time", tried, port)
	}
	redis(t, s, "PING")
}

func TestStartErrorHasServerOutput(t *testing.T) {
	t.Parallel()
	_, redis := servertest.StartRedis("--nonsense", "1")
	_, postgres := servertest.StartPostgres("nonsense=1")
	_, mariadb := servertest.StartMariaDB("nonsense=1")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{redis, "FATAL CONFIG FILE ERROR"},
		{postgres, "unrecognized configuration parameter"},
		{mariadb, "unknown variable 'nonsense=1'"},
	} {
		if errors.Is(tt.err, exec.ErrNotFound) {
			servertest.Require(t, tt.err)
		}
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("got error %v, want one with %q", tt.err, tt.want)
		}
	}
}

func TestClosedServersLeaveNothing(t *testing.T) {
	servertest.Postgres(t).Close() // creates the template, which all servers of this process share
	servertest.MariaDB(t).Close()
	before := runtime.NumGoroutine()

	db, err := servertest.StartPostgres()
	check(t, err)
	s, err := servertest.StartRedis()
	servertest.Require(t, err)
	redis(t, s, "SET k v")
	m, err := servertest.StartMariaDB()
	check(t, err)
	check(t, db.Pause())
	processes := slices.Concat(db.Processes(), m.Processes(), s.Processes())
	if len(processes) < 5 {
		t.Errorf("got processes %v, want those of Redis and MariaDB, and several of PostgreSQL", processes)
	}
	db.Close()
	m.Close()
	s.Close()
	s.Close() // has no effect

	expectGone(t, processes)
	for _, dir := range []string{db.Dir(), m.Dir(), s.Dir()} {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there", dir)
		}
	}
	eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

func TestRequire(t *testing.T) {
	missing := fmt.Errorf("redis-server: %w", exec.ErrNotFound)
	for _, tt := range []struct {
		name string
		err  error
		ci   bool
		want string
	}{
		{"nothing is wrong", nil, true, ""},
		{"a program is missing", missing, false, "skipped"},
		{"a program is missing in CI", missing, true, "failed"},
		{"something else", errors.New("no memory"), false, "failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("IDEMPOTENCY_CI", "")
			if !tt.ci {
				check(t, os.Unsetenv("IDEMPOTENCY_CI"))
			}
			fake := &recorder{TB: t}
			func() {
				defer func() { _ = recover() }()
				servertest.Require(fake, tt.err)
			}()
			if fake.result != tt.want {
				t.Errorf("got %q, want %q", fake.result, tt.want)
			}
		})
	}
}

// recorder records the end of a test.
type recorder struct {
	testing.TB
	result string
}

func (r *recorder) Skipf(string, ...any) { r.result = "skipped"; panic(r) }
func (r *recorder) Fatal(...any)         { r.result = "failed"; panic(r) }

func redis(t *testing.T, s *servertest.Server, command string) string {
	t.Helper()
	reply, err := servertest.Ask(s, command)
	check(t, err)
	return reply
}

func psql(addr string, args ...string) *exec.Cmd {
	return servertest.Psql(addr, append([]string{"-XAtq"}, args...)...)
}

func query(t *testing.T, db *servertest.Database, sql string) string {
	t.Helper()
	out, err := psql(db.Addr(), "-c", sql).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

func maria(addr string, args ...string) *exec.Cmd { return servertest.MariaClient(addr, args...) }

func ask(t *testing.T, m *servertest.Maria, sql string) string {
	t.Helper()
	out, err := maria(m.Addr(), "-e", sql, "test").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// expectGone checks that all processes have ended and were reaped.
func expectGone(t *testing.T, processes []int) {
	t.Helper()
	for _, process := range processes {
		if err := syscall.Kill(process, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("got %v for process %d, want that it is gone", err, process)
		}
	}
}

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(soon); !happened(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", soon, what)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
