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

// RunSteps tests stores whose claims implement [idempotency.Checkpointer]. As [Run] does, RunSteps calls newStore for
// each rule, and tests the rule in a subtest. The stores must also pass Run, whose rules RunSteps does not repeat.
//
// The stores may share a database, because every subtest uses its own keys.
func RunSteps(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	store := newStore(t)
	_, claim, err := claimNewKey(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	_, ok := claim.(idempotency.Checkpointer)
	cleanUpClaim(t.Context(), claim)
	if !ok {
		t.Fatalf("a claim, a %T, does not implement idempotency.Checkpointer", claim)
	}
	if err := checkTwoClaims(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	runCases(t, "steps", stepCases, func(t *testing.T) subject { return subject{store: newStore(t)} })
}

var stepCases = []testCase{{
	name: "first result",
	rule: "The first checkpoint of a name stays. A second one is not stored, and Checkpoint returns the first data.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.checkCheckpoints(own, nil)
		t.storeCheckpoint(own, "charge", "first", "first")
		t.storeCheckpoint(own, "charge", "second", "first")
		t.storeCheckpoint(own, "charge", "first", "first")
		t.storeCheckpoint(own, "ship", "third", "third")
		t.checkCheckpoints(own, map[string]string{"charge": "first", "ship": "third"})
	},
}, {
	name: "any bytes",
	rule: "Checkpoints returns all stored bytes, also for empty data and 64 KiB, and keeps different names apart.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		want := map[string]string{
			"empty": "", "every byte": string(every), "large": strings.Repeat("x\x00", 32<<10),
			"A": "upper", "a": "lower", "a%": "percent", "a_": "underscore", `"\'` + "`": "quotes",
			"{x}:[y]": "brackets", "a?": "mark", strings.Repeat("n", 101): "long",
		}
		delete(want, "every byte") // because a name has no spaces
		want["every-byte"] = string(every)
		for name, data := range want {
			t.storeCheckpoint(own, name, data, data)
		}
		t.checkCheckpoints(own, want)
	},
}, {
	name: "next attempt",
	rule: "A later attempt has the checkpoints of the earlier attempts, and can add more.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.storeCheckpoint(own, "charge", "1", "1")
		t.releaseClaim(own)
		own = t.claimKey(request)
		t.checkCheckpoints(own, map[string]string{"charge": "1"})
		t.storeCheckpoint(own, "charge", "2", "1")
		t.storeCheckpoint(own, "ship", "2", "2")
		t.releaseClaim(own)
		own = t.claimKey(request)
		t.releaseClaim(own) // an attempt without steps
		t.checkCheckpoints(t.claimKey(request), map[string]string{"charge": "1", "ship": "2"})
	},
}, {
	name: "takeover",
	rule: "After a takeover, the new owner has the checkpoints. The old owner gets ErrClaimLost, and stores nothing.",
	checkRule: func(t *trial) {
		old := t.claimUntilLapsed()
		t.storeCheckpoint(old, "charge", "old", "old")
		own := t.claimNextAttempt(old, withTakeOver(request))
		t.checkFenced(old)
		t.checkCheckpoints(own, map[string]string{"charge": "old"})
		t.storeCheckpoint(own, "ship", "new", "new")
		t.checkFenced(old)
		t.releaseClaim(own)
		t.checkFenced(old)
		t.checkFenced(own)
		t.checkCheckpoints(t.claimNextAttempt(own, request), map[string]string{"charge": "old", "ship": "new"})
	},
}, {
	name: "after the end",
	rule: "After Complete or Release, Checkpoint and Checkpoints return ErrClaimLost.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.storeCheckpoint(own, "charge", "1", "1")
		t.completeClaim(own, newReceipt("done"))
		t.checkFenced(own)
		t.checkReplay(own, newReceipt("done"))

		t = t.withKey(newKey())
		own = t.claimKey(request)
		t.releaseClaim(own)
		t.checkFenced(own)
	},
}, {
	name: "other keys",
	rule: "Each operation has separate checkpoints.",
	checkRule: func(t *trial) {
		one, other := t.claimKey(request), t.withKey(newKey()).claimKey(request)
		t.storeCheckpoint(one, "charge", "one", "one")
		t.storeCheckpoint(other, "charge", "other", "other")
		t.checkCheckpoints(one, map[string]string{"charge": "one"})
		t.checkCheckpoints(other, map[string]string{"charge": "other"})
	},
}, {
	name: "new operation",
	rule: "After a record has expired, a new operation with the same key has no checkpoints.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, short))
		steps := own.claim.(idempotency.Checkpointer)
		_, err := steps.Checkpoint(t.ctx, "charge", []byte("old"))
		t.checkSuccessOrRestored("Checkpoint", err)
		t.checkSuccessOrLost("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: short}))
		var next beginResult
		t.waitUntil("the released record expires", func() bool {
			next = t.beginAttempt(otherRequest)
			return next.claim != nil
		})
		t.checkCheckpoints(next, nil)
		t.storeCheckpoint(next, "charge", "new", "new")
	},
}, {
	name: "completed operation",
	rule: "After a completed record has expired, its checkpoints are gone as well.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.storeCheckpoint(own, "charge", "old", "old")
		// Stores that keep steps in a separate record may halve the TTL for it. The remaining second suffices for slow
		// machines.
		t.checkSuccess("Complete", own.claim.Complete(t.ctx, newReceipt("done"), 2*time.Second))
		var next beginResult
		t.waitUntil("the completed record expires", func() bool {
			next = t.beginAttempt(request)
			return next.claim != nil
		})
		t.checkCheckpoints(next, nil)
	},
}, {
	name: "forgotten record",
	rule: "If the record has expired, Checkpoint stores its data together with RecordLost, and returns ErrRestored.",
	checkRule: func(t *trial) {
		own := t.claimUntilExpired()
		lost := map[string]string{idempotency.RecordLost: ""}
		t.checkCheckpoints(own, lost)
		stored, err := own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, "charge", []byte("1"))
		t.checkError("Checkpoint", err, idempotency.ErrRestored)
		if string(stored) != "1" {
			t.failf("Checkpoint returned %q, want \"1\"", stored)
		}
		extendErr := own.claim.Extend(t.ctx, long)
		if errors.Is(extendErr, idempotency.ErrRestored) {
			t.checkCheckpoints(own, lost) // the record had expired again before Extend
			return
		}
		t.checkSuccess("Extend", extendErr)
		lost["charge"] = "1"
		t.checkCheckpoints(own, lost)
		t.readHeldRecord(otherRequest)
		t.completeClaim(own, newReceipt("after all"))
		t.checkReplay(own, newReceipt("after all"))
	},
}, {
	name: "lost steps",
	rule: "If Extend creates an expired record with steps again, the record has RecordLost, also for the next attempt.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, short))
		_, err := own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, "charge", []byte("1"))
		if errors.Is(err, idempotency.ErrRestored) {
			return // the record had expired before Checkpoint
		}
		t.checkSuccess("Checkpoint", err)
		t.withKey(newKey()).claimUntilExpired() // claimed later, so the record of own has expired as well
		lost := map[string]string{idempotency.RecordLost: ""}
		t.checkCheckpoints(own, lost)
		t.checkError("Extend", own.claim.Extend(t.ctx, long), idempotency.ErrRestored)
		t.checkCheckpoints(own, lost)
		t.releaseClaim(own)
		own = t.claimKey(request)
		t.checkCheckpoints(own, lost)
		t.storeCheckpoint(own, "charge", "2", "2")
		t.completeClaim(own, newReceipt("after all"))
		t.checkReplay(own, newReceipt("after all"))
	},
}, {
	name: "concurrent steps",
	rule: "Checkpoint, Checkpoints and Extend may run concurrently. The first checkpoint of a name counts for all " +
		"callers.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		steps, want := own.claim.(idempotency.Checkpointer), map[string]string{}
		var running sync.WaitGroup
		errs := make(chan error, 100)
		sameName := make([][]byte, 8)
		for i := range 8 {
			name := fmt.Sprint("step-", i)
			want[name] = name
			running.Go(func() {
				_, err := steps.Checkpoint(t.ctx, name, []byte(name))
				errs <- err
			})
			running.Go(func() {
				var err error
				sameName[i], err = steps.Checkpoint(t.ctx, "same", fmt.Append(nil, i))
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
			t.checkSuccess("a concurrent call", err)
		}
		for _, got := range sameName {
			if len(got) != 1 || !bytes.Equal(got, sameName[0]) {
				t.failf("concurrent checkpoints of one name returned different data: %q", sameName)
			}
		}
		want["same"] = string(sameName[0])
		t.checkCheckpoints(own, want)
	},
}, {
	name: "steps beside the end",
	rule: "A Checkpoint during Complete or Release is either stored before the end of the claim, or returns ErrClaimLost.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			var checkpointErr error
			var running sync.WaitGroup
			running.Go(func() { _, checkpointErr = own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, "charge", nil) })
			if round%2 == 0 {
				t.releaseClaim(own)
				running.Wait()
				own = t.claimKey(request)
				if checkpointErr == nil {
					t.checkCheckpoints(own, map[string]string{"charge": ""})
				} else {
					t.checkCheckpoints(own, nil)
				}
			} else {
				t.completeClaim(own, newReceipt("done"))
				running.Wait()
			}
			if checkpointErr != nil {
				t.checkError("Checkpoint", checkpointErr, idempotency.ErrClaimLost)
			}
			if round%2 == 1 {
				t.checkReplay(own, newReceipt("done"))
			}
		}
	},
}, {
	name: "ended context",
	rule: "If the context has ended, Checkpoint either stores the data or returns an error.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, err := own.claim.(idempotency.Checkpointer).Checkpoint(ctx, "charge", []byte("1"))
		if err == nil {
			t.checkCheckpoints(own, map[string]string{"charge": "1"})
			return
		}
		t.storeCheckpoint(own, "charge", "1", "1")
	},
}, {
	name: "inspected steps",
	rule: "Inspect lists the checkpoints of an unfinished operation. Size includes their bytes, and Forget removes them.",
	checkRule: func(t *trial) {
		if !t.canInspect() {
			return
		}
		own := t.claimKey(request)
		before := t.inspectKey().Size
		t.storeCheckpoint(own, "charge", strings.Repeat("c", 1000), strings.Repeat("c", 1000))
		t.storeCheckpoint(own, "a", "", "")
		t.checkShownSteps("a", "charge")
		t.releaseClaim(own)
		seen := t.inspectKey()
		if grown := seen.Size - before; grown < 1000 {
			t.failf("a checkpoint of 1000 bytes has increased Size only by %d", grown)
		}
		t.checkShownSteps("a", "charge")
		t.forgetRecord(seen.Entry)
		t.checkNoRecord()
		own = t.claimKey(request)
		t.checkCheckpoints(own, nil)
		t.storeCheckpoint(own, "charge", "again", "again")
		t.completeClaim(own, newReceipt("done"))
		t.checkShownSteps()
	},
}}

