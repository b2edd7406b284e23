//go:build unix

package servertest

import (
	"net"
	"path/filepath"
	"testing"
)

// StartReplica starts a standby of the server at addr, which is that of a database, or of a [Proxy] in front of one. It
// follows its primary through that address, by streaming replication, until [Database.Promote]. The settings are as for
// [StartPostgres].
//
// It is a synchronous standby of a primary that was started with "synchronous_standby_names=*": that one acknowledges no
// commit then unless the standby has it.
func StartReplica(addr string, settings ...string) (*Database, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return startPostgres(settings, func(inst installation, data string) error {
		backup := inst.command(filepath.Join(inst.bin, "pg_basebackup"), "--pgdata="+data, "--write-recovery-conf",
			"--checkpoint=fast", "--no-sync", "--host="+host, "--port="+port, "--username=postgres")
		backup.Env = append(backup.Env, "PGPASSWORD="+postgresPassword, "PGSSLMODE=disable")
		return run(backup)
	})
}

// Replica starts a standby as [StartReplica] does, for the duration of the test. See [Require].
func Replica(t testing.TB, addr string, settings ...string) *Database {
	t.Helper()
	db, err := StartReplica(addr, settings...)
	Require(t, err)
	t.Cleanup(db.Close)
	return db
}

// Promote makes a standby a server that can be written to. It waits until it is one.
func (db *Database) Promote() error {
	inst, err := ownInstallation()
	if err != nil {
		return err
	}
	return run(inst.command(filepath.Join(inst.bin, "pg_ctl"), "promote", "--wait", "--pgdata="+dataDir(db.dir)))
}
