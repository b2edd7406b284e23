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

// failover is a fault after which replicas replace their masters.
type failover struct {
	fault           string
	awaitedReplicas int  // number of replicas that must have an answer before a client gets the answer
	minReplicas     int  // min-replicas-to-write
	outlastsTimeout bool // the fault outlasts StoreTimeout
	alwaysRuns      bool // the row also runs when isReduced
}

func (f failover) String() string {
	name := fmt.Sprint(f.fault, ", Replicas ", f.awaitedReplicas)
	if f.minReplicas > 0 {
		name = fmt.Sprint(f.fault, ", min-replicas-to-write ", f.minReplicas)
	}
	if f.outlastsTimeout {
		name += ", for long"
	}
	return name
}

// deployment is a group of masters and replicas.
type deployment interface {
	// openStores returns a store for each server of a shop. The second store is away: its client stays on the side of a master
	// that is cut off.
	openStores(t *testing.T, replicas int) []idempotency.Store
	// causeFault makes replicas replace masters, calls while during the fault, and returns when the deployment has recovered.
	causeFault(t *testing.T, fault string, while func())
}

// runFailovers lets clients pay while masters with all replicas are replaced, and counts the lost answers. An answer must not be
// lost if all replicas had the answer before the fault, or if the answer was known to be on all replicas.
func runFailovers(t *testing.T, all int, start func(*testing.T, failover) deployment, rows []failover) {
	for _, row := range rows {
		if isReduced() && !row.alwaysRuns {
			continue
		}
		t.Run(row.String(), func(t *testing.T) {
			t.Parallel()
			var found auditCounts
			for n := range effort.Of(1) {
				t.Run(strconv.Itoa(n+1), func(t *testing.T) {
					d := start(t, row)
					s := newShop(t, row.buildOptions(), &memoryLedger{}, d.openStores(t, row.awaitedReplicas)...)
					s.longTimeout = row.buildOptions().StoreTimeout + time.Second
					cost := loss{keepsReplicated: row.awaitedReplicas == all}
					s.payDuring(100, func() {
						cost.affectedAfter = time.Now()
						d.causeFault(t, row.fault, func() {
							if row.outlastsTimeout {
								s.awaitUnrecorded()
							}
						})
						cost.affectedBefore = time.Now()
					})
					found.addCounts(s.auditSales(t, cost, false))
				})
			}
			found.reportCounts(t)
		})
	}
}

// isReduced reports whether the tests do less than usual, as in CI.
func isReduced() bool { return effort.Of(100) < 100 }

func (f failover) buildOptions() idempotency.Options {
	if f.outlastsTimeout {
		return briefOptions
	}
	return idempotency.Options{Lease: 10 * time.Second, StoreTimeout: 10 * time.Second}
}

// awaitUnrecorded waits until one more answer could not be stored in time.
func (s *shop) awaitUnrecorded() {
	before := s.outcomeCount(idempotency.OutcomeUnrecorded)
	require.Eventually(s.test, func() bool {
		return s.outcomeCount(idempotency.OutcomeUnrecorded) > before
	}, patience, 10*time.Millisecond)
}

// awaitReplicated waits until the replicas have every write that master has answered so far. key must be in a slot of master.
func awaitReplicated(t *testing.T, master *servertest.Server, key string, replicas int64) {
	t.Helper()
	// WAIT covers only the writes of its own connection. That is enough, because replicas apply all writes in order.
	conn := newClient(t, master).Conn()
	defer conn.Close()
	require.Eventually(t, func() bool { // because a node of a Cluster may learn of the recovery late
		acknowledged, err := int64(0), conn.Set(t.Context(), key, "", time.Minute).Err()
		if err == nil {
			acknowledged, err = conn.Wait(t.Context(), int(replicas), time.Second).Result()
		}
		return err == nil && acknowledged == replicas
	}, patience, 10*time.Millisecond)
}
