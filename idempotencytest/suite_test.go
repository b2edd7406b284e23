package idempotencytest

import (
	"context"
	"errors"
	"maps"
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

// mustSeal returns store behind package seal. Sealed records do not disclose the fingerprint of another request.
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

// TestBugs checks that each case finds its seeded bugs, and that each case has a bug.
func TestBugs(t *testing.T) {
	bugs, alterationByName := maps.Clone(referenceBugs), make(map[string]alteration)
	for _, a := range alterations {
		bugs[a.caughtBy] = slices.Concat(bugs[a.caughtBy], []string{a.name})
		alterationByName[a.name] = a.alteration
	}
	checkSeededBugs(t, storeCases(), bugs, func(t *testing.T, bug, caughtBy string) error {
		newStore := func() idempotency.Store { return newReferenceStore(bug) }
		if a, ok := alterationByName[bug]; ok {
			newStore = func() idempotency.Store { return &alteredStore{store: newReferenceStore(""), alteration: a} }
		}
		return findViolations(t, newStore, caughtBy)[caughtBy]
	})
}

// checkSeededBugs checks that each case finds its bugs, and that each case has a bug. bugs has the names of the bugs by
// the case that must find them, and runCase returns the violation that this case finds.
func checkSeededBugs(
	t *testing.T, cases []testCase, bugs map[string][]string, runCase func(t *testing.T, bug, caughtBy string) error,
) {
	withoutBug := caseNames(cases)
	for caughtBy, names := range bugs {
		delete(withoutBug, caughtBy)
		for _, bug := range names {
			t.Run(caughtBy+" "+bug, func(t *testing.T) {
				t.Parallel()
				violation := runCase(t, bug, caughtBy)
				if violation == nil {
					t.Errorf("the case %q has not found the bug", caughtBy)
				}
				t.Log(violation)
			})
		}
	}
	for name := range withoutBug {
		t.Errorf("the case %q has no bug to find", name)
	}
}

func caseNames(cases []testCase) map[string]bool {
	all := make(map[string]bool)
	for _, c := range cases {
		all[c.name] = true
	}
	return all
}

// TestNoFalseAlarms checks that correct stores pass with network delays, before and after each call.
func TestNoFalseAlarms(t *testing.T) {
	for name, newStore := range map[string]func() idempotency.Store{
		"memory":       func() idempotency.Store { return newMemoryStore(t) },
		"reference":    func() idempotency.Store { return newReferenceStore("") },
		"unsure":       func() idempotency.Store { return lossyStore{newReferenceStore("")} },
		"sealed":       func() idempotency.Store { return mustSeal(t, newReferenceStore("")) },
		"sealed twice": func() idempotency.Store { return mustSeal(t, mustSeal(t, newReferenceStore(""))) },
	} {
		for _, delay := range []time.Duration{0, short / 4, short, 2 * short} {
			t.Run(name+" "+delay.String(), func(t *testing.T) {
				t.Parallel()
				for name, err := range findViolations(t, func() idempotency.Store { return slowStore{newStore(), delay} }) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
}

// TestHangingStore checks that a case ends even if the store ignores the end of its context.
func TestHangingStore(t *testing.T) {
	err := runInBubble(t, func(ctx context.Context) error {
		store := hangingStore{make(chan struct{})}
		defer close(store.end)
		return claimCases[0].runCheck(ctx, subject{store: store})
	})
	if err == nil || !strings.Contains(err.Error(), "has not returned") {
		t.Errorf("the case returned %v for a store that hangs", err)
	}
}

type hangingStore struct{ end chan struct{} }

func (s hangingStore) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	<-s.end
	return idempotency.Record{}, nil, context.DeadlineExceeded
}

// TestOneClaimAtATime checks that a store that can hold only one claim at a time fails soon, with the error of the
// store.
func TestOneClaimAtATime(t *testing.T) {
	newStore := func() idempotency.Store { return exclusiveStore{newReferenceStore(""), make(chan struct{}, 1)} }
	for name, try := range map[string]struct {
		wantErr  string
		runCheck func(context.Context) error
	}{
		"Run": {"claim of a second key while the first is held: database is locked", func(ctx context.Context) error {
			return checkTwoClaims(ctx, newStore())
		}},
		"case": {"Begin: database is locked", func(ctx context.Context) error {
			return findCase(claimCases, "concurrent claims").runCheck(ctx, subject{store: newStore()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			err := runInBubble(t, func(ctx context.Context) error {
				began := time.Now()
				err := try.runCheck(ctx)
				if took := time.Since(began); took > waitLimit {
					t.Errorf("the check took %v, want at most %v", took, waitLimit)
				}
				return err
			})
			if err == nil || err.Error() != try.wantErr {
				t.Errorf("the error is %v, want %q", err, try.wantErr)
			}
		})
	}
}

func findCase(cases []testCase, name string) testCase {
	return cases[slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })]
}

// exclusiveStore can hold only one claim at a time. A further Begin waits for the end of the claim or of its context.
type exclusiveStore struct {
	idempotency.Store
	lock chan struct{}
}

func (s exclusiveStore) Begin(
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
	store exclusiveStore
	once  sync.Once
}

func (c *exclusiveClaim) unlockStore() { c.once.Do(func() { <-c.store.lock }) }

func (c *exclusiveClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	defer c.unlockStore()
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c *exclusiveClaim) Release(ctx context.Context, end idempotency.Release) error {
	defer c.unlockStore()
	return c.Claim.Release(ctx, end)
}

// TestRunFails checks that Run fails for a store with a bug, and prints the violated rule.
func TestRunFails(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBrokenStore$")
	cmd.Env = append(os.Environ(), "IDEMPOTENCYTEST_BROKEN=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the test of a store with a bug has passed")
	}
	for _, want := range []string{
		"FAIL: TestBrokenStore/store/second_response",
		"the response differs from the completed response",
		"rule: A completed response stays, even if the owner calls Complete again with another response.",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

// TestBrokenStore is the failing test that TestRunFails runs in a process of its own.
func TestBrokenStore(t *testing.T) {
	if os.Getenv("IDEMPOTENCYTEST_BROKEN") != "" {
		Run(t, func(*testing.T) idempotency.Store { return newReferenceStore("last response wins") })
	}
}

// findViolations returns the violations of the named cases, or of all cases if names is empty, by the names of the
// cases.
func findViolations(t *testing.T, newStore func() idempotency.Store, names ...string) map[string]error {
	if err := runInBubble(t, func(ctx context.Context) error { return checkTwoClaims(ctx, newStore()) }); err != nil {
		return map[string]error{"first claim": err}
	}
	return findFailures(t, storeCases(), func() subject { return subject{store: newStore()} }, names)
}

// findFailures runs the named cases, or all cases if names is empty, and returns the violations by the names of the
// cases. Each case runs in a bubble of package synctest, where waiting takes no time.
func findFailures(t *testing.T, cases []testCase, newSubject func() subject, names []string) map[string]error {
	failed := make(map[string]error)
	for _, c := range cases {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		if err := runInBubble(t, func(ctx context.Context) error { return c.runCheck(ctx, newSubject()) }); err != nil {
			failed[c.name] = err
		}
	}
	return failed
}

// runInBubble returns the result of f, which runs in a bubble of package synctest.
func runInBubble(t *testing.T, f func(context.Context) error) (err error) {
	synctest.Test(t, func(t *testing.T) { err = f(t.Context()) })
	return err
}

// lossyStore is a store whose reply to Begin is lost if the context has ended.
type lossyStore struct{ idempotency.Store }

func (s lossyStore) Unwrap() idempotency.Store { return s.Store }

func (s lossyStore) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, a)
	if claim != nil && ctx.Err() != nil {
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: claim, Err: ctx.Err()}
	}
	return record, claim, err
}

// slowStore is a store behind a slow network: each direction takes up to delay.
type slowStore struct {
	idempotency.Store
	delay time.Duration
}

func (s slowStore) Unwrap() idempotency.Store { return s.Store }

func (s slowStore) sleepRandomly() {
	if s.delay > 0 {
		time.Sleep(rand.N(s.delay))
	}
}

func (s slowStore) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.sleepRandomly()
	record, claim, err := s.Store.Begin(ctx, key, a)
	s.sleepRandomly()
	if claim != nil {
		claim = slowClaim{claim, s}
	}
	return record, claim, err
}

type slowClaim struct {
	idempotency.Claim
	slowStore
}

func (c slowClaim) Extend(ctx context.Context, lease time.Duration) error {
	c.sleepRandomly()
	defer c.sleepRandomly()
	return c.Claim.Extend(ctx, lease)
}

func (c slowClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.sleepRandomly()
	defer c.sleepRandomly()
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c slowClaim) Release(ctx context.Context, end idempotency.Release) error {
	c.sleepRandomly()
	defer c.sleepRandomly()
	return c.Claim.Release(ctx, end)
}
