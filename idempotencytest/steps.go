package idempotencytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
)

// RunSteps tests stores each of whose claims is an [idempotency.Checkpointer]. NewStore returns the stores. Each rule has a
// subtest, which has its own store, as in [Run]. RunSteps does not repeat the rules of Run, which the stores must keep, too.
//
// The stores may share a database, because every subtest uses its own keys.
func RunSteps(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	store := newStore(t)
	_, claim, err := tryClaim(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	_, ok := claim.(idempotency.Checkpointer)
	release(t.Context(), claim)
	if !ok {
		t.Fatalf("the claim, a %T, is no idempotency.Checkpointer", claim)
	}
	if err := probe(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	runAll(t, "steps", stepCases, func(t *testing.T) subject { return subject{store: newStore(t)} })
}

var stepCases = []testCase{{
	name: "first result",
	rule: "The first checkpoint of a name counts: a second one is not stored, and gets the first.",
	check: func(t *trial) {
		own := t.claim(request)
		t.has(own, nil)
		t.stores(own, "charge", "first", "first")
		t.stores(own, "charge", "second", "first")
		t.stores(own, "charge", "first", "first")
		t.stores(own, "ship", "third", "third")
		t.has(own, map[string]string{"charge": "first", "ship": "third"})
	},
}, {
	name: "any bytes",
	rule: "Data of any bytes comes back as it was stored, also none and 64 KiB; and names of all characters are distinct.",
	check: func(t *trial) {
		own := t.claim(request)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		want := map[string]string{
			"empty": "", "every byte": string(every), "large": strings.Repeat("x\x00", 32<<10),
			"A": "upper", "a": "lower", "a%": "percent", "a_": "underscore", `"\'` + "`": "quotes",
			"{x}:[y]": "brackets", "a?": "mark", strings.Repeat("n", 101): "long",
		}
		delete(want, "every byte") // which has a space
		want["every-byte"] = string(every)
		for name, data := range want {
			t.stores(own, name, data, data)
		}
		t.has(own, want)
	},
}, {
	name: "next attempt",
	rule: "A later attempt has the checkpoints of the attempts before, and adds its own.",
	check: func(t *trial) {
		own := t.claim(request)
		t.stores(own, "charge", "1", "1")
		t.release(own)
		own = t.claim(request)
		t.has(own, map[string]string{"charge": "1"})
		t.stores(own, "charge", "2", "1")
		t.stores(own, "ship", "2", "2")
		t.release(own)
		own = t.claim(request)
		t.release(own) // an attempt without steps
		t.has(t.claim(request), map[string]string{"charge": "1", "ship": "2"})
	},
}, {
	name: "takeover",
	rule: "Whoever takes over a lapsed claim has its checkpoints. The overtaken owner gets ErrClaimLost, and stores nothing.",
	check: func(t *trial) {
		old := t.lapsed()
		t.stores(old, "charge", "old", "old")
		own := t.next(old, takingOver(request))
		t.isFenced(old)
		t.has(own, map[string]string{"charge": "old"})
		t.stores(own, "ship", "new", "new")
		t.isFenced(old)
		t.release(own)
		t.isFenced(old)
		t.isFenced(own)
		t.has(t.next(own, request), map[string]string{"charge": "old", "ship": "new"})
	},
}, {
	name: "after the end",
	rule: "A claim that was settled stores no checkpoints, and shows none.",
	check: func(t *trial) {
		own := t.claim(request)
		t.stores(own, "charge", "1", "1")
		t.complete(own, receipt("done"))
		t.isFenced(own)
		t.replays(own, receipt("done"))

		t = t.at(freshKey())
		own = t.claim(request)
		t.release(own)
		t.isFenced(own)
	},
}, {
	name: "other keys",
	rule: "Each operation has its own checkpoints.",
	check: func(t *trial) {
		one, other := t.claim(request), t.at(freshKey()).claim(request)
		t.stores(one, "charge", "one", "one")
		t.stores(other, "charge", "other", "other")
		t.has(one, map[string]string{"charge": "one"})
		t.has(other, map[string]string{"charge": "other"})
	},
}, {
	name: "new operation",
	rule: "A new operation with the key of one that has expired has no checkpoints.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, short))
		steps := own.claim.(idempotency.Checkpointer)
		if _, err := steps.Checkpoint(t.ctx, "charge", []byte("old")); !errors.Is(err, idempotency.ErrRestored) {
			t.succeeds("Checkpoint", err)
		}
		released := own.claim.Release(t.ctx, short)
		if !errors.Is(released, idempotency.ErrClaimLost) {
			t.succeeds("Release", released)
		}
		var next answer
		t.until("the released record expires", func() bool {
			next = t.begin(another)
			return next.claim != nil
		})
		t.has(next, nil)
		t.stores(next, "charge", "new", "new")
	},
}, {
	name: "completed operation",
	rule: "When a completed operation has expired, its checkpoints are gone with it.",
	check: func(t *trial) {
		own := t.claim(request)
		t.stores(own, "charge", "old", "old")
		// A store that keeps steps in a record of their own gives that one half of the time. A second is left to a slow machine.
		t.succeeds("Complete", own.claim.Complete(t.ctx, receipt("done"), 2*time.Second))
		var next answer
		t.until("the completed record expires", func() bool {
			next = t.begin(request)
			return next.claim != nil
		})
		t.has(next, nil)
	},
}, {
	name: "forgotten record",
	rule: "A checkpoint of a claim whose record the store has forgotten is stored with ErrRestored and RecordLost.",
	check: func(t *trial) {
		own := t.forgotten()
		lost := map[string]string{idempotency.RecordLost: ""}
		t.has(own, lost)
		stored, err := own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, "charge", []byte("1"))
		t.says("Checkpoint", err, idempotency.ErrRestored)
		if string(stored) != "1" {
			t.failf("Checkpoint returned %q", stored)
		}
		extended := own.claim.Extend(t.ctx, long)
		if errors.Is(extended, idempotency.ErrRestored) {
			t.has(own, lost) // it came too late: the record had expired again
			return
		}
		t.succeeds("Extend", extended)
		lost["charge"] = "1"
		t.has(own, lost)
		t.refused(another)
		t.complete(own, receipt("after all"))
		t.replays(own, receipt("after all"))
	},
}, {
	name: "lost steps",
	rule: "When Extend makes a record again that has had steps, the record has RecordLost, also for the next attempt.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, short))
		_, err := own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, "charge", []byte("1"))
		if errors.Is(err, idempotency.ErrRestored) {
			return // it came too late
		}
		t.succeeds("Checkpoint", err)
		t.at(freshKey()).forgotten() // was claimed later, so the record has expired, too
		lost := map[string]string{idempotency.RecordLost: ""}
		t.has(own, lost)
		t.says("Extend", own.claim.Extend(t.ctx, long), idempotency.ErrRestored)
		t.has(own, lost)
		t.release(own)
		own = t.claim(request)
		t.has(own, lost)
		t.stores(own, "charge", "2", "2")
		t.complete(own, receipt("after all"))
		t.replays(own, receipt("after all"))
	},
}, {
	name: "concurrent steps",
	rule: "Checkpoints may be stored at the same time, also of one name: the first counts for all; and beside Extend.",
	check: func(t *trial) {
		own := t.claim(request)
		steps, want := own.claim.(idempotency.Checkpointer), map[string]string{}
		var running sync.WaitGroup
		errs := make(chan error, 100)
		same := make([][]byte, 8)
		for i := range 8 {
			name := fmt.Sprint("step-", i)
			want[name] = name
			running.Go(func() {
				_, err := steps.Checkpoint(t.ctx, name, []byte(name))
				errs <- err
			})
			running.Go(func() {
				var err error
				same[i], err = steps.Checkpoint(t.ctx, "same", fmt.Append(nil, i))
				errs <- err
			})
			running.Go(func() {
				_, err := steps.Checkpoints(t.ctx)
				errs <- err
			})
		}
		for range 2 {
			running.Go(func() { errs <- own.claim.Extend(t.ctx, long) })
		}
		running.Wait()
		close(errs)
		for err := range errs {
			t.succeeds("a step", err)
		}
		for _, got := range same {
			if len(got) != 1 || !bytes.Equal(got, same[0]) {
				t.failf("concurrent checkpoints of one name returned %q", same)
			}
		}
		want["same"] = string(same[0])
		t.has(own, want)
	},
}, {
	name: "steps beside the end",
	rule: "A checkpoint that is stored while the claim ends is stored before, or gets ErrClaimLost.",
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.claim(request)
			var stored error
			var running sync.WaitGroup
			running.Go(func() { _, stored = own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, "charge", nil) })
			if round%2 == 0 {
				t.release(own)
				running.Wait()
				own = t.claim(request)
				if stored == nil {
					t.has(own, map[string]string{"charge": ""})
				} else {
					t.has(own, nil)
				}
			} else {
				t.complete(own, receipt("done"))
				running.Wait()
			}
			if stored != nil {
				t.says("Checkpoint", stored, idempotency.ErrClaimLost)
			}
			if round%2 == 1 {
				t.replays(own, receipt("done"))
			}
		}
	},
}, {
	name: "ended context",
	rule: "A checkpoint whose context has ended is stored, or there is an error: never neither.",
	check: func(t *trial) {
		own := t.claim(request)
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, err := own.claim.(idempotency.Checkpointer).Checkpoint(ctx, "charge", []byte("1"))
		if err == nil {
			t.has(own, map[string]string{"charge": "1"})
			return
		}
		t.stores(own, "charge", "1", "1")
	},
}, {
	name: "inspected steps",
	rule: "Inspect shows the checkpoints by name and size until the operation is completed. They count, and Forget removes them.",
	check: func(t *trial) {
		if !t.canInspect() {
			return
		}
		own := t.claim(request)
		before := t.inspect().Size
		t.stores(own, "charge", strings.Repeat("c", 1000), strings.Repeat("c", 1000))
		t.stores(own, "a", "", "")
		t.shows("a", "charge")
		t.release(own)
		seen := t.inspect()
		if grown := seen.Size - before; grown < 1000 {
			t.failf("1000 bytes of steps count as %d", grown)
		}
		t.shows("a", "charge")
		t.forget(seen.Entry)
		t.isFree()
		own = t.claim(request)
		t.has(own, nil)
		t.stores(own, "charge", "again", "again")
		t.complete(own, receipt("done"))
		t.shows()
	},
}}

