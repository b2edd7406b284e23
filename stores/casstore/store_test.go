package casstore_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/casstore"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
)

// local are the options of tests, whose processes share a clock.
var local = casstore.Options{Skew: time.Millisecond}

var key, request, answer = rowtest.KeyOf("key"), rowtest.Takeover, rowtest.Answer

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, isMute := range map[string]bool{"writes tell versions": false, "writes tell no versions": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStore := func(*testing.T) idempotency.Store {
				m := newTable()
				m.isMute = isMute
				return casstore.New(m, local)
			}
			idempotencytest.Run(t, newStore)
			idempotencytest.RunSteps(t, newStore)
			idempotencytest.RunResolver(t, newStore)
		})
	}
}

// claim claims the key.
func claim(t testing.TB, store idempotency.Store) idempotency.Checkpointer {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return claim.(idempotency.Checkpointer)
}

// lapse claims the key for a lease that is over when it returns, and marks a step.
func lapse(t testing.TB, store *casstore.Store) idempotency.Checkpointer {
	t.Helper()
	began := time.Now()
	store.SetTime(func() time.Time { return began.Add(-time.Hour / 2) })
	held := claim(t, store)
	_, err := held.Checkpoint(t.Context(), "charge", []byte("1"))
	require.NoError(t, err)
	store.SetTime(time.Now)
	return held
}

// entry is what is stored, without what follows from the time.
func entry(t testing.TB, store *casstore.Store) idempotency.Entry {
	t.Helper()
	found, err := store.Inspect(t.Context(), key)
	if errors.Is(err, idempotency.ErrNoRecord) {
		return idempotency.Entry{}
	}
	require.NoError(t, err)
	found.Created, found.LeaseLeft, found.Remaining = time.Time{}, 0, 0
	if found.Resolved != nil {
		found.Resolved.At = time.Time{}
	}
	return found
}

// step is something that a store does for its caller.
type step func(t *testing.T, store *casstore.Store) (do func() (result any, err error))

// steps are all that there are, and the calls that each makes if nobody else is there.
var steps = map[string]struct {
	step
	calls string
}{
	"claim": {calls: "Create", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		return begin(t, store, request)
	}},
	"claim after a release": {calls: "Create Get Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		require.NoError(t, claim(t, store).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		return begin(t, store, request)
	}},
	"takeover": {calls: "Create Get Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		lapse(t, store)
		return begin(t, store, request)
	}},
	"replay": {calls: "Create Get", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		require.NoError(t, claim(t, store).Complete(t.Context(), answer, time.Hour))
		return begin(t, store, request)
	}},
	"refusal": {calls: "Create Get", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		claim(t, store)
		return begin(t, store, request)
	}},
	"extend": {calls: "Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := claim(t, store)
		return func() (any, error) { return nil, held.Extend(t.Context(), time.Hour) }
	}},
	"extend what was lost": {calls: "Replace Get Get Create", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := lapse(t, store)
		found, err := store.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, store.Forget(t.Context(), found))
		return func() (any, error) {
			err := held.Extend(t.Context(), time.Hour)
			if errors.Is(err, idempotency.ErrRestored) { // a repetition has found what it has made before
				err = nil
			}
			return nil, err
		}
	}},
	"extend after a takeover": {calls: "Replace Get Get", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := lapse(t, store)
		claim(t, store)
		return func() (any, error) { return held.Extend(t.Context(), time.Hour), nil }
	}},
	"complete": {calls: "Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := claim(t, store)
		return func() (any, error) { return nil, held.Complete(t.Context(), answer, time.Hour) }
	}},
	"complete after a takeover": {calls: "Replace Get", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := lapse(t, store)
		claim(t, store)
		return func() (any, error) { return held.Complete(t.Context(), answer, time.Hour), nil }
	}},
	"release": {calls: "Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := claim(t, store)
		return func() (any, error) { return nil, held.Release(t.Context(), idempotency.Release{TTL: time.Hour}) }
	}},
	"free": {calls: "Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := claim(t, store)
		return func() (any, error) { return nil, held.Release(t.Context(), idempotency.Release{TTL: 0}) }
	}},
	"checkpoint": {calls: "Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		held := claim(t, store)
		return func() (any, error) { return held.Checkpoint(t.Context(), "charge", []byte("1")) }
	}},
	"checkpoints": {calls: "Get", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		lapse(t, store)
		held := claim(t, store)
		return func() (any, error) { return held.Checkpoints(t.Context()) }
	}},
	"forget": {calls: "Get Delete", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		lapse(t, store)
		found, err := store.Inspect(t.Context(), key)
		require.NoError(t, err)
		return func() (any, error) { return nil, store.Forget(t.Context(), found) }
	}},
	"resolve": {calls: "Get Replace", step: func(t *testing.T, store *casstore.Store) func() (any, error) {
		lapse(t, store)
		found, err := store.Inspect(t.Context(), key)
		require.NoError(t, err)
		resolution := idempotency.Resolution{Response: &answer, TTL: time.Hour, Operator: "anna"}
		return func() (any, error) { return nil, store.Resolve(t.Context(), found, resolution) }
	}},
}

