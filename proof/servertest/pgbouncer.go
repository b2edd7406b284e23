//go:build unix

package servertest

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Pooler is a PgBouncer, a connection pooler in front of a database. Crash uses SIGKILL.
type Pooler struct {
	*Server
	database *Database
}

// targetFile is the format of the file with the port of the database.
const targetFile = "[databases]\npostgres = host=127.0.0.1 user=postgres port=%d\n"

// StartPgBouncer starts a PgBouncer in front of db. The default is transaction mode; the settings, such as
// "pool_mode=session", override the defaults. The error wraps [exec.ErrNotFound] if this machine lacks PgBouncer.
func StartPgBouncer(db *Database, settings ...string) (*Pooler, error) {
	var config string
	s, owner, err := newServer("pgbouncer", []string{"postgres", "nobody"}, // PgBouncer refuses to run as root
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
	files := map[string]string{"target.ini": fmt.Sprintf(targetFile, db.port)}
	return &Pooler{s, db}, s.fillAndStart(func() error { return writeFiles(s.dir, files, owner) })
}

// PgBouncer starts a PgBouncer for the duration of the test. See [StartPgBouncer] and [Require].
func PgBouncer(t testing.TB, db *Database, settings ...string) *Pooler {
	t.Helper()
	b, err := StartPgBouncer(db, settings...)
	Require(t, err)
	t.Cleanup(b.Close)
	return b
}

// URL returns the URL of the database through the pooler, for a superuser. The URL contains the password.
func (b *Pooler) URL() string { return b.database.URLAt(b.Addr()) }
