//go:build unix

package servertest_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestRedisRequiresPassword(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		servertest.Redis(t).Addr(), servertest.RedisCluster(t)[0].Addr(), servertest.RedisSentinel(t, 1).Addrs()[0],
	} {
		conn := dial(t, addr)
		send(t, conn, "PING\r\n")
		expect(t, conn, "-NOAUTH Authentication required.\r\n")
		send(t, conn, "AUTH guess\r\n")
		expect(t, conn, "-WRONGPASS invalid username-password pair or user is disabled.\r\n")
	}
}

func TestPostgresRequiresPassword(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	none := psql(db.Addr(), "-w", "-c", "SELECT 1")
	none.Env = slices.DeleteFunc(none.Env, func(v string) bool { return strings.HasPrefix(v, "PGPASSWORD=") })
	none.Env = append(none.Env, "PGPASSFILE="+os.DevNull)
	wrong := psql(db.Addr(), "-w", "-c", "SELECT 1")
	wrong.Env = append(wrong.Env, "PGPASSWORD=guess")

	out, err := none.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no password supplied") {
		t.Errorf("got %q (%v) without a password, want a refusal", out, err)
	}
	out, err = wrong.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "password authentication failed") {
		t.Errorf("got %q (%v) for a wrong password, want a refusal", out, err)
	}
	if got := query(t, db, "SELECT DISTINCT auth_method FROM pg_hba_file_rules"); got != "scram-sha-256" {
		t.Errorf("got %q as the ways to authenticate, want SCRAM alone", got)
	}
	if got := query(t, db, "SELECT rolpassword FROM pg_authid WHERE rolcanlogin"); !strings.HasPrefix(got, "SCRAM-SHA-256$1:") {
		t.Errorf("got %q for the password, want its SCRAM secret", got)
	}
}

func TestMariaDBRequiresPassword(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	none := func(user string) *exec.Cmd {
		cmd := maria(m.Addr(), "--user="+user, "-e", "SELECT 1")
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "MYSQL_PWD=") })
		return cmd
	}
	socket := none("root")
	socket.Args = append(socket.Args, "--protocol=socket", "--socket="+filepath.Join(m.Dir(), "socket"))
	wrong := none("root")
	wrong.Env = append(wrong.Env, "MYSQL_PWD=guess")
	for _, cmd := range []*exec.Cmd{none("root"), none("mysql"), none("mariadb.sys"), none(""), socket, wrong} {
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "Access denied") &&
			!strings.Contains(string(out), "is not allowed to connect") {
			t.Errorf("got %q (%v), want a refusal", out, err)
		}
	}
	if got := ask(t, m, "SELECT group_concat(User, '@', Host ORDER BY User) FROM mysql.global_priv"); got !=
		"mariadb.sys@localhost,root@127.0.0.1" {
		t.Errorf("got users %s", got)
	}
}

// All users of the machine can read the arguments of a process.
func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	db, m := servertest.Postgres(t), servertest.MariaDB(t)
	servers := []*servertest.Server{servertest.Redis(t), db.Server, m.Server, servertest.PgBouncer(t, db, "pool_mode=session").Server}
	servers = append(servers, servertest.RedisSentinel(t, 1).Sentinels()...)
	cluster := servertest.Patroni(t, false)
	servers = append(servers, cluster.Servers()...)
	for _, server := range servers {
		expectNoPassword(t, strings.Join(server.Args(), " "))
		expectMode(t, server.Dir(), 0o700)
	}
	expectMode(t, filepath.Dir(db.Dir()), 0o711)
	expectMode(t, servertest.SecretFile(), 0o600)
	expectMode(t, servertest.MariaFile(), 0o600)
	for _, url := range cluster.URLs() {
		resp, err := http.Post(url, "application/json", strings.NewReader("{}"))
		check(t, err)
		check(t, resp.Body.Close())
		if resp.StatusCode < 400 {
			t.Errorf("got %s from %s without a password", resp.Status, url)
		}
	}
}

func expectMode(t *testing.T, name string, want os.FileMode) {
	t.Helper()
	info, err := os.Stat(name)
	check(t, err)
	if got := info.Mode().Perm(); got != want {
		t.Errorf("got mode %o for %s, want %o", got, name, want)
	}
}

func expectNoPassword(t *testing.T, arguments string) {
	t.Helper()
	for _, password := range []string{
		servertest.RedisPassword(), servertest.PostgresPassword, servertest.MariaPassword, servertest.PatroniPassword,
	} {
		if strings.Contains(arguments, password) {
			t.Errorf("the password is in %q", arguments)
		}
	}
}
