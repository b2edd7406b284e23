package explore

import (
	"encoding/json"
	"flag"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

var onlySchedule = flag.String("schedule", "", "run this one execution, which a violation has printed")

// bounds lists the bounds that the test explores with each policy.
var bounds = []struct {
	name string
	bound
}{
	{"two keys of one process, slow store", bound{Requests: "1a 1b", Faults: 1, Passages: 3, OnlySlowCalls: true, LongTimeout: true}},
	{"answer over the limit", bound{Requests: "1a 2a", Faults: 2, Passages: 1, AnswerTooLarge: true}},
	{"two requests", bound{Requests: "1a 2a", Faults: 2, Passages: 2}},
	{"three requests", bound{Requests: "1a 2a 3a", Faults: 1, Passages: 2}},
	{"two requests, Runner", bound{Requests: "1a 2a", Faults: 2, Passages: 1, UsesRunner: true}},
	{"two keys of one process", bound{Requests: "1a 1b", Faults: 1, Passages: 1}},
	{"two requests to one process", bound{Requests: "1a 1a+", Faults: 2, Passages: 1}},
	{"two requests, clock jumps", bound{Requests: "1a 2a", Faults: 1, Passages: 1, ClockJumps: 1}},
	{"three requests, clock jumps", bound{Requests: "1a 2a 3a", Faults: 1, ClockJumps: 1}},
	{"two requests, a step", bound{Requests: "1a 2a", Faults: 2, EffectIsStep: true}},
	{"three requests, a step", bound{Requests: "1a 2a 3a", Faults: 1, Passages: 1, EffectIsStep: true}},
	{"two requests, a step, clock jumps", bound{Requests: "1a 2a", Faults: 1, ClockJumps: 1, EffectIsStep: true}},
	{"two requests, a row", bound{Requests: "1a 2a", Faults: 2, EffectIsRow: true}},
	{"three requests, a row", bound{Requests: "1a 2a 3a", Faults: 1, Passages: 1, EffectIsRow: true}},
	{"two requests, a row, clock jumps", bound{Requests: "1a 2a", Faults: 1, ClockJumps: 1, EffectIsRow: true}},
	{"one request", bound{Requests: "1a", Faults: 3, Passages: 3}},
	{"one answer over the limit", bound{Requests: "1a", Faults: 2, Passages: 3, AnswerTooLarge: true}},
}

func TestEveryExecutionKeepsThePromises(t *testing.T) {
	t.Parallel()
	if *onlySchedule != "" {
		replayOnly(t, *onlySchedule)
		return
	}
	var total, ended atomic.Int64
	t.Cleanup(func() {
		effort.Count(t, "executions", total.Load())
		if ended.Load() == int64(2*len(bounds)) && effort.Of(100) >= 100 {
			require.GreaterOrEqual(t, total.Load(), int64(1_000_000), "the search leaves something out")
		}
	})
	for _, row := range bounds {
		t.Run(row.name, func(t *testing.T) {
			for policy, refuse := range map[string]bool{"re-execute": false, "refuse": true} {
				t.Run(policy, func(t *testing.T) {
					t.Parallel()
					b := row.scaleToEffort()
					b.Refuses = refuse
					executions, found := exploreBound(t, b)
					total.Add(int64(executions))
					if found != nil {
						t.Fatal(found)
					}
					ended.Add(1)
					t.Log(executions, "executions:", b)
				})
			}
		})
	}
}

func replayOnly(t *testing.T, text string) {
	var s schedule
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	if found := replaySchedule(t, s); found != nil {
		t.Fatal(found)
	}
	t.Log("the promises are kept")
}

func TestExplorerFindsBugsOfAStore(t *testing.T) {
	t.Parallel()
	for bug, b := range map[string]bound{
		"claim is not atomic":          {Requests: "1a 2a"},
		"live lease is taken over":     {Requests: "1a 2a"},
		"lease ends early":             {Requests: "1a 2a", Faults: 1, Passages: 2, OnlySlowCalls: true, LongTimeout: true},
		"lapsed lease is kept":         {Requests: "1a", Faults: 1},
		"answer lapses with its lease": {Requests: "1a"},
		"attempt number stays":         {Requests: "1a 2a", Faults: 1},
		"any claim extends":            {Requests: "1a 2a", Passages: 1, ClockJumps: 1},
		"any claim completes":          {Requests: "1a 2a", ClockJumps: 1},
		"any claim releases":           {Requests: "1a 2a 3a", Faults: 1, ClockJumps: 1},
		"renewal is forgotten":         {Requests: "1a 2a", Passages: 3},
		"renewal undoes a release":     {Requests: "1a", Faults: 2, Passages: 1, LongTimeout: true, Refuses: true},
		"step is forgotten":            {Requests: "1a 2a", Faults: 1, EffectIsStep: true},
		"any claim stores a step":      {Requests: "1a 2a", Faults: 1, ClockJumps: 1, EffectIsStep: true},
		"transaction is not fenced":    {Requests: "1a 2a", Faults: 1, ClockJumps: 1, EffectIsRow: true},
		"second rows are committed":    {Requests: "1a", Faults: 1, Passages: 2, EffectIsRow: true},
	} {
		b.StoreBug = bug
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			executions, found := exploreBound(t, b)
			require.NotNil(t, found)
			t.Log(executions, "executions:", found)
		})
	}
}

func TestViolationIsReplayed(t *testing.T) {
	t.Parallel()
	_, found := exploreBound(t, bound{Requests: "1a 2a", Passages: 3, StoreBug: "renewal is forgotten"})
	require.NotNil(t, found)
	var s schedule
	require.NoError(t, json.Unmarshal([]byte(found.schedule.String()), &s))
	again := replaySchedule(t, s)
	require.NotNil(t, again)
	require.Equal(t, found.Error(), again.Error())

	s.StoreBug = ""
	require.Nil(t, replaySchedule(t, s), "the same choices, without the bug")
}
