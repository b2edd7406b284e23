package network_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// globalThrottle limits the trials of all tests together.
var globalThrottle = newThrottle()

func TestRedisMessages(t *testing.T) {
	t.Parallel()
	strikeEveryMessage(t, newRedisBackend(t))
}

func TestRedisClusterMessages(t *testing.T) {
	t.Parallel()
	strikeEveryMessage(t, newClusterBackend(t))
}

func TestPostgresMessages(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]pgxstore.Options{
		"plain":      {},
		"partitions": {PartitionDays: 1, SpareDays: 1, CountReplays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strikeEveryMessage(t, newPostgresBackend(t, nil, opts))
		})
	}
}

func TestPostgresRowMessages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		storeOptions pgxstore.Options
		effectLedger rowLedger
	}{
		"plain":                        {},
		"partitions":                   {storeOptions: pgxstore.Options{PartitionDays: 1, SpareDays: 1, CountReplays: true}},
		"serializable":                 {storeOptions: pgxstore.Options{Isolation: pgx.Serializable}},
		"of the handler":               {effectLedger: rowLedger{handlerOwnsTx: true}},
		"of the handler, serializable": {effectLedger: rowLedger{handlerOwnsTx: true, isolationLevel: pgx.Serializable}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strikeEveryMessage(t, newPostgresBackend(t, &tt.effectLedger, tt.storeOptions))
		})
	}
}

// flightFault is a fault of a flight. startsOutage reports that the flights of the next outageDuration get the fault, too.
type flightFault struct {
	fault        servertest.Fault
	startsOutage bool
}

var flightFaults = []flightFault{
	{servertest.LoseRequest, false},
	{servertest.LoseReply, false},
	{servertest.HoldRequest, false},
	{servertest.HoldReply, false},
	{servertest.LateRequest, false},
	{servertest.CutRequest, false},
	{servertest.CutReply, false},
	{servertest.DelayRequest, false},
	{servertest.DelayReply, false},
	{servertest.LoseRequest, true},
	{servertest.LoseReply, true},
	{servertest.LateRequest, true},
}

func (f flightFault) String() string {
	if f.startsOutage {
		return string(f.fault) + " for a while"
	}
	return string(f.fault)
}

// policyScenario is a scenario with a policy.
type policyScenario struct {
	scenario
	policy idempotency.Abandoned
}

func (s policyScenario) String() string {
	return s.name + [...]string{idempotency.ReExecute: ", ReExecute", idempotency.Refuse: ", Refuse"}[s.policy]
}

// faultCase is a fault at a flight of a scenario.
type faultCase struct {
	policyScenario
	flightFault
	flightIndex int
}

// strikeEveryMessage runs every scenario once for each fault of each flight.
func strikeEveryMessage(t *testing.T, b *backend) {
	cases := listCases(t, b)
	total := effort.Of(len(cases))
	if total < len(cases) {
		rand.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	}
	var ran, struck, atOnce atomic.Int64
	runInParallel(total, func(i int) {
		c := cases[i%len(cases)]
		t.Run(fmt.Sprintf("%s/%s/%d", c.policyScenario, c.flightFault, c.flightIndex), func(t *testing.T) {
			tr := newTrial(t, b, c.policyScenario)
			rule := servertest.Rule{Fault: c.fault, Skip: c.flightIndex}
			if c.startsOutage {
				rule.Outage = outageDuration
			}
			_, strikes := tr.runWithFault(rule)
			ran.Add(1)
			struck.Add(int64(min(strikes, 1)))
			if tr.repeatedRequests.Load() == 0 {
				atOnce.Add(1)
			}
		})
	})
	b.requireEmpty(t)
	effort.Count(t, "cases", ran.Load())
	effort.Count(t, "cases that were struck", struck.Load())
	effort.Count(t, "cases without a retry", atOnce.Load())
	require.GreaterOrEqual(t, 4*struck.Load(), 3*ran.Load(), "the faults did not strike")
}

// listCases runs every scenario without a fault, several times, and takes the smallest number of flights. A run may have more
// flights, for example because the store loads a script, or because the client asks a Cluster again for the slots on a busy
// machine. A fault at such a flight would not strike.
func listCases(t *testing.T, b *backend) (cases []faultCase) {
	var mu sync.Mutex
	list := listScenarios(b)
	runInParallel(len(list), func(i int) {
		s := list[i]
		flights := math.MaxInt
		for range 4 {
			has, _ := newTrial(t, b, s).runWithFault(servertest.Rule{})
			flights = min(flights, has)
		}
		t.Logf("%s: %d flights", s, flights)
		mu.Lock()
		defer mu.Unlock()
		for _, fault := range flightFaults {
			for flight := range flights {
				cases = append(cases, faultCase{s, fault, flight})
			}
		}
	})
	require.False(t, t.Failed(), "without a fault")
	return cases
}

// listScenarios returns the scenarios whose flights differ with b.
func listScenarios(b *backend) (list []policyScenario) {
	for _, s := range scenarios {
		if b.isVariant && s.sameForVariants || b.openStore != nil && s.onlyForRedis {
			continue
		}
		list = append(list, policyScenario{s, idempotency.ReExecute})
		if !b.isVariant && s.dependsOnPolicy {
			list = append(list, policyScenario{s, idempotency.Refuse})
		}
	}
	return list
}

var trialCount atomic.Int64

func newTrial(t testing.TB, b *backend, s policyScenario) *trial {
	return &trial{TB: t, backend: b, scenario: s.scenario, policy: s.policy, key: fmt.Sprint("key-", trialCount.Add(1))}
}

// runInParallel calls do for 0 to n-1, in goroutines that globalThrottle limits.
func runInParallel(n int, do func(int)) {
	var all sync.WaitGroup
	for i := range n {
		globalThrottle.enter()
		all.Go(func() {
			defer globalThrottle.leave()
			do(i)
		})
	}
	all.Wait()
}
