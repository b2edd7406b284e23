//go:build unix

package servertest

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Database is a PostgreSQL server with an empty database. URL contains the password, which all PostgreSQL servers of
// this process share.
type Database struct{ *Server }

var postgresPassword = rand.Text()

// StartPostgres starts a PostgreSQL server. The settings, such as "max_connections=20", override the defaults. By
// default fsync is off, which matters only for a crash of the machine. The error wraps [exec.ErrNotFound] if this
// machine lacks PostgreSQL.
func StartPostgres(settings ...string) (*Database, error) {
	return startPostgres(settings, installation.copyTemplate)
}

// startPostgres starts a server after fill has created the files of the server in the directory data.
func startPostgres(settings []string, fill func(inst installation, data string) error) (*Database, error) {
	inst, err := ownInstallation()
	if err != nil {
		return nil, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	db := &Database{&Server{dir: dir, abortSignal: syscall.SIGQUIT, newCommand: func(dir string, port int) *exec.Cmd {
		args := []string{"-D", dataDir(dir), "-p", strconv.Itoa(port)}
		own := []string{"listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"}
		for _, setting := range append(own, settings...) {
			args = append(args, "-c", setting)
		}
		return inst.newCommand(filepath.Join(inst.binDir, "postgres"), args...)
	}}}
	if err := db.fillAndStart(func() error { return fill(inst, dataDir(dir)) }); err != nil {
		return nil, err
	}
	return db, nil
}

// Postgres starts a PostgreSQL server for the duration of the test. See [StartPostgres] and [Require].
func Postgres(t testing.TB, settings ...string) *Database {
	t.Helper()
	db, err := StartPostgres(settings...)
	Require(t, err)
	t.Cleanup(db.Close)
	return db
}

// URL returns the URL of the database for a superuser. The URL contains the password.
func (db *Database) URL() string { return db.URLAt(db.Addr()) }

// URLAt returns the URL for a connection to addr, for example the address of a [Proxy].
func (db *Database) URLAt(addr string) string {
	return "postgres://postgres:" + postgresPassword + "@" + addr + "/postgres?sslmode=disable"
}

// Stop shuts the server down in fast mode: the server ends all sessions, and rolls their transactions back. Restart
// starts the server again.
func (db *Database) Stop() { db.endWith(syscall.SIGINT) }

// Standby restarts the server as a standby without a primary. The server answers queries, but refuses writes.
func (db *Database) Standby() error {
	db.Stop()
	if err := os.WriteFile(filepath.Join(dataDir(db.dir), "standby.signal"), nil, 0o644); err != nil {
		return err
	}
	return db.Restart()
}

// Psql runs a script with psql in a database of the server, until the first error.
func (db *Database) Psql(database, script string) error {
	inst, err := ownInstallation()
	if err != nil {
		return err
	}
	cmd := inst.newCommand(filepath.Join(inst.binDir, "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1",
		"--host=127.0.0.1", "--port="+strconv.Itoa(db.port), "--username=postgres", database)
	cmd.Env = append(cmd.Env, "PGPASSWORD="+postgresPassword)
	cmd.Stdin = strings.NewReader(script)
	return runCommand(cmd)
}

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// installation is a PostgreSQL or MariaDB on this machine.
type installation struct {
	binDir      string              // directory of the server program
	owner       *syscall.Credential // account of the server; nil: the account of this process
	templateDir string              // files of a new server
}

// ownInstallation finds PostgreSQL and creates the template, because a copy of the template is much faster than
// initdb.
var ownInstallation = sync.OnceValues(func() (inst installation, err error) {
	if inst.binDir, err = postgresBin(); err != nil {
		return inst, err
	}
	if inst.owner, err = findAccount("postgres"); err != nil {
		return inst, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return inst, err
	}
	secret, err := scramSecret(postgresPassword)
	if err != nil {
		return inst, err
	}
	pwfile, err := writeSecret(dir, secret, inst.owner)
	if err != nil {
		return inst, err
	}
	inst.templateDir = dataDir(dir)
	return inst, runCommand(inst.newCommand(filepath.Join(inst.binDir, "initdb"), "-D", inst.templateDir, "-U", "postgres",
		"--auth=scram-sha-256", "--pwfile", pwfile, "--encoding=UTF8", "--no-locale", "--no-sync"))
})

// writeSecret creates a file that only owner can read, and returns the name of the file.
func writeSecret(dir, secret string, owner *syscall.Credential) (string, error) {
	f, err := os.CreateTemp(dir, "secret")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if owner != nil {
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return "", err
		}
	}
	_, err = f.WriteString(secret)
	return f.Name(), err
}

// copyTemplate copies the template to the directory data.
func (inst installation) copyTemplate(data string) error {
	return runCommand(inst.newCommand("cp", "-Rp", inst.templateDir, data))
}

// newCommand returns a command that runs as the owner, with English messages.
func (inst installation) newCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: inst.owner}
	return cmd
}

func runCommand(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// postgresBin returns the directory of initdb: from the PATH, or the newest version in the directories that Debian
// uses.
func postgresBin() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		path, err = filepath.EvalSymlinks(path)
		return filepath.Dir(path), err
	}
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // fails only for a bad pattern
	if len(bins) == 0 {
		return "", fmt.Errorf("PostgreSQL: %w", exec.ErrNotFound)
	}
	return slices.MaxFunc(bins, func(a, b string) int { return cmp.Compare(versionOf(a), versionOf(b)) }), nil
}

func versionOf(bin string) float64 {
	v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(bin)), 64)
	return v
}
