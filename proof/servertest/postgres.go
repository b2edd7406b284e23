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

// Database is a PostgreSQL server with an empty database. Only URL tells its password, which all databases of this
// process share.
type Database struct{ *Server }

var postgresPassword = rand.Text()

// StartPostgres starts a PostgreSQL server. The settings, such as "max_connections=20", outrank its configuration.
// Unless they say otherwise fsync is off: only a crash of the machine could tell the difference. The error wraps
// [exec.ErrNotFound] if there is no PostgreSQL on this machine.
func StartPostgres(settings ...string) (*Database, error) {
	return startPostgres(settings, installation.copyTemplate)
}

// startPostgres starts a server whose files fill makes in the directory data.
func startPostgres(settings []string, fill func(inst installation, data string) error) (*Database, error) {
	inst, err := ownInstallation()
	if err != nil {
		return nil, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	db := &Database{&Server{dir: dir, abort: syscall.SIGQUIT, command: func(dir string, port int) *exec.Cmd {
		args := []string{"-D", dataDir(dir), "-p", strconv.Itoa(port)}
		own := []string{"listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"}
		for _, setting := range append(own, settings...) {
			args = append(args, "-c", setting)
		}
		return inst.command(filepath.Join(inst.bin, "postgres"), args...)
	}}}
	if err := db.startWith(func() error { return fill(inst, dataDir(dir)) }); err != nil {
		return nil, err
	}
	return db, nil
}

// Postgres starts a PostgreSQL server as [StartPostgres] does, for the duration of the test. See [Require].
func Postgres(t testing.TB, settings ...string) *Database {
	t.Helper()
	db, err := StartPostgres(settings...)
	Require(t, err)
	t.Cleanup(db.Close)
	return db
}

// URL returns what a superuser connects to the database with. It contains the password.
func (db *Database) URL() string { return db.URLAt(db.Addr()) }

// URLAt returns the URL for a client that connects to another address, such as that of a [Proxy].
func (db *Database) URLAt(addr string) string {
	return "postgres://postgres:" + postgresPassword + "@" + addr + "/postgres?sslmode=disable"
}

// Stop ends the server in order, as an administrator would: sessions are told, transactions are rolled back. Restart
// starts it again.
func (db *Database) Stop() { db.end(syscall.SIGINT) }

// Standby starts the server again as a standby that waits for its primary for ever: it answers, but refuses to write.
func (db *Database) Standby() error {
	db.Stop()
	if err := os.WriteFile(filepath.Join(dataDir(db.dir), "standby.signal"), nil, 0o644); err != nil {
		return err
	}
	return db.Restart()
}

// Psql runs a script with psql in a database of the server, up to its first error.
func (db *Database) Psql(database, script string) error {
	inst, err := ownInstallation()
	if err != nil {
		return err
	}
	cmd := inst.command(filepath.Join(inst.bin, "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1",
		"--host=127.0.0.1", "--port="+strconv.Itoa(db.port), "--username=postgres", database)
	cmd.Env = append(cmd.Env, "PGPASSWORD="+postgresPassword)
	cmd.Stdin = strings.NewReader(script)
	return run(cmd)
}

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// installation is the PostgreSQL or the MariaDB of this machine.
type installation struct {
	bin      string              // the directory of the server's program
	owner    *syscall.Credential // who runs it; nil: who runs this process
	template string              // the files of a server that was never started
}

// ownInstallation looks for PostgreSQL and makes the template: a copy of it is much faster than initdb.
var ownInstallation = sync.OnceValues(func() (inst installation, err error) {
	if inst.bin, err = postgresBin(); err != nil {
		return inst, err
	}
	if inst.owner, err = account("postgres"); err != nil {
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
	inst.template = dataDir(dir)
	return inst, run(inst.command(filepath.Join(inst.bin, "initdb"), "-D", inst.template, "-U", "postgres",
		"--auth=scram-sha-256", "--pwfile", pwfile, "--encoding=UTF8", "--no-locale", "--no-sync"))
})

// writeSecret makes a file that only its owner can read, and returns its name.
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

// copyTemplate makes the directory data.
func (inst installation) copyTemplate(data string) error {
	return run(inst.command("cp", "-Rp", inst.template, data))
}

// command makes a command that runs as the owner. Its messages are in English.
func (inst installation) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: inst.owner}
	return cmd
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// postgresBin looks in the PATH, and then where Debian has it.
func postgresBin() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		path, err = filepath.EvalSymlinks(path)
		return filepath.Dir(path), err
	}
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // fails only for a bad pattern
	if len(bins) == 0 {
		return "", fmt.Errorf("PostgreSQL: %w", exec.ErrNotFound)
	}
	return slices.MaxFunc(bins, func(a, b string) int { return cmp.Compare(version(a), version(b)) }), nil
}

func version(bin string) float64 {
	v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(bin)), 64)
	return v
}
