package servers_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// failover is a way in which replicas replace their masters.
type failover struct {
	fault    string
	replicas int  // that an answer waits for
	needed   int  // min-replicas-to-write
	long     bool // the fault outlasts StoreTimeout
	always   bool // it is tried also where little is done
}

func (f failover) String() string {
	name := fmt.Sprint(f.fault, ", Replicas ", f.replicas)
	if f.needed > 0 {
		name = fmt.Sprint(f.fault, ", min-replicas-to-write ", f.needed)
	}
	if f.long {
		name += ", for long"
	}
	return name
}

// deployment is where masters have replicas.
type deployment interface {
	// stores returns one for each server of a shop. The second one is away with a master that is cut off.
	stores(t *testing.T, replicas int) []idempotency.Store
	// strike has replicas replace masters, calls while during that, and returns when all is well again.
	strike(t *testing.T, fault string, while func())
}

// tryFailovers has clients pay while masters are replaced, which have so many replicas, and counts what is lost. Nothing is
// that all replicas had before, or that was known to be on all of them.
func tryFailovers(t *testing.T, all int, start func(*testing.T, failover) deployment, rows []failover) {
	for _, row := range rows {
		if little() && !row.always {
			continue
		}
		t.Run(row.String(), func(t *testing.T) {
			t.Parallel()
			var found counts
			for n := range effort.Of(1) {
				t.Run(strconv.Itoa(n+1), func(t *testing.T) {
					d := start(t, row)
					s := newShop(t, row.opts(), &memory{}, d.stores(t, row.replicas)...)
					s.patience = row.opts().StoreTimeout + time.Second
					cost := loss{copied: row.replicas == all}
					s.open(100, func() {
						cost.since = time.Now()
						d.strike(t, row.fault, func() {
							if row.long {
								s.awaitUnrecorded()
							}
						})
						cost.until = time.Now()
					})
					found.add(s.audit(t, cost, false))
				})
			}
			found.report(t)
		})
	}
}

// little reports whether less is done than usual, as in CI.
func little() bool { return effort.Of(100) < 100 }

func (f failover) opts() idempotency.Options {
	if f.long {
		return brief
	}
	return idempotency.Options{Lease: 10 * time.Second, StoreTimeout: 10 * time.Second}
}

// awaitUnrecorded waits until one more answer could not be stored in time.
func (s *shop) awaitUnrecorded() {
	before := s.outcome(idempotency.OutcomeUnrecorded)
	require.Eventually(s.t, func() bool {
		return s.outcome(idempotency.OutcomeUnrecorded) > before
	}, patience, 10*time.Millisecond)
}

// replicated waits until the replicas have all that a master has answered so far. The key is one of the master.
func replicated(t *testing.T, master *servertest.Server, key string, replicas int64) {
	t.Helper()
	conn := newClient(t, master).Conn() // WAIT knows the writes of its own connection only, and replicas take all in order
	defer conn.Close()
	require.Eventually(t, func() bool { // a node of a Cluster may not have heard yet that all is well
		acknowledged, err := int64(0), conn.Set(t.Context(), key, "", time.Minute).Err()
		if err == nil {
			acknowledged, err = conn.Wait(t.Context(), int(replicas), time.Second).Result()
		}
		return err == nil && acknowledged == replicas
	}, patience, 10*time.Millisecond)
}
