//go:build unix

package servertest_test

import (
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestReplicaTakesOver(t *testing.T) {
	t.Parallel()
	primary := servertest.Postgres(t, "synchronous_standby_names=*")
	link := servertest.NewProxy(t, primary.Addr())
	standby := servertest.Replica(t, link.Addr(), "max_connections=100")
	query(t, primary, "CREATE TABLE done (id int)") // is acknowledged because the standby has it
	query(t, primary, "INSERT INTO done VALUES (1)")

	link.Close()
	cut := psql(primary.Addr(), "-c", "INSERT INTO done VALUES (2)")
	check(t, cut.Start())
	eventually(t, "a commit that waits for the standby", func() bool {
		return query(t, primary, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	})
	primary.Crash()
	if err := cut.Wait(); err == nil {
		t.Error("a commit was acknowledged that the standby does not have")
	}

	check(t, standby.Promote())
	query(t, standby, "INSERT INTO done VALUES (3)")
	if got := query(t, standby, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM done"); got != "1 3" {
		t.Errorf("got rows %q on the new primary, want %q", got, "1 3")
	}
	check(t, standby.Restart())
	if got := query(t, standby, "SELECT pg_is_in_recovery()"); got != "f" {
		t.Error("it is a standby again after a restart")
	}
}

func TestReplicaOfNothing(t *testing.T) {
	t.Parallel()
	gone := servertest.Postgres(t)
	gone.Stop()
	for _, addr := range []string{gone.Addr(), "nowhere"} {
		if db, err := servertest.StartReplica(addr); err == nil {
			db.Close()
			t.Errorf("a replica of %s was started", addr)
		}
	}
}
