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

// trialsOfAll bounds the trials of all tests together.
var trialsOfAll = newThrottle()

func TestRedisMessages(t *testing.T) {
	t.Parallel()
	everyMessage(t, newRedisBackend(t))
}

func TestRedisClusterMessages(t *testing.T) {
	t.Parallel()
	everyMessage(t, newClusterBackend(t))
}

func TestPostgresMessages(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]pgxstore.Options{
		"plain":      {},
		"partitions": {PartitionDays: 1, SpareDays: 1, CountReplays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyMessage(t, newPostgresBackend(t, nil, opts))
		})
	}
}

func TestPostgresRowMessages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		opts pgxstore.Options
		rows rowLedger
	}{
		"plain":                        {},
		"partitions":                   {opts: pgxstore.Options{PartitionDays: 1, SpareDays: 1, CountReplays: true}},
		"serializable":                 {opts: pgxstore.Options{Isolation: pgx.Serializable}},
		"of the handler":               {rows: rowLedger{joins: true}},
		"of the handler, serializable": {rows: rowLedger{joins: true, level: pgx.Serializable}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyMessage(t, newPostgresBackend(t, &tt.rows, tt.opts))
		})
	}
}

// injury is what happens to a flight, and perhaps to those that follow.
type injury struct {
	fault  servertest.Fault
	outage bool
}

var injuries = []injury{
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

func (i injury) String() string {
	if i.outage {
		return string(i.fault) + " for a while"
	}
	return string(i.fault)
}

// subject is a scenario with one policy.
type subject struct {
	scenario
	policy idempotency.Abandoned
}

func (s subject) String() string {
	return s.name + [...]string{idempotency.ReExecute: ", ReExecute", idempotency.Refuse: ", Refuse"}[s.policy]
}

// oneCase is one fault at one flight.
type oneCase struct {
	subject
	injury
	flight int
}

// everyMessage strikes every flight of every scenario by every fault.
func everyMessage(t *testing.T, b *backend) {
	cases := casesOf(t, b)
	total := effort.Of(len(cases))
	if total < len(cases) {
		rand.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	}
	var ran, struck, atOnce atomic.Int64
	inParallel(total, func(i int) {
		c := cases[i%len(cases)]
		t.Run(fmt.Sprintf("%s/%s/%d", c.subject, c.injury, c.flight), func(t *testing.T) {
			tr := newTrial(t, b, c.subject)
			rule := servertest.Rule{Fault: c.fault, Skip: c.flight}
			if c.outage {
				rule.Outage = outage
			}
			_, strikes := tr.run(rule)
			ran.Add(1)
			struck.Add(int64(min(strikes, 1)))
			if tr.inVain.Load() == 0 {
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

// casesOf runs every scenario without a fault to see how many flights it always has. A run may have more: it loads a script,
// or its client asks a Cluster once more where the slots are, as on a busy machine. A fault at such a flight would not strike.
func casesOf(t *testing.T, b *backend) (cases []oneCase) {
	var mu sync.Mutex
	subjects := subjectsOf(b)
	inParallel(len(subjects), func(i int) {
		s := subjects[i]
		flights := math.MaxInt
		for range 4 {
			has, _ := newTrial(t, b, s).run(servertest.Rule{})
			flights = min(flights, has)
		}
		t.Logf("%s: %d flights", s, flights)
		mu.Lock()
		defer mu.Unlock()
		for _, injury := range injuries {
			for flight := range flights {
				cases = append(cases, oneCase{s, injury, flight})
			}
		}
	})
	require.False(t, t.Failed(), "without a fault")
	return cases
}

// subjectsOf returns the scenarios that differ with b.
func subjectsOf(b *backend) (subjects []subject) {
	for _, s := range scenarios {
		if b.variant && s.basic || b.open != nil && s.staged {
			continue
		}
		subjects = append(subjects, subject{s, idempotency.ReExecute})
		if !b.variant && s.refusable {
			subjects = append(subjects, subject{s, idempotency.Refuse})
		}
	}
	return subjects
}

var trials atomic.Int64

func newTrial(t testing.TB, b *backend, s subject) *trial {
	return &trial{TB: t, backend: b, scenario: s.scenario, policy: s.policy, key: fmt.Sprint("key-", trials.Add(1))}
}

// inParallel calls do for 0 to n-1, as far as there is room among all that is running.
func inParallel(n int, do func(int)) {
	var all sync.WaitGroup
	for i := range n {
		trialsOfAll.enter()
		all.Go(func() {
			defer trialsOfAll.leave()
			do(i)
		})
	}
	all.Wait()
}
