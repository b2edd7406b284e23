// Package idempotencytest tests implementations of [idempotency.Store] against the contract in the documentation of
// Store. For services, [Guarded] finds the routes without a middleware.
//
//	func TestStore(t *testing.T) {
//		idempotencytest.Run(t, func(t *testing.T) idempotency.Store { return newStore(t) })
//	}
//
// [Run] tests every store. Further functions test the optional interfaces:
//
//   - [RunInspector]: stores that implement [idempotency.Inspector]
//   - [RunResolver]: stores that implement [idempotency.Resolver]
//   - [RunSteps]: stores whose claims implement [idempotency.Checkpointer]
//   - [RunTxSteps]: stores whose claims implement [idempotency.TxCheckpointer]
//
// The tutorial explains a store that passes: https://github.com/idempotency-go/idempotency/blob/main/docs/store.md
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

// Run tests the stores that newStore returns. Run calls newStore for each rule of the contract, and tests the rule in a
// subtest. The subtests run in parallel. Run returns when all subtests have ended.
//
// The stores may share a database, because every subtest uses its own keys. A store needs room for 4 MiB, and must be
// able to hold two claims at the same time.
//
// Slow stores and slow machines pass, unless the store takes more than half a minute to answer.
func Run(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	if err := checkTwoClaims(t.Context(), newStore(t)); err != nil {
		t.Fatal(err)
	}
	runCases(t, "store", storeCases(), func(t *testing.T) subject { return subject{store: newStore(t)} })
}

// runCases runs each case in a parallel subtest, with a subject of its own.
func runCases(t *testing.T, group string, cases []testCase, newSubject func(*testing.T) subject) {
	t.Run(group, func(t *testing.T) { // the group ends after its parallel subtests
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if err := c.runCheck(t.Context(), newSubject(t)); err != nil {
					t.Errorf("%v\nrule: %s", err, c.rule)
				}
			})
		}
	})
}

// subject is the store under test.
type subject struct {
	store        idempotency.Store
	transactions *anyTransactions // only for RunTxSteps, otherwise nil
}

// testCase checks one rule of the contract.
type testCase struct {
	name      string
	rule      string
	checkRule func(*trial)
}

// checkTwoClaims returns an error if store cannot hold two claims at the same time.
func checkTwoClaims(ctx context.Context, store idempotency.Store) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	_, first, err := claimNewKey(ctx, store)
	if err != nil {
		return fmt.Errorf("first claim: %w", err)
	}
	defer cleanUpClaim(ctx, first)
	_, second, err := claimNewKey(ctx, store)
	if err != nil {
		return fmt.Errorf("claim of a second key while the first is held: %w", err)
	}
	cleanUpClaim(ctx, second)
	return nil
}

// claimNewKey claims a new key. If the claim is in doubt, claimNewKey releases the claim and returns the error of
// Begin.
func claimNewKey(ctx context.Context, store idempotency.Store) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := store.Begin(ctx, newKey(), request)
	if err == nil && claim == nil {
		err = errors.New("a fresh key was not claimed")
	}
	if inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err); ok && inDoubt.Claim != nil {
		cleanUpClaim(ctx, inDoubt.Claim)
	}
	return record, claim, err
}

// cleanUpClaim releases claim, even if ctx has ended. An error of Release is ignored.
func cleanUpClaim(ctx context.Context, claim idempotency.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
	defer cancel()
	_ = claim.Release(ctx, idempotency.Release{TTL: long}) // the cases test Release
}

func storeCases() []testCase {
	return slices.Concat(claimCases, scopeCases, leaseCases, fencingCases, settleCases, replayCases(), expiryCases, identityCases)
}

// runCheck runs the check of the case, and returns the violation of the rule, or nil. The check runs in a goroutine of
// its own, so that a store that ignores the end of its context fails the case and does not block the test.
func (c testCase) runCheck(ctx context.Context, tested subject) error {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	t := &trial{&session{ctx: ctx, subject: tested}, newKey()}
	ended := make(chan error, 1)
	go func() {
		defer func() { ended <- t.violation }()
		defer t.cleanUpClaims()
		c.checkRule(t)
	}()
	hangTimer := time.NewTimer(caseTimeout + 2*cleanUpLimit)
	defer hangTimer.Stop()
	select {
	case err := <-ended:
		return err
	case <-hangTimer.C:
		return errors.New("the store has not returned, although its context has ended")
	}
}
