//go:build unix

package servertest_test

import (
	"bufio"
	"context"
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
	soon  = 10 * time.Second       // something has to have happened
	while = 100 * time.Millisecond // something must not happen
)

func TestRedisHasItsAddressAndFilesAfterACrash(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"forgets by default", nil, ""},
		{"remembers if told to", []string{"--appendonly", "yes"}, "v"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := servertest.Redis(t, tt.args...)
			addr := s.Addr()
			redis(t, s, "SET k v")

			s.Crash()
			if _, err := servertest.Ask(s, "PING"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("got error %v after the crash, want a refused connection", err)
			}
			check(t, s.Restart())
			if got := redis(t, s, "GET k"); got != tt.want || s.Addr() != addr {
				t.Errorf("got %q from %s after the crash, want %q from %s", got, s.Addr(), tt.want, addr)
			}
		})
	}
}

func TestRedisIsTheProgramThatIsAskedFor(t *testing.T) {
	servertest.Redis(t) // skips this test, too
	for program, want := range map[string]string{
		"no-such-server": exec.ErrNotFound.Error(),
		"false":          "/false - --port", // is not a server, and ends
	} {
		t.Setenv("IDEMPOTENCY_REDIS", program)
		if _, err := servertest.StartRedis(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func TestRedisIsSilentDuringAPause(t *testing.T) {
	t.Parallel()
	s := servertest.Redis(t)
	conn := dialRedis(t, s.Addr())
	check(t, s.Pause())
	send(t, conn, "PING\r\n")
	expectSilence(t, conn)
	s.Resume()
	expect(t, conn, "+PONG\r\n")
	s.Crash()
	if err := s.Pause(); err == nil {
		t.Error("a crashed server was paused")
	}
}

func TestRedisClusterIsComplete(t *testing.T) {
	t.Parallel()
	masters := servertest.RedisCluster(t)
	if len(masters) != 3 {
		t.Fatalf("got %d masters, want 3", len(masters))
	}
	for _, master := range masters {
		info := redis(t, master, "CLUSTER INFO")
		for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384", "cluster_size:3"} {
			if !strings.Contains(info, want+"\r\n") {
				t.Errorf("got %s, want %s", info, want)
			}
		}
	}
}

func TestPostgresSurvivesStopAndCrash(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	url := db.URL()
	query(t, db, "CREATE TABLE done (id int)")
	for i, end := range []func(){db.Stop, db.Crash} {
		query(t, db, fmt.Sprintf("INSERT INTO done VALUES (%d)", i))
		processes := db.Processes()
		end()
		expectGone(t, processes)
		if out, err := psql(db.Addr(), "-c", "SELECT 1").CombinedOutput(); err == nil {
			t.Errorf("got %s from a server that does not run", out)
		}
		check(t, db.Restart())
	}
	if got := query(t, db, "SELECT string_agg(id::text, ' ') FROM done"); got != "0 1" || db.URL() != url {
		t.Errorf("got rows %q at %s, want %q at %s", got, db.URL(), "0 1", url)
	}
}

func TestPostgresTakesSettings(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t, "fsync=on")
	if got := query(t, db, "SELECT current_setting('fsync')"); got != "on" {
		t.Errorf("got fsync %s, want on", got)
	}
}

func TestPostgresIsSilentDuringAPause(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	session := psql(db.Addr())
	in, err := session.StdinPipe()
	check(t, err)
	out, err := session.StdoutPipe()
	check(t, err)
	check(t, session.Start())
	lines := make(chan string)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	fmt.Fprintln(in, "SELECT 1;")
	<-lines

	check(t, db.Pause())
	fmt.Fprintln(in, "SELECT 2;")
	ctx, cancel := context.WithTimeout(t.Context(), while)
	defer cancel()
	newcomer := psql(db.Addr(), "-c", "SELECT 3")
	check(t, newcomer.Start())
	select {
	case line := <-lines:
		t.Errorf("got %q during the pause", line)
	case <-ctx.Done():
	}

	db.Resume()
	if got := <-lines; got != "2" {
		t.Errorf("got %q after the pause, want 2", got)
	}
	check(t, newcomer.Wait())
	check(t, in.Close())
	if got, ok := <-lines; ok {
		t.Errorf("got %q after the end", got)
	}
	check(t, session.Wait())
}

func TestMariaDBSurvivesStopAndCrash(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	dsn := m.DSN()
	ask(t, m, "CREATE TABLE done (id int)")
	for i, end := range []func(){m.Stop, m.Crash} {
		ask(t, m, fmt.Sprintf("INSERT INTO done VALUES (%d)", i))
		processes := m.Processes()
		end()
		expectGone(t, processes)
		if out, err := maria(m.Addr(), "-e", "SELECT 1").CombinedOutput(); err == nil {
			t.Errorf("got %s from a server that does not run", out)
		}
		check(t, m.Restart())
	}
	got := ask(t, m, "SELECT group_concat(id ORDER BY id SEPARATOR ' ') FROM done")
	if got != "0 1" || m.DSN() != dsn {
		t.Errorf("got rows %q at %s, want %q at %s", got, m.DSN(), "0 1", dsn)
	}
}

func TestMariaDBTakesSettings(t *testing.T) {
	t.Parallel()
	const settings = "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@bind_address"
	for want, m := range map[string]*servertest.Maria{
		"2\t0\t127.0.0.1": servertest.MariaDB(t),
		"1\t1\t127.0.0.1": servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1", "log_bin=on"),
	} {
		if got := ask(t, m, settings); got != want {
			t.Errorf("got settings %q, want %q", got, want)
		}
	}
}

func TestMariaDBIsSilentDuringAPause(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	check(t, m.Pause())
	newcomer := maria(m.Addr(), "-e", "SELECT 3")
	var out strings.Builder
	newcomer.Stdout = &out
	check(t, newcomer.Start())
	ended := make(chan error)
	go func() { ended <- newcomer.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("the client has ended during the pause: %v", err)
	case <-time.After(while):
	}
	m.Resume()
	check(t, <-ended)
	if got := strings.TrimSpace(out.String()); got != "3" {
		t.Errorf("got %q after the pause, want 3", got)
	}
}

func TestStandbyRefusesToWrite(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	query(t, db, "CREATE TABLE done (id int)")
	check(t, db.Standby())
	if got := query(t, db, "SELECT pg_is_in_recovery(), count(*) FROM done"); got != "t|0" {
		t.Errorf("got %s, want t|0", got)
	}
	out, err := psql(db.Addr(), "-c", "INSERT INTO done VALUES (1)").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "read-only") {
		t.Errorf("got %s (%v), want a refusal", out, err)
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

func TestStartTellsWhatTheServerSaid(t *testing.T) {
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
	servertest.Postgres(t).Close() // makes what all servers of this process share
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
	s.Close() // does no harm

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

// recorder notes how a test ends.
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

// expectGone fails unless the processes are gone already: not even unreaped ones are left.
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