// begin returns what a request learns.
func begin(t *testing.T, store *casstore.Store, request idempotency.ClaimRequest) func() (any, error) {
	return func() (any, error) {
		record, claim, err := store.Begin(t.Context(), key, request)
		return fmt.Sprint(claim != nil, record.Attempt, record.Response), err
	}
}

// The package documentation has these numbers of calls.
func TestCalls(t *testing.T) {
	t.Parallel()
	for name, c := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTable()
			do := c.step(t, casstore.New(m, local))
			m.taken()
			_, err := do()
			require.NoError(t, err)
			require.Equal(t, c.calls, m.taken())
		})
	}
}

// A free key is an answer, not a failure to try again.
func TestInspectionOfAFreeKey(t *testing.T) {
	t.Parallel()
	m := newTable()
	_, err := casstore.New(m, local).Inspect(t.Context(), key)
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
	require.Equal(t, "Get", m.taken())
}

// Whatever becomes of a call, the step is done once, and its caller learns that.
func TestCallsFail(t *testing.T) {
	t.Parallel()
	faults := map[string]fault{
		"the request is lost":                  loseRequest,
		"the reply is lost":                    loseReply,
		"the reply is held":                    holdReply,
		"the request is late":                  holdRequest,
		"somebody else has written in between": overtake,
	}
	for name, c := range steps {
		for call := range strings.Fields(c.calls) {
			for what, struck := range faults {
				t.Run(fmt.Sprintf("%s, call %d, %s", name, call+1, what), func(t *testing.T) {
					t.Parallel()
					undisturbed := casstore.New(newTable(), local)
					want, err := c.step(t, undisturbed)()
					require.NoError(t, err)

					m := newTable()
					opts := local
					opts.CallTimeout = 20 * time.Millisecond
					store := casstore.New(m, opts)
					do := c.step(t, store)
					m.inject(append(repeat(pass, call), struck)...)
					got, err := do()
					require.NoError(t, err)
					require.True(t, m.struck())
					require.Equal(t, want, got)
					require.Equal(t, entry(t, undisturbed), entry(t, store))
				})
			}
		}
	}
}

func repeat(f fault, times int) (all []fault) {
	for range times {
		all = append(all, f)
	}
	return all
}

// If no reply comes, the claim is in doubt, and its release frees the key, whether or not it was granted.
func TestClaimInDoubt(t *testing.T) {
	t.Parallel()
	for name, struck := range map[string]fault{"lost requests": loseRequest, "lost replies": loseReply} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTable()
			store := casstore.New(m, local)
			m.inject(repeat(struck, 4)...)
			_, _, err := store.Begin(t.Context(), key, request)
			require.ErrorIs(t, err, errLost)
			doubt := testservice.InDoubt(err)
			require.NotNil(t, doubt)
			_ = doubt.Release(t.Context(), idempotency.Release{TTL: 0})
			record, _, err := store.Begin(t.Context(), key, request)
			require.NoError(t, err)
			require.Equal(t, 1, record.Attempt)
			require.Nil(t, record.Response)
		})
	}
}

