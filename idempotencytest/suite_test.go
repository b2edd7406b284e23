package idempotencytest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func TestMemoryStore(t *testing.T) {
	Run(t, newMemoryStore)
}

// mustSeal returns a store that tells nobody the fingerprint of another request.
func mustSeal(t *testing.T, store idempotency.Store) idempotency.Store {
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
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
	unproven := names(storeCases())
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
	for _, a := range alterations {
		try(a.name, a.caughtBy, func() idempotency.Store {
			return &altered{store: newReference(""), alteration: a.alteration}
		})
	}
	for name := range unproven {
		t.Errorf("there is no bug for %q to catch", name)
	}
}

func names(cases []testCase) map[string]bool {
	all := make(map[string]bool)
	for _, c := range cases {
		all[c.name] = true
	}
	return all
}

// TestNoFalseAlarms shows that correct stores pass although they answer late, be it before or after they have acted.
func TestNoFalseAlarms(t *testing.T) {
	for name, newStore := range map[string]func() idempotency.Store{
		"memory":       func() idempotency.Store { return newMemoryStore(t) },
		"reference":    func() idempotency.Store { return newReference("") },
		"unsure":       func() idempotency.Store { return unsure{newReference("")} },
		"sealed":       func() idempotency.Store { return mustSeal(t, newReference("")) },
		"sealed twice": func() idempotency.Store { return mustSeal(t, mustSeal(t, newReference(""))) },
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
		return claimCases[0].run(ctx, subject{store: store})
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

// TestOneClaimAtATime shows that a store that holds one claim at a time fails soon, and for what it says itself.
func TestOneClaimAtATime(t *testing.T) {
	newStore := func() idempotency.Store { return exclusive{newReference(""), make(chan struct{}, 1)} }
	for name, try := range map[string]struct {
		names string
		check func(context.Context) error
	}{
		"Run": {"claim of a second key while the first is held: database is locked", func(ctx context.Context) error {
			return probe(ctx, newStore())
		}},
		"case": {"Begin: database is locked", func(ctx context.Context) error {
			return named(claimCases, "concurrent claims").run(ctx, subject{store: newStore()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			err := inBubble(t, func(ctx context.Context) error {
				began := time.Now()
				err := try.check(ctx)
				if took := time.Since(began); took > patience {
					t.Errorf("it took %v", took)
				}
				return err
			})
			if err == nil || err.Error() != try.names {
				t.Errorf("the error is %v, not %q", err, try.names)
			}
		})
	}
}

func named(cases []testCase, name string) testCase {
	return cases[slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })]
}

// exclusive is a store that holds one claim at a time. Whoever else begins waits until its context ends.
type exclusive struct {
	idempotency.Store
	lock chan struct{}
}

func (s exclusive) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	select {
	case s.lock <- struct{}{}:
	case <-ctx.Done():
		return idempotency.Record{}, nil, errors.New("database is locked")
	}
	record, claim, err := s.Store.Begin(ctx, key, a)
	if claim == nil {
		<-s.lock
		return record, nil, err
	}
	return record, &exclusiveClaim{Claim: claim, store: s}, err
}

type exclusiveClaim struct {
	idempotency.Claim
	store exclusive
	once  sync.Once
}

func (c *exclusiveClaim) end() { c.once.Do(func() { <-c.store.lock }) }

func (c *exclusiveClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	defer c.end()
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c *exclusiveClaim) Release(ctx context.Context, ttl time.Duration) error {
	defer c.end()
	return c.Claim.Release(ctx, ttl)
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
		"FAIL: TestBrokenStore/store/second_response",
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

// violations returns by their names the cases that a store fails, of those that are named or of all.
func violations(t *testing.T, newStore func() idempotency.Store, names ...string) map[string]error {
	if err := inBubble(t, func(ctx context.Context) error { return probe(ctx, newStore()) }); err != nil {
		return map[string]error{"first claim": err}
	}
	return failures(t, storeCases(), func() subject { return subject{store: newStore()} }, names)
}

// failures runs the cases that are named, or all. Each runs in a bubble, where waiting takes no time.
func failures(t *testing.T, cases []testCase, newSubject func() subject, names []string) map[string]error {
	failed := make(map[string]error)
	for _, c := range cases {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		if err := inBubble(t, func(ctx context.Context) error { return c.run(ctx, newSubject()) }); err != nil {
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

func (s unsure) Unwrap() idempotency.Store { return s.Store }

func (s unsure) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, a)
	if claim != nil && ctx.Err() != nil {
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: claim, Err: ctx.Err()}
	}
	return record, claim, err
}

// slow is a store that is far away: each way takes up to delay.
type slow struct {
	idempotency.Store
	delay time.Duration
}

func (s slow) Unwrap() idempotency.Store { return s.Store }

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
