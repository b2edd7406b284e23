// Package idempotencytest tests implementations of [idempotency.Store] against the contract that its documentation
// states. It also has a test for services: [Guarded] finds the routes on which the middleware was forgotten.
//
//	func TestStore(t *testing.T) {
//		idempotencytest.Run(t, func(t *testing.T) idempotency.Store { return newStore(t) })
//	}
//
// [Run] is for every store. In addition, [RunInspector] is for stores that implement [idempotency.Inspector], [RunResolver] for
// stores that implement [idempotency.Resolver], [RunSteps] for stores whose claims implement [idempotency.Checkpointer], and
// [RunTxSteps] for stores whose claims implement [idempotency.TxCheckpointer].
//
// A tutorial walks through a store that passes: https://github.com/idempotency-go/idempotency/blob/main/docs/store.md
package idempotencytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Run tests the stores that newStore returns. Each rule of the contract has a subtest, which has its own store. The
// subtests run in parallel. Run returns when all have ended.
//
// The stores may share a database, because every subtest uses its own keys. A store needs room for 4 MiB. It must be
// able to hold two claims at once.
//
// A slow machine breaks no rule. Only a store that does not answer for half a minute fails for that.
func Run(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	if err := probe(t.Context(), newStore(t)); err != nil {
		t.Fatal(err)
	}
	runAll(t, "store", storeCases(), func(t *testing.T) subject { return subject{store: newStore(t)} })
}

func runAll(t *testing.T, group string, cases []testCase, newSubject func(*testing.T) subject) {
	t.Run(group, func(t *testing.T) { // to wait for its parallel subtests
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if err := c.run(t.Context(), newSubject(t)); err != nil {
					t.Errorf("%v\nrule: %s", err, c.rule)
				}
			})
		}
	})
}

// subject is what is tested.
type subject struct {
	store idempotency.Store
	txs   *anyTransactions // nil except for RunTxSteps
}

// testCase checks one rule of the contract.
type testCase struct {
	name  string
	rule  string
	check func(*trial)
}

// probe returns an error if a store cannot hold two claims at once.
func probe(ctx context.Context, store idempotency.Store) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, first, err := tryClaim(ctx, store)
	if err != nil {
		return fmt.Errorf("first claim: %w", err)
	}
	defer release(ctx, first)
	_, second, err := tryClaim(ctx, store)
	if err != nil {
		return fmt.Errorf("claim of a second key while the first is held: %w", err)
	}
	release(ctx, second)
	return nil
}

// tryClaim claims a fresh key.
func tryClaim(ctx context.Context, store idempotency.Store) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := store.Begin(ctx, freshKey(), request)
	if err == nil && claim == nil {
		err = errors.New("a fresh key was not claimed")
	}
	if inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err); ok && inDoubt.Claim != nil {
		release(ctx, inDoubt.Claim)
	}
	return record, claim, err
}

// release gives back what the store holds for a claim.
func release(ctx context.Context, claim idempotency.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = claim.Release(ctx, long) // the checks show what becomes of it
}

func storeCases() []testCase {
	return slices.Concat(claimCases, scopeCases, leaseCases, fencingCases, settleCases, replayCases(), expiryCases, identityCases)
}

// run returns what broke the rule, or nil.
func (c testCase) run(ctx context.Context, tested subject) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := &trial{&session{ctx: ctx, subject: tested}, freshKey()}
	ended := make(chan error, 1)
	go func() {
		defer func() { ended <- t.err }()
		defer t.settle()
		c.check(t)
	}()
	hung := time.NewTimer(timeout + 2*grace)
	defer hung.Stop()
	select {
	case err := <-ended:
		return err
	case <-hung.C:
		return errors.New("the store has not returned although its context had ended")
	}
}
