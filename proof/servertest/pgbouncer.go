//go:build unix

package servertest

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Pooler is a PgBouncer: a pooler of connections to a database. Crash is SIGKILL.
type Pooler struct {
	*Server
	db *Database
}

// target is the file that says to which port a PgBouncer leads.
const target = "[databases]\npostgres = host=127.0.0.1 user=postgres port=%d\n"

// StartPgBouncer starts a PgBouncer in front of a database, in transaction mode unless the settings, such as
// "pool_mode=session", say otherwise. The error wraps [exec.ErrNotFound] if this machine does not have the program.
func StartPgBouncer(db *Database, settings ...string) (*Pooler, error) {
	var config string
	s, owner, err := newServer("pgbouncer", []string{"postgres", "nobody"}, // it refuses to run as root
		func(path, dir string, port int) *exec.Cmd {
			cmd := exec.Command("sh", "-c", `cat >pgbouncer.ini && echo $$ >pid && exec "$0" pgbouncer.ini`, path)
			cmd.Stdin = strings.NewReader(config + strconv.Itoa(port) + "\n")
			return cmd
		})
	if err != nil {
		return nil, err
	}
	users, err := writeSecret(s.dir, `"postgres" "`+postgresPassword+"\"\n", owner)
	if err != nil {
		return nil, err
	}
	own := []string{
		"%include target.ini",
		"[pgbouncer]", "listen_addr=127.0.0.1", "unix_socket_dir=", "auth_type=scram-sha-256", "auth_file=" + users,
		"pool_mode=transaction", "default_pool_size=40", "max_client_conn=200",
	}
	config = strings.Join(append(own, settings...), "\n") + "\nlisten_port="
	files := map[string]string{"target.ini": fmt.Sprintf(target, db.port)}
	return &Pooler{s, db}, s.startWith(func() error { return writeFiles(s.dir, files, owner) })
}

// PgBouncer starts a PgBouncer as [StartPgBouncer] does, for the duration of the test. See [Require].
func PgBouncer(t testing.TB, db *Database, settings ...string) *Pooler {
	t.Helper()
	b, err := StartPgBouncer(db, settings...)
	Require(t, err)
	t.Cleanup(b.Close)
	return b
}

// URL returns what a superuser connects to the database with, through the pooler. It contains the password.
func (b *Pooler) URL() string { return b.db.URLAt(b.Addr()) }