// A slow call has begun the lease too early. If no time is left to extend it, the claim is granted, but in doubt.
func TestSlowClaimIsInDoubt(t *testing.T) {
	t.Parallel()
	m := newTable()
	store := casstore.New(m, local)
	ctx, cancel := context.WithCancel(t.Context())
	m.inject(func(_ context.Context, _ *table, _ string, do func() error) error {
		slow := time.Now().Add(request.Lease / 2)
		store.SetTime(func() time.Time { return slow })
		cancel()
		return do()
	})
	_, _, err := store.Begin(ctx, key, request)
	require.ErrorIs(t, err, context.Canceled)
	doubt := testservice.InDoubt(err)
	require.NotNil(t, doubt)
	require.NoError(t, doubt.Release(t.Context(), idempotency.Release{TTL: 0}))
	claim(t, store)
}

// A table that says that it has done nothing leaves no doubt.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{idempotency.ErrStoreFull, idempotency.ErrStoreBusy, errors.ErrUnsupported} {
		t.Run(refusal.Error(), func(t *testing.T) {
			t.Parallel()
			m := newTable()
			m.refusal = fmt.Errorf("wrapped: %w", refusal)
			_, claim, err := casstore.New(m, local).Begin(t.Context(), key, request)
			require.ErrorIs(t, err, refusal)
			require.Nil(t, claim)
			require.Nil(t, testservice.InDoubt(err))
		})
	}
}

// Without room for the answer, its operation does not run again all the same.
func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	m := newTable()
	m.largest, m.refusal = 1<<10, idempotency.ErrStoreFull
	store := casstore.New(m, local)
	large := answer
	large.Body = make([]byte, 2<<10)
	require.NoError(t, claim(t, store).Complete(t.Context(), large, time.Hour))
	record, held, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Nil(t, held)
	require.True(t, record.Response.Omitted)
}

// A call is made only if the step still has time.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	m := newTable()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, claim, err := casstore.New(m, local).Begin(ctx, key, request)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, claim)
	require.Empty(t, m.taken())
}

// Clocks that agree within Skew keep a lease, and clocks that do not end it early. The overtaken attempt changes nothing then.
func TestClocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ahead       time.Duration
		isTakenOver bool
	}{
		"behind":        {-time.Hour, false},
		"within Skew":   {time.Minute + 9*time.Second, false}, // at the end of the lease
		"further ahead": {time.Minute + 11*time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTable()
			began := time.Now()
			first, second := casstore.New(m, casstore.Options{}), casstore.New(m, casstore.Options{})
			first.SetTime(func() time.Time { return began })
			second.SetTime(func() time.Time { return began.Add(c.ahead) })
			held := claim(t, first)
			_, taken, err := second.Begin(t.Context(), key, request)
			require.NoError(t, err)
			require.Equal(t, c.isTakenOver, taken != nil)
			if c.isTakenOver {
				require.ErrorIs(t, held.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
				require.NoError(t, taken.Complete(t.Context(), answer, time.Hour))
			} else {
				require.NoError(t, held.Complete(t.Context(), answer, time.Hour))
			}
		})
	}
}

// A lease runs from when it is granted, however long the call takes.
func TestSlowClaim(t *testing.T) {
	t.Parallel()
	m := newTable()
	store := casstore.New(m, local)
	now := time.Now()
	store.SetTime(func() time.Time { return now })
	m.inject(func(_ context.Context, _ *table, _ string, do func() error) error {
		now = now.Add(request.Lease / 2)
		return do()
	})
	claim(t, store)
	found, err := store.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, request.Lease+local.Skew, found.LeaseLeft)
}

// The database keeps a value until no clock takes its record for live.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	m := newTable()
	store := casstore.New(m, casstore.Options{})
	now := time.Now()
	store.SetTime(func() time.Time { return now })
	held := claim(t, store)
	require.Equal(t, request.TTL+20*time.Second, m.ttl)
	require.NoError(t, held.Extend(t.Context(), 2*time.Hour))
	require.Equal(t, 2*time.Hour+20*time.Second, m.ttl)
	require.NoError(t, held.Extend(t.Context(), time.Minute)) // which does not shorten the life of the record
	require.Equal(t, 2*time.Hour+20*time.Second, m.ttl)
	require.NoError(t, held.Complete(t.Context(), answer, 3*time.Hour))
	require.Equal(t, 3*time.Hour+20*time.Second, m.ttl)
}

