//go:build unix

package servertest

import (
	"net"
	"path/filepath"
	"testing"
)

// StartReplica starts a standby of the server at addr, the address of a database or of a [Proxy] in front of a
// database. The standby follows the primary through addr by streaming replication, until [Database.Promote]. The
// settings are the settings of [StartPostgres].
//
// If the primary was started with "synchronous_standby_names=*", the standby is synchronous: the primary acknowledges
// a commit only after the standby has the commit.
func StartReplica(addr string, settings ...string) (*Database, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return startPostgres(settings, func(inst installation, data string) error {
		backup := inst.newCommand(filepath.Join(inst.binDir, "pg_basebackup"), "--pgdata="+data, "--write-recovery-conf",
			"--checkpoint=fast", "--no-sync", "--host="+host, "--port="+port, "--username=postgres")
		backup.Env = append(backup.Env, "PGPASSWORD="+postgresPassword, "PGSSLMODE=disable")
		return runCommand(backup)
	})
}

// Replica starts a standby for the duration of the test. See [StartReplica] and [Require].
func Replica(t testing.TB, addr string, settings ...string) *Database {
	t.Helper()
	db, err := StartReplica(addr, settings...)
	Require(t, err)
	t.Cleanup(db.Close)
	return db
}

// Promote makes a standby a primary, and waits until the server accepts writes.
func (db *Database) Promote() error {
	inst, err := ownInstallation()
	if err != nil {
		return err
	}
	pgCtl := filepath.Join(inst.binDir, "pg_ctl")
	return runCommand(inst.newCommand(pgCtl, "promote", "--wait", "--pgdata="+dataDir(db.dir)))
}