// storeCheckpoint calls Checkpoint with data, which must return want. The record may have expired before the call.
func (t *trial) storeCheckpoint(own beginResult, name, data, want string) {
	stored, err := own.claim.(idempotency.Checkpointer).Checkpoint(t.ctx, name, []byte(data))
	t.checkSuccessOrRestored("Checkpoint", err)
	if string(stored) != want {
		t.failf("the checkpoint %q has the data %.99q, want %.99q", name, stored, want)
	}
}

// checkCheckpoints checks that Checkpoints returns want, which has the data by name.
func (t *trial) checkCheckpoints(own beginResult, want map[string]string) {
	found, err := own.claim.(idempotency.Checkpointer).Checkpoints(t.ctx)
	t.checkSuccess("Checkpoints", err)
	got := make(map[string]string)
	for name, data := range found {
		got[name] = string(data)
	}
	if !maps.Equal(got, want) {
		t.failf("the operation has the checkpoints %.999q, want %.999q", got, want)
	}
}

// checkFenced checks that Checkpoint and Checkpoints of an ended claim return ErrClaimLost.
func (t *trial) checkFenced(own beginResult) {
	steps := own.claim.(idempotency.Checkpointer)
	_, err := steps.Checkpoint(t.ctx, "fenced", []byte("off"))
	t.checkError("Checkpoint", err, idempotency.ErrClaimLost)
	_, err = steps.Checkpoints(t.ctx)
	t.checkError("Checkpoints", err, idempotency.ErrClaimLost)
}

// canInspect reports whether the store is an Inspector whose methods are supported.
func (t *trial) canInspect() bool {
	inspector, ok := t.store.(idempotency.Inspector)
	if !ok {
		return false
	}
	_, err := inspector.Inspect(t.ctx, t.key)
	return !errors.Is(err, errors.ErrUnsupported)
}

// checkShownSteps checks that Inspect lists the checkpoints with the names in want, in this order.
func (t *trial) checkShownSteps(want ...string) {
	seen := t.inspectKey()
	var names []string
	for _, step := range seen.Steps {
		names = append(names, step.Name)
	}
	if !slices.Equal(names, want) {
		t.failf("Inspect returned the steps %q, want %q", names, want)
	}
}
