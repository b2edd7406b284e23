package servers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// patroniCluster is a cluster with a PgBouncer that leads to the primary.
type patroniCluster struct {
	*servertest.PatroniCluster
	pgBouncer *servertest.Pooler
}

func newPatroni(t *testing.T, synchronous bool) patroniCluster {
	t.Helper()
	c := servertest.Patroni(t, synchronous)
	return patroniCluster{c, c.PgBouncer(t, "server_login_retry=1")}
}

// openDirect returns a pool that finds the primary without PgBouncer.
func (p patroniCluster) openDirect(t *testing.T) *pgxpool.Pool {
	t.Helper()
	nodes := p.Nodes()
	return newPool(t, nodes[0].URLAt(nodes[0].Addr()+","+nodes[1].Addr())+"&target_session_attrs=read-write")
}

// openPooled returns a pool whose connections lead to PgBouncer. The pool has few connections, because a waiting client that gives
// up stays in the queue of PgBouncer and costs a connection to the server. PgBouncer opens these connections one after the other.
func (p patroniCluster) openPooled(t *testing.T, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return newPool(t, p.pgBouncer.URL(), append(changes, func(c *pgxpool.Config) {
		c.MaxConns = 4
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // works with every PgBouncer in transaction mode
	})...)
}

// failOver makes the standby take over, and returns when the cluster has another primary. In one of twelve calls the machine of the
// primary is lost, and Patroni only notices when the key of the primary in etcd lapses.
func (p patroniCluster) failOver(t *testing.T, n int) {
	t.Helper()
	old := p.Primary()
	require.NotNil(t, old)
	isLost := n%12 == 11 // the machine of the primary
	switch {
	case isLost:
		p.Crash(old)
	case n%2 == 0: // PostgreSQL of the primary crashes
		require.NoError(t, p.CrashPostgres(old))
	default:
		require.NoError(t, p.Switchover(old))
	}
	require.NoError(t, p.AwaitPrimary(old))
	if isLost {
		require.NoError(t, old.Restart())
	}
}

// awaitCaughtUp waits until the standby has replayed every commit that the primary has acknowledged so far.
func (p patroniCluster) awaitCaughtUp(t *testing.T) {
	t.Helper()
	primary, standby := p.Nodes()[0], p.Nodes()[1]
	if p.Primary() == standby {
		primary, standby = standby, primary
	}
	awaitReplayed(t, newPool(t, primary.URL()), newPool(t, standby.URL()))
}

// Patroni replaces primaries. With synchronous_mode no record is lost. Without synchronous_mode the standby may lack the last
// records: their operations run again, and their rows are lost as well. PgBouncer, in transaction mode, is pointed at each new
// primary.
func TestPatroniFailsOver(t *testing.T) {
	t.Parallel()
	for mode, opts := range map[string]idempotency.Options{
		"synchronous":  {Lease: time.Minute, StoreTimeout: 5 * time.Second},
		"asynchronous": {Lease: 5 * time.Second, StoreTimeout: 5 * time.Second},
	} {
		for _, kind := range effectKinds {
			t.Run(fmt.Sprint(mode, ", ", kind), func(t *testing.T) {
				t.Parallel()
				p := newPatroni(t, mode == "synchronous")
				s := newDatabaseShop(t, kind, opts, p.openDirect(t), p.openPooled(t), p.openPooled(t))
				var found auditCounts
				failovers := effort.Of(25)
				for n := range failovers {
					var cost loss
					s.payDuring(50, func() {
						since := time.Now()
						p.awaitCaughtUp(t)
						p.failOver(t, n)
						if mode == "asynchronous" {
							cost = loss{affectedAfter: since, affectedBefore: time.Now()}
						}
					})
					found.addCounts(s.auditAfterFault(t, cost))
					require.NoError(t, p.AwaitStandby())
				}
				effort.Count(t, "failovers by Patroni", failovers)
				found.reportCounts(t)
			})
		}
	}
}