// stores stores a checkpoint, of which want must be stored then.
func (t *trial) stores(own answer, name, data, want string) {
	given := []byte(data)
	stored, err := own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, name, given)
	t.succeedsLate("Checkpoint", err)
	if string(stored) != want {
		t.failf("of %q, %.99q is stored, not %.99q", name, stored, want)
	}
}

// has checks which checkpoints the operation has.
func (t *trial) has(own answer, want map[string]string) {
	found, err := own.claim.(idempotency.Checkpointer).Checkpoints(t.ctx)
	t.succeeds("Checkpoints", err)
	got := make(map[string]string)
	for name, data := range found {
		got[name] = string(data)
	}
	if !maps.Equal(got, want) {
		t.failf("the operation has the steps %.999q, not %.999q", got, want)
	}
}

// isFenced checks that a claim which has ended stores nothing.
func (t *trial) isFenced(own answer) {
	steps := own.claim.(idempotency.Checkpointer)
	_, err := steps.Checkpoint(t.ctx, "fenced", []byte("off"))
	t.says("Checkpoint", err, idempotency.ErrClaimLost)
	_, err = steps.Checkpoints(t.ctx)
	t.says("Checkpoints", err, idempotency.ErrClaimLost)
}

// canInspect reports whether the store is an Inspector. One whose methods are not supported is none.
func (t *trial) canInspect() bool {
	inspector, ok := t.store.(idempotency.Inspector)
	if !ok {
		return false
	}
	_, err := inspector.Inspect(t.ctx, t.key)
	return !errors.Is(err, errors.ErrUnsupported)
}

// shows checks that Inspect shows steps of these names.
func (t *trial) shows(want ...string) {
	seen := t.inspect()
	var names []string
	for _, step := range seen.Steps {
		names = append(names, step.Name)
	}
	if !slices.Equal(names, want) {
		t.failf("Inspect shows the steps %q, not %q", names, want)
	}
}
