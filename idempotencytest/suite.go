// Package idempotencytest tests implementations of [idempotency.Store] against the contract that its documentation
// states.
//
// Two kinds of stores keep that contract. In a leased store a claim lapses unless it is extended. In a transactional
// store it has none, as [idempotency.Record].NoLease says in the record of a claim: it holds until it
// is settled, and is undone with everything else if it is not completed. [Run] tells the kind by the first claim, and
// names it in the subtests. These rules differ:
//
//   - Lapse, takeover, expiry before completion, and what an overtaken owner may still do concern leased stores only.
//   - A released record stays in a leased store, so that the next attempt is another one at the same operation and no
//     other request gets the key. A transactional store may have forgotten it.
//   - Of an attempt that runs, a transactional store may know only that it runs: operation and fingerprint are
//     then zero.
//
// All other rules hold for both.
package idempotencytest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Run tests the stores that newStore returns, each rule of the contract in a subtest with a store of its own. The
// subtests run in parallel; Run returns when all have ended.
//
// The stores may share a database, as every subtest uses keys of its own. A store needs room for 4 MiB. If its claims
// hold connections, it needs a pool of at least four for itself: two claims are held at once at most, while 64
// callers ask for their keys.
//
// No rule is reported as broken because a machine is slow. Only a store that does not answer for minutes fails for it.
func Run(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	kind, err := kindOf(t.Context(), newStore(t))
	if err != nil {
		t.Fatalf("first claim: %v", err)
	}
	t.Run(kind.String(), func(t *testing.T) { // a group, to wait for its parallel subtests
		for _, c := range casesFor(kind) {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if err := c.run(t.Context(), newStore(t), kind); err != nil {
					t.Errorf("%v\nrule: %s", err, c.rule)
				}
			})
		}
	})
}

// testCase checks one rule of the contract.
type testCase struct {
	name  string
	rule  string
	only  kind // of stores that the rule is for
	check func(*trial)
}

// kind of a store. The zero value stands for every kind.
type kind int

const (
	leased kind = iota + 1
	transactional
)

func (k kind) String() string {
	return [...]string{"any", "leased", "transactional"}[k]
}

// kindOf tells the kind of a store by a claim.
func kindOf(ctx context.Context, store idempotency.Store) (kind, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	record, claim, err := store.Begin(ctx, freshKey(), request)
	if err != nil {
		if claim != nil {
			_ = claim.Release(ctx, long)
		}
		return 0, err
	}
	if claim == nil {
		return 0, errors.New("a fresh key was not claimed")
	}
	if record.NoLease {
		return transactional, claim.Release(ctx, long)
	}
	return leased, claim.Release(ctx, long)
}

func casesFor(kind kind) []testCase {
	all := slices.Concat(claimCases, scopeCases, leaseCases, fencingCases, settleCases, replayCases(), expiryCases)
	return slices.DeleteFunc(all, func(c testCase) bool { return c.only != 0 && c.only != kind })
}

// run returns what broke the rule, or nil.
func (c testCase) run(ctx context.Context, store idempotency.Store, kind kind) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t := &trial{&session{ctx: ctx, store: store, kind: kind}, freshKey()}
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
