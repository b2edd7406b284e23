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

// Maria is a MariaDB server with an empty database. DSN contains the password, which all MariaDB servers of this
// process share. Crash uses SIGKILL.
type Maria struct{ *Server }

var mariaPassword = rand.Text()

// StartMariaDB starts a MariaDB server. The settings, such as "max_connections=20", override the defaults. By default
// the server has no binary log, and commits do not wait for the disk, which matters only for a crash of the machine.
// The error wraps [exec.ErrNotFound] if this machine lacks MariaDB.
func StartMariaDB(settings ...string) (*Maria, error) {
	return startMaria(func(inst installation, dir string, port int) *exec.Cmd {
		return inst.newCommand(filepath.Join(inst.binDir, "mariadbd"), mariaArgs(dir, port, settings)...)
	})
}

// startMaria starts a server on a copy of the template, with the command that command returns.
func startMaria(command func(inst installation, dir string, port int) *exec.Cmd) (*Maria, error) {
	inst, err := ownMariaDB()
	if err != nil {
		return nil, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	m := &Maria{&Server{dir: dir, abortSignal: syscall.SIGKILL, newCommand: func(dir string, port int) *exec.Cmd {
		return command(inst, dir, port)
	}}}
	if err := m.fillAndStart(func() error { return inst.copyTemplate(dataDir(dir)) }); err != nil {
		return nil, err
	}
	return m, nil
}

// MariaDB starts a MariaDB server for the duration of the test. See [StartMariaDB] and [Require].
func MariaDB(t testing.TB, settings ...string) *Maria {
	t.Helper()
	m, err := StartMariaDB(settings...)
	Require(t, err)
	t.Cleanup(m.Close)
	return m
}

// DSN returns the data source name of a superuser, in the form of go-sql-driver/mysql. The DSN contains the password.
func (m *Maria) DSN() string { return m.DSNAt(m.Addr()) }

// DSNAt returns the DSN for a connection to addr, for example the address of a [Proxy].
func (m *Maria) DSNAt(addr string) string {
	return "root:" + mariaPassword + "@tcp(" + addr + ")/test"
}

// Stop shuts the server down cleanly: the server rolls transactions back, and writes its data to disk. Restart starts
// the server again.
func (m *Maria) Stop() { m.endWith(syscall.SIGTERM) }

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

// mariaFiles are settings for small files, because each server gets a copy of the files.
var mariaFiles = []string{"innodb_log_file_size=8M", "innodb_temp_data_file_path=ibtmp1:1M:autoextend"}

// ownMariaDB finds MariaDB and creates the template, because a copy of the template is faster than
// mariadb-install-db.
var ownMariaDB = sync.OnceValues(func() (inst installation, err error) {
	if inst.binDir, err = mariaBin(); err != nil {
		return inst, err
	}
	if inst.owner, err = findAccount("mysql", "nobody"); err != nil {
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
	inst.templateDir = dataDir(dir)
	args := []string{"--no-defaults", "--datadir=" + inst.templateDir, "--tmpdir=" + dir, "--extra-file=" + users,
		"--skip-name-resolve", "--skip-test-db", "--skip-log-bin"}
	for _, setting := range mariaFiles {
		args = append(args, "--"+setting)
	}
	return inst, runCommand(inst.newCommand("mariadb-install-db", args...))
})

// mariaUsers returns SQL that replaces the users of mariadb-install-db, which need no password, with root, which
// needs a password.
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

// mariaBin returns the directory of mariadbd: from the PATH, or the directory that Debian uses.
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