// What a step has stored is removed with the end of its operation.
func TestCheckpointsAreRemoved(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(idempotency.Claim) error{
		"complete": func(c idempotency.Claim) error { return c.Complete(t.Context(), answer, time.Hour) },
		"free":     func(c idempotency.Claim) error { return c.Release(t.Context(), idempotency.Release{TTL: 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTable()
			held := claim(t, casstore.New(m, local))
			_, err := held.Checkpoint(t.Context(), "charge", []byte("card 4242"))
			require.NoError(t, err)
			_, data := m.stored()
			require.Contains(t, string(data), "card 4242")
			require.NoError(t, end(held))
			_, data = m.stored()
			require.NotContains(t, string(data), "card 4242")
		})
	}
}

// golden is a completed record of form 1. A value that was stored once is read for ever.
const golden = "" +
	"01020480e4d5c8828985060080908feb9d89850607757365722034320e504f5354202f7061796d656e7473036b6579200102" +
	"03000000000000000000000000000000000000000000000000000000000010303132333435363738396162636465660000005a" +
	"726573706f6e73652f31206372633d653331643531636220323031206865616465723d323520747261696c65723d3020626f" +
	"64793d390a436f6e74656e742d547970653a20746578742f706c61696e0a0a726563656970742031"

func TestGolden(t *testing.T) {
	t.Parallel()
	data, err := hex.DecodeString(golden)
	require.NoError(t, err)
	again, err := casstore.Decode(data)
	require.NoError(t, err)
	require.Equal(t, data, again)

	m := newTable()
	store := casstore.New(m, local)
	claim(t, store)
	name, _ := m.stored()
	m.tamper(name, data)
	store.SetTime(func() time.Time { return time.UnixMicro(1_700_000_000_000_000) })
	record, held, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Nil(t, held)
	require.Equal(t, &answer, record.Response)
	require.Equal(t, 2, record.Attempt)
	require.Equal(t, request.Fingerprint, record.Fingerprint)
	require.Equal(t, time.Hour, record.Remaining)
}

// What no store has written is neither replayed nor claimed, and left as it is.
func TestDamagedValues(t *testing.T) {
	t.Parallel()
	m := newTable()
	store := casstore.New(m, local)
	require.NoError(t, claim(t, store).Complete(t.Context(), answer, time.Hour))
	name, good := m.stored()
	other := func(at int, b byte) []byte {
		bad := []byte(string(good))
		bad[at] = b
		return bad
	}
	for what, bad := range map[string][]byte{
		"nothing":                {},
		"form alone":             {1},
		"a later form":           other(0, 2),
		"unknown flags":          other(1, good[1]|4),
		"an answer and a lease":  other(1, good[1]|1),
		"no flag for the answer": other(1, 0),
		"cut":                    good[:len(good)-1],
		"one byte more":          append([]byte(string(good)), 0),
		"text":                   []byte("hello, world"),
		"another key":            []byte(strings.Replace(string(good), "payments", "payment2", 1)),
	} {
		m.tamper(name, bad)
		_, held, err := store.Begin(t.Context(), key, request)
		assert.ErrorIs(t, err, idempotency.ErrRecordInvalid, what)
		assert.Nil(t, held, what)
		_, left := m.stored()
		assert.Equal(t, string(bad), string(left), what)
	}
}

func FuzzDecode(f *testing.F) {
	m := newTable()
	claim(f, casstore.New(m, local))
	_, running := m.stored()
	f.Add(running)
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		again, err := casstore.Decode(data)
		if err != nil {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			return
		}
		require.Equal(t, data, again)
	})
}

// All faults are reported together, also by Begin.
func TestFaults(t *testing.T) {
	t.Parallel()
	store := casstore.New(nil, casstore.Options{Skew: 2 * time.Hour, CallTimeout: -1})
	_, _, begun := store.Begin(t.Context(), key, request)
	_, inspected := store.Inspect(t.Context(), key)
	_, made := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	for _, err := range []error{
		begun, inspected, made, store.Forget(t.Context(), idempotency.Entry{}),
		store.Resolve(t.Context(), idempotency.Entry{}, idempotency.Resolution{}),
	} {
		for _, fault := range []string{"the table is nil", "Skew is 2h0m0s", "CallTimeout is -1ns"} {
			require.ErrorContains(t, err, fault)
		}
	}
}

func TestNoListing(t *testing.T) {
	t.Parallel()
	_, err := casstore.New(newTable(), local).List(t.Context(), idempotency.ListRequest{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
