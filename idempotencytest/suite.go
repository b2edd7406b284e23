// Package idempotencytest tests implementations of [idempotency.Store] against the contract that its documentation
// states. It also has a test for services: [Guarded] finds the routes on which the middleware was forgotten.
//
//	func TestStore(t *testing.T) {
//		idempotencytest.Run(t, func(t *testing.T) idempotency.Store { return newStore(t) })
//	}
//
// Two kinds of stores keep that contract. In a leased store a claim lapses unless it is extended. In a transactional
// store a claim has no lease, and [idempotency.Record].NoLease says so: the claim holds until it is settled. If it is
// not completed, it is undone with everything else. [Run] finds out the kind by the first claim, and names it in the
// subtests. These rules differ:
//
//   - Some rules concern leased stores only: lapse, takeover, expiry before completion, and what an overtaken owner may
//     still do.
//   - A released record stays in a leased store. So the next attempt belongs to the same operation, and no other
//     request gets the key. A transactional store may have forgotten it.
//   - A transactional store may know nothing of a running attempt but that it runs: attempt and fingerprint are then
//     zero.
//
// All other rules hold for both.
//
// [Run] is for every store. It uses only the interface of the store, and so knows nothing of the effects of a handler.
// [RunTx] is for transactional stores, in addition: it makes effects in their transactions, and checks what becomes of
// them. In addition, [RunInspector] is for stores that implement [idempotency.Inspector], [RunResolver] for those that
// implement [idempotency.Resolver], [RunSteps] for those whose claims implement [idempotency.Checkpointer], and [RunTxSteps] for
// those whose claims implement [idempotency.TxCheckpointer].
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

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Run tests the stores that newStore returns. Each rule of the contract has a subtest, which has its own store. The
// subtests run in parallel. Run returns when all have ended.
//
// The stores may share a database, because every subtest uses its own keys. A store needs room for 4 MiB. It must be
// able to hold two claims at once. A store whose Begin begins a transaction cannot do so if its database permits one at
// a time. If claims hold connections, the store needs a pool of at least four for itself: two claims are held at once
// at most, while 64 callers ask for their keys.
//
// A slow machine breaks no rule. Only a store that does not answer for half a minute fails for that.
func Run(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	kind, err := probe(t.Context(), newStore(t))
	if err != nil {
		t.Fatal(err)
	}
	runAll(t, kind.String(), casesFor(kind), func(t *testing.T) subject {
		return subject{store: newStore(t), kind: kind}
	})
}

// RunTx tests what transactional stores do with the effects of handlers. NewStore returns the stores. Each rule has a
// subtest, which has its own store, as in [Run]. RunTx does not repeat the rules of Run, which the stores must keep,
// too.
//
// The function effect does the work of a handler: it makes one change in the transaction that the store offers in ctx.
// This ctx is that of [idempotency.Claim].Context, or derived from it. An example is a new row in a table without a
// key. The change has a name of 36 characters, and the same change may be made again. If it cannot be made, or if ctx
// offers no transaction, effect returns an error.
//
// The function count returns how many changes of that name are committed. It asks outside of any transaction, and does
// not wait for transactions that go on.
//
// The stores may share one database, which is also that of effect and count. A store needs what it needs for Run, and
// that is enough for count, too. The database may let one transaction with changes wait for the end of another. SQLite,
// for instance, permits one at a time. So while a goroutine of RunTx has effects in one attempt, it neither begins nor
// completes a second attempt with effects. But the database must not refuse one of two transactions whose changes
// differ in their names.
func RunTx(
	t *testing.T, newStore func(*testing.T) idempotency.Store,
	effect func(ctx context.Context, name string) error, count func(ctx context.Context, name string) (int, error),
) {
	tested := func(t *testing.T) subject {
		return subject{store: newStore(t), kind: transactional, effect: effect, count: count}
	}
	if err := probeTx(t.Context(), tested(t)); err != nil {
		t.Fatal(err)
	}
	runAll(t, "effects", effectCases, tested)
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
	store  idempotency.Store
	kind   kind
	effect func(ctx context.Context, name string) error // nil but for RunTx
	count  func(ctx context.Context, name string) (int, error)
	txs    *anyTransactions // nil but for RunTxSteps
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

// probe tells the kind of a store by a claim, and whether it can hold two.
func probe(ctx context.Context, store idempotency.Store) (kind, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	record, first, err := tryClaim(ctx, store)
	if err != nil {
		return 0, fmt.Errorf("first claim: %w", err)
	}
	defer release(ctx, first)
	_, second, err := tryClaim(ctx, store)
	if err != nil {
		return 0, fmt.Errorf("claim of a second key while the first is held: %w", err)
	}
	defer release(ctx, second)
	if record.NoLease {
		return transactional, nil
	}
	return leased, nil
}

// tryClaim claims a fresh key.
func tryClaim(ctx context.Context, store idempotency.Store) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := store.Begin(ctx, freshKey(), request)
	if err == nil && claim == nil {
		err = errors.New("a fresh key was not claimed")
	}
	if err != nil && claim != nil {
		release(ctx, claim)
	}
	return record, claim, err
}

// release gives back what the store holds for a claim.
func release(ctx context.Context, claim idempotency.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = claim.Release(ctx, long) // the checks show what becomes of it
}

// probeTx tells whether a store is a transactional one, and whether the functions for its effects are such.
func probeTx(ctx context.Context, tested subject) error {
	kind, err := probe(ctx, tested.store)
	if err != nil {
		return err
	}
	switch {
	case kind != transactional:
		return errors.New("the store is not transactional: the record of its claim lacks NoLease")
	case !announced(tested.store):
		return errors.New("the store has no method Transactional that returns true, and no Unwrap to a store that has")
	}
	name := uuid.NewString()
	if tested.effect(ctx, name) == nil {
		return errors.New("effect succeeded in a context without a transaction")
	}
	n, err := tested.count(ctx, name)
	if err != nil || n != 0 {
		return fmt.Errorf("count of what was never made: %d, error %v", n, err)
	}
	return nil
}

func casesFor(kind kind) []testCase {
	all := slices.Concat(claimCases, scopeCases, leaseCases, fencingCases, settleCases, replayCases(), expiryCases, identityCases)
	return only(kind, all)
}

// only returns the cases for stores of a kind.
func only(kind kind, all []testCase) []testCase {
	return slices.DeleteFunc(all, func(c testCase) bool { return c.only != 0 && c.only != kind })
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
