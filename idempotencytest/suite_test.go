package idempotencytest

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotency-go/idempotency"
)

func TestMemoryStore(t *testing.T) {
	Run(t, newMemoryStore)
}

func TestTransactionalStore(t *testing.T) {
	Run(t, func(t *testing.T) idempotency.Store {
		store := newTransactions("")
		t.Cleanup(func() {
			if n := len(store.conns); n > 0 {
				t.Errorf("%d claims are left behind", n)
			}
		})
		return store
	})
}

// seal returns a store that tells nobody the fingerprint of another request.
func seal(t *testing.T, store idempotency.Store) idempotency.Store {
	sealed, err := idempotency.Seal(store, idempotency.SealOptions{
		Keys: []idempotency.SealKey{{ID: "1", Secret: make([]byte, 32)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func newMemoryStore(*testing.T) idempotency.Store {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// TestBugs shows that each of the seeded bugs is caught by the case that is meant for it, and that each case has one.
func TestBugs(t *testing.T) {
	unproven := make(map[string]bool)
	for _, c := range slices.Concat(casesFor(leased), casesFor(transactional)) {
		unproven[c.name] = true
	}
	try := func(bug, caughtBy string, newStore func() idempotency.Store) {
		delete(unproven, caughtBy)
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			err := violations(t, newStore, caughtBy)[caughtBy]
			if err == nil {
				t.Errorf("not caught by %q", caughtBy)
			}
			t.Log(err)
		})
	}
	for caughtBy, bugs := range referenceBugs {
		for _, bug := range bugs {
			try(bug, caughtBy, func() idempotency.Store { return newReference(bug) })
		}
	}
	for caughtBy, bugs := range transactionBugs {
		for _, bug := range bugs {
			try(bug, caughtBy, func() idempotency.Store { return newTransactions(bug) })
		}
	}
	for _, a := range alterations {
		try(a.name, a.caughtBy, func() idempotency.Store {
			return &altered{store: newReference(""), alteration: a.alteration}
		})
	}
	for name := range unproven {
		t.Errorf("there is no bug for %q to catch", name)
	}
}

// TestNoFalseAlarms shows that correct stores pass although they answer late, be it before or after they have acted.
func TestNoFalseAlarms(t *testing.T) {
	for name, newStore := range map[string]func() idempotency.Store{
		"memory":        func() idempotency.Store { return newMemoryStore(t) },
		"reference":     func() idempotency.Store { return newReference("") },
		"transactional": func() idempotency.Store { return newTransactions("") },
		"unsure":        func() idempotency.Store { return unsure{newReference("")} },
		"sealed":        func() idempotency.Store { return seal(t, newReference("")) },
		"sealed twice":  func() idempotency.Store { return seal(t, seal(t, newTransactions(""))) },
	} {
		for _, delay := range []time.Duration{0, short / 4, short, 2 * short} {
			t.Run(name+" "+delay.String(), func(t *testing.T) {
				t.Parallel()
				for name, err := range violations(t, func() idempotency.Store { return slow{newStore(), delay} }) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
}

// TestHangingStore shows that a check ends although the store does not, whatever its context says.
func TestHangingStore(t *testing.T) {
	err := inBubble(t, func(ctx context.Context) error {
		store := hanging{make(chan struct{})}
		defer close(store.end)
		return claimCases[0].run(ctx, store, leased)
	})
	if err == nil || !strings.Contains(err.Error(), "has not returned") {
		t.Errorf("the check of a store that hangs returned %v", err)
	}
}

type hanging struct{ end chan struct{} }

func (s hanging) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	<-s.end
	return idempotency.Record{}, nil, context.DeadlineExceeded
}

// TestRunFails shows that Run fails the test of a broken store, and says which rule it breaks.
func TestRunFails(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBrokenStore$")
	cmd.Env = append(os.Environ(), "IDEMPOTENCYTEST_BROKEN=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the test of a broken store has passed")
	}
	for _, want := range []string{
		"FAIL: TestBrokenStore/leased/second_response",
		"the response is not what was completed",
		"rule: A response that was completed stays, even if its owner completes with another one.",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

// TestBrokenStore is what TestRunFails runs.
func TestBrokenStore(t *testing.T) {
	if os.Getenv("IDEMPOTENCYTEST_BROKEN") != "" {
		Run(t, func(*testing.T) idempotency.Store { return newReference("last response wins") })
	}
}

// violations returns by their names the cases that a store fails, of those that are named or of all. Each runs in a
// bubble, where waiting takes no time.
func violations(t *testing.T, newStore func() idempotency.Store, names ...string) map[string]error {
	var kind kind
	err := inBubble(t, func(ctx context.Context) (err error) {
		kind, err = kindOf(ctx, newStore())
		return err
	})
	if err != nil {
		return map[string]error{"first claim": err}
	}
	failed := make(map[string]error)
	for _, c := range casesFor(kind) {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		if err := inBubble(t, func(ctx context.Context) error { return c.run(ctx, newStore(), kind) }); err != nil {
			failed[c.name] = err
		}
	}
	return failed
}

func inBubble(t *testing.T, f func(context.Context) error) (err error) {
	synctest.Test(t, func(t *testing.T) { err = f(t.Context()) })
	return err
}

// unsure is a store whose reply to a Begin is lost when its context has ended.
type unsure struct{ idempotency.Store }

func (s unsure) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, a)
	if ctx.Err() != nil {
		return idempotency.Record{}, claim, ctx.Err()
	}
	return record, claim, err
}

// slow is a store that is far away: each way takes up to delay.
type slow struct {
	idempotency.Store
	delay time.Duration
}

func (s slow) wait() {
	if s.delay > 0 {
		time.Sleep(rand.N(s.delay))
	}
}

func (s slow) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.wait()
	record, claim, err := s.Store.Begin(ctx, key, a)
	s.wait()
	if claim != nil {
		claim = slowClaim{claim, s}
	}
	return record, claim, err
}

type slowClaim struct {
	idempotency.Claim
	slow
}

func (c slowClaim) Extend(ctx context.Context, lease time.Duration) error {
	c.wait()
	defer c.wait()
	return c.Claim.Extend(ctx, lease)
}

func (c slowClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.wait()
	defer c.wait()
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c slowClaim) Release(ctx context.Context, ttl time.Duration) error {
	c.wait()
	defer c.wait()
	return c.Claim.Release(ctx, ttl)
}
