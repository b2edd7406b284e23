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

// patroni is a cluster, and a PgBouncer in front of it that leads to the primary.
type patroni struct {
	*servertest.PatroniCluster
	bouncer *servertest.Pooler
}

func newPatroni(t *testing.T, synchronous bool) patroni {
	t.Helper()
	c := servertest.Patroni(t, synchronous)
	return patroni{c, c.PgBouncer(t, "server_login_retry=1")}
}

// direct returns a pool that finds the primary by itself.
func (p patroni) direct(t *testing.T) *pgxpool.Pool {
	t.Helper()
	nodes := p.Nodes()
	return newPool(t, nodes[0].URLAt(nodes[0].Addr()+","+nodes[1].Addr())+"&target_session_attrs=read-write")
}

// pooled returns a pool whose connections lead to the PgBouncer. There are few: a client that gives up while PgBouncer has it
// wait stays in its queue, and costs it a connection to the server, of which it makes one after the other.
func (p patroni) pooled(t *testing.T, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return newPool(t, p.bouncer.URL(), append(changes, func(c *pgxpool.Config) {
		c.MaxConns = 4
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // which every PgBouncer takes in transaction mode
	})...)
}

// failOver has the standby take over. It returns when there is another primary. In one of twelve times,
// Patroni finds out when the key of the primary in etcd has lapsed.
func (p patroni) failOver(t *testing.T, n int) {
	t.Helper()
	old := p.Primary()
	require.NotNil(t, old)
	isLost := n%12 == 11 // its machine
	switch {
	case isLost:
		p.Crash(old)
	case n%2 == 0: // its PostgreSQL crashes
		require.NoError(t, p.CrashPostgres(old))
	default:
		require.NoError(t, p.Switchover(old))
	}
	require.NoError(t, p.AwaitPrimary(old))
	if isLost {
		require.NoError(t, old.Restart())
	}
}

// caughtUp waits until the standby has all that the primary has acknowledged so far.
func (p patroni) caughtUp(t *testing.T) {
	t.Helper()
	primary, standby := p.Nodes()[0], p.Nodes()[1]
	if p.Primary() == standby {
		primary, standby = standby, primary
	}
	replayed(t, newPool(t, primary.URL()), newPool(t, standby.URL()))
}

// A primary that Patroni replaces loses nothing with synchronous_mode. Without, the standby may lack the last records:
// these operations run again, and their rows are lost as well. PgBouncer, in transaction mode, is sent to each new primary.
func TestPatroniFailsOver(t *testing.T) {
	t.Parallel()
	for mode, opts := range map[string]idempotency.Options{
		"synchronous":  {Lease: time.Minute, StoreTimeout: 5 * time.Second},
		"asynchronous": {Lease: 5 * time.Second, StoreTimeout: 5 * time.Second},
	} {
		for _, kind := range kinds {
			t.Run(fmt.Sprint(mode, ", ", kind), func(t *testing.T) {
				t.Parallel()
				p := newPatroni(t, mode == "synchronous")
				s := newDatabaseShop(t, kind, opts, p.direct(t), p.pooled(t), p.pooled(t))
				var found counts
				failovers := effort.Of(25)
				for n := range failovers {
					var cost loss
					s.open(50, func() {
						since := time.Now()
						p.caughtUp(t)
						p.failOver(t, n)
						if mode == "asynchronous" {
							cost = loss{since: since, until: time.Now()}
						}
					})
					found.add(s.settle(t, cost))
					require.NoError(t, p.AwaitStandby())
				}
				effort.Count(t, "failovers by Patroni", failovers)
				found.report(t)
			})
		}
	}
}
