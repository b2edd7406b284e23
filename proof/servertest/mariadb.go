//go:build unix

package servertest

import (
	"crypto/rand"
	"crypto/sha1"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Maria is a MariaDB server with an empty database. Only DSN tells its password, which all of this process share. Crash
// is SIGKILL.
type Maria struct{ *Server }

var mariaPassword = rand.Text()

// StartMariaDB starts a MariaDB server. The settings, such as "max_connections=20", outrank its configuration. Unless
// they say otherwise, there is no binary log, and a commit does not wait for the disk: only a crash of the machine
// could tell the difference. The error wraps [exec.ErrNotFound] if there is no MariaDB on this machine.
func StartMariaDB(settings ...string) (*Maria, error) {
	return startMaria(func(inst installation, dir string, port int) *exec.Cmd {
		return inst.command(filepath.Join(inst.bin, "mariadbd"), mariaArgs(dir, port, settings)...)
	})
}

// startMaria starts a server by a command, on a copy of the template.
func startMaria(command func(inst installation, dir string, port int) *exec.Cmd) (*Maria, error) {
	inst, err := ownMariaDB()
	if err != nil {
		return nil, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	m := &Maria{&Server{dir: dir, abort: syscall.SIGKILL, command: func(dir string, port int) *exec.Cmd {
		return command(inst, dir, port)
	}}}
	if err := m.startWith(func() error { return inst.copyTemplate(dataDir(dir)) }); err != nil {
		return nil, err
	}
	return m, nil
}

// MariaDB starts a MariaDB server as [StartMariaDB] does, for the duration of the test. See [Require].
func MariaDB(t testing.TB, settings ...string) *Maria {
	t.Helper()
	m, err := StartMariaDB(settings...)
	Require(t, err)
	t.Cleanup(m.Close)
	return m
}

// DSN returns what a superuser connects to the database with, as go-sql-driver/mysql writes it. It contains the
// password.
func (m *Maria) DSN() string { return m.DSNAt(m.Addr()) }

// DSNAt returns the DSN for a client that connects to another address, such as that of a [Proxy].
func (m *Maria) DSNAt(addr string) string {
	return "root:" + mariaPassword + "@tcp(" + addr + ")/test"
}

// Stop ends the server in order, as an administrator would: transactions are rolled back, and the rest is written.
// Restart starts it again.
func (m *Maria) Stop() { m.end(syscall.SIGTERM) }

func mariaArgs(dir string, port int, settings []string) []string {
	args := []string{
		"--no-defaults", "--datadir=" + dataDir(dir), "--tmpdir=" + dir, "--pid-file=" + filepath.Join(dir, "pid"),
		"--socket=" + filepath.Join(dir, "socket"), "--bind-address=127.0.0.1", "--port=" + strconv.Itoa(port),
		"--skip-name-resolve", "--skip-log-bin", "--performance-schema=OFF",
	}
	own := []string{"innodb_buffer_pool_size=16M", "innodb_flush_log_at_trx_commit=2"}
	for _, setting := range slices.Concat(mariaFiles, own, settings) {
		args = append(args, "--"+setting)
	}
	return args
}

// mariaFiles keep the files of a server small. They are copied for each.
var mariaFiles = []string{"innodb_log_file_size=8M", "innodb_temp_data_file_path=ibtmp1:1M:autoextend"}

// ownMariaDB looks for MariaDB and makes the template: a copy of it is faster than mariadb-install-db.
var ownMariaDB = sync.OnceValues(func() (inst installation, err error) {
	if inst.bin, err = mariaBin(); err != nil {
		return inst, err
	}
	if inst.owner, err = account("mysql", "nobody"); err != nil {
		return inst, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return inst, err
	}
	users, err := writeSecret(dir, mariaUsers(), inst.owner)
	if err != nil {
		return inst, err
	}
	inst.template = dataDir(dir)
	args := []string{"--no-defaults", "--datadir=" + inst.template, "--tmpdir=" + dir, "--extra-file=" + users,
		"--skip-name-resolve", "--skip-test-db", "--skip-log-bin"}
	for _, setting := range mariaFiles {
		args = append(args, "--"+setting)
	}
	return inst, run(inst.command("mariadb-install-db", args...))
})

// mariaUsers replaces the users that mariadb-install-db makes, who need no password, by one who does.
func mariaUsers() string {
	once := sha1.Sum([]byte(mariaPassword))
	twice := sha1.Sum(once[:])
	return strings.Join([]string{
		"DELETE FROM mysql.global_priv WHERE User <> 'mariadb.sys';",
		"DELETE FROM mysql.proxies_priv;",
		"FLUSH PRIVILEGES;",
		fmt.Sprintf("CREATE USER root@'127.0.0.1' IDENTIFIED BY PASSWORD '*%X';", twice),
		"GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;",
		"CREATE DATABASE test;",
	}, "\n") + "\n"
}

// mariaBin looks in the PATH, and then where Debian has the server.
func mariaBin() (string, error) {
	if _, err := exec.LookPath("mariadb-install-db"); err != nil {
		return "", err
	}
	path, err := exec.LookPath("mariadbd")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mariadbd")
	}
	return filepath.Dir(path), err
}
