package seal_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func TestSealedStepsConform(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]seal.Options{
		"sealing": testservice.Sealing("1"), "older keys": allowingClear(testservice.Sealing("2", "1")),
		"cipher":       testservice.SealingWith(testservice.KeyService{}),
		"opening only": testservice.OnlyOpening(testservice.Sealing("1")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStore := func(t *testing.T) idempotency.Store {
				return testservice.MustSeal(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}), opts)
			}
			idempotencytest.RunSteps(t, newStore)
			idempotencytest.RunResolver(t, newStore)
		})
	}
}

func TestSealedStepsInRedisConform(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	newStore := func(t *testing.T) idempotency.Store {
		return testservice.MustSeal(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{}), testservice.Sealing("1"))
	}
	idempotencytest.RunSteps(t, newStore)
	idempotencytest.RunResolver(t, newStore)
}

// A claim keeps checkpoints if the inner one does, and only then.
func TestClaimIsACheckpointerAsTheInnerOne(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]seal.Options{
		"sealing": testservice.Sealing("1"), "opening only": testservice.OnlyOpening(testservice.Sealing("1")),
	} {
		memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		for inner, want := range map[idempotency.Store]bool{memory: true, testservice.WithoutSteps{Store: memory}: false} {
			store, request := testservice.MustSeal(t, inner, opts), testservice.AttemptFor(time.Hour)
			claim := testservice.MustClaim(t, store, idempotency.Key{ID: name}, request)
			_, got := claim.(idempotency.Checkpointer)
			require.Equal(t, want, got, name)
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Nanosecond}))
		}
	}
}

// stepsOf claims a key whose claim was released, or that nobody has claimed.
func stepsOf(t *testing.T, store idempotency.Store, key idempotency.Key) idempotency.Checkpointer {
	t.Helper()
	return testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour)).(idempotency.Checkpointer)
}

func mustStore(t *testing.T, own idempotency.Checkpointer, name, data string) {
	t.Helper()
	stored, err := own.Checkpoint(t.Context(), name, []byte(data))
	require.NoError(t, err)
	require.Equal(t, data, string(stored))
}

func mustRelease(t *testing.T, own idempotency.Claim) {
	t.Helper()
	require.NoError(t, own.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
}

// What the inner store has of a step says nothing of its result but the size.
func TestReaderOfSealedSteps(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	store := testservice.MustSeal(t, inner, testservice.Sealing("2026"))
	own, key := stepsOf(t, store, testservice.NumberedKey(1)), testservice.NumberedKey(1)
	result := strings.Repeat("to hide ", 8<<10) // 64 KiB, the most that there is
	mustStore(t, own, "charge", result)
	mustStore(t, own, "empty", "")
	mustRelease(t, own)

	const overhead = len(":sealed/1 2026\n") + 12 + 16
	want := []idempotency.StepSize{{Name: "charge", Bytes: len(result) + overhead}, {Name: "empty", Bytes: overhead}}
	require.Equal(t, want, testservice.MustInspect(t, store, key).Steps)
	require.Equal(t, want, testservice.MustInspect(t, inner, key).Steps)
	clearly := testservice.MustClaim(t, inner, key, idempotency.ClaimRequest{
		Fingerprint: testservice.MustInspect(t, inner, key).Fingerprint, Lease: time.Minute, TTL: time.Hour,
	}).(idempotency.Checkpointer)
	stored, err := clearly.Checkpoints(t.Context())
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(stored["charge"], []byte(":sealed/1 2026\n")))
	require.NotContains(t, string(stored["charge"]), "to hide")
}

// A step is opened by the key that has sealed it, for as long as there is one.
func TestStepsAfterRotation(t *testing.T) {
	t.Parallel()
	clearly := seal.Options{}
	opening, rolling := testservice.OnlyOpening(testservice.Sealing("1")), allowingClear(testservice.Sealing("1"))
	for name, row := range map[string]struct{ first, second seal.Options }{
		"a new key":                       {testservice.Sealing("1"), testservice.Sealing("2", "1")},
		"a new key that only opens":       {testservice.Sealing("1"), testservice.Sealing("1", "2")},
		"back to the old key":             {testservice.Sealing("2", "1"), testservice.Sealing("1", "2")},
		"in the clear, opening only":      {clearly, opening},
		"in the clear, allowed":           {clearly, rolling},
		"opening only, then in the clear": {opening, clearly},
		"opening only, then allowed":      {opening, rolling},
		"sealed, opening only":            {rolling, opening},
		"sealed, allowed":                 {testservice.Sealing("1"), rolling},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner, key := idempotency.NewMemoryStore(idempotency.MemoryOptions{}), testservice.NumberedKey(1)
			store := func(opts seal.Options) idempotency.Store {
				if len(opts.Keys) == 0 {
					return inner
				}
				return testservice.MustSeal(t, inner, opts)
			}
			own := stepsOf(t, store(row.first), key)
			mustStore(t, own, "charge", `"ch_1"`)
			mustRelease(t, own)

			own = stepsOf(t, store(row.second), key)
			stored, err := own.Checkpoint(t.Context(), "charge", []byte(`"ch_2"`))
			require.NoError(t, err)
			require.Equal(t, `"ch_1"`, string(stored), "the first one counts")
			mustStore(t, own, "ship", `"sh_1"`)
			all, err := own.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"charge": []byte(`"ch_1"`), "ship": []byte(`"sh_1"`)}, all)
			mustRelease(t, own)
		})
	}
}

// forgedStore is a store in which somebody writes. It shows forged checkpoints in the place of those that it has.
type forgedStore struct {
	*idempotency.MemoryStore
	forge func(stored map[string][]byte)
}

func (s *forgedStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.MemoryStore.Begin(ctx, key, request)
	if steps, ok := claim.(idempotency.Checkpointer); ok {
		claim = forgedSteps{steps, s}
	}
	return record, claim, err
}

type forgedSteps struct {
	idempotency.Checkpointer
	store *forgedStore
}

func (c forgedSteps) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	stored, err := c.Checkpointer.Checkpoints(ctx)
	forged := make(map[string][]byte)
	for name, data := range stored {
		forged[name] = bytes.Clone(data)
	}
	c.store.forge(forged)
	return forged, err
}

func (c forgedSteps) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if _, err := c.Checkpointer.Checkpoint(ctx, name, data); err != nil {
		return nil, err
	}
	stored, err := c.Checkpoints(ctx)
	return stored[name], err
}

// Nobody can alter the result of a step, or put anything else in its place. Whoever tries stops the operation: none of
// its steps runs.
func TestForgedSteps(t *testing.T) {
	t.Parallel()
	opts := testservice.Sealing("1", "2", "alias")
	opts.Keys[2].Secret = opts.Keys[0].Secret
	inner := &forgedStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	store, key := testservice.MustSeal(t, inner, opts), testservice.NumberedKey(1)

	// What an attacker may have at hand: from the same operation, from others, and from one with another key of the seal.
	steps := func(store idempotency.Store, key idempotency.Key, fingerprint byte) map[string][]byte {
		var stored map[string][]byte
		inner.forge = func(found map[string][]byte) { stored = maps.Clone(found) }
		request := testservice.AttemptFor(time.Hour)
		request.Fingerprint[0] = fingerprint
		own := testservice.MustClaim(t, store, key, request).(idempotency.Checkpointer)
		for _, name := range []string{"charge", "charge?", "ship"} {
			mustStore(t, own, name, `"done"`)
		}
		mustRelease(t, own)
		return stored
	}
	otherKey := steps(store, testservice.NumberedKey(2), 1)
	otherUser := steps(store, idempotency.Key{User: "bob", Endpoint: key.Endpoint, ID: key.ID}, 1)
	older := steps(store, key, 2) // of an operation that has expired since, with the same key
	require.NoError(t, inner.Forget(t.Context(), testservice.MustInspect(t, inner, key)))
	secondKey := steps(testservice.MustSeal(t, inner, testservice.Sealing("2")), testservice.NumberedKey(3), 1)
	genuine := steps(store, key, 1)

	completed := idempotency.Response{Status: 201, Body: []byte(`"done"`)}
	testservice.MustComplete(t, store, testservice.NumberedKey(4), completed)
	answer := testservice.MustInspect(t, inner, testservice.NumberedKey(4)).Response
	renamed := func(id string) []byte {
		return bytes.Replace(genuine["charge"], []byte(" 1\n"), []byte(" "+id+"\n"), 1)
	}
	mark := []byte(":sealed/1 1\n")
	begun := func() (map[string][]byte, error) {
		own := stepsOf(t, store, key)
		defer func() { mustRelease(t, own) }()
		all, err := own.Checkpoints(t.Context())
		again, same := own.Checkpoint(t.Context(), "charge", []byte(`"again"`))
		require.Equal(t, err == nil, same == nil)
		if err != nil {
			require.ErrorIs(t, same, idempotency.ErrRecordInvalid)
			require.Nil(t, again)
		}
		return all, err
	}
	for what, forged := range map[string][]byte{
		"another step":                      genuine["ship"],
		"the mark of the step":              genuine["charge?"],
		"the step of another operation":     otherKey["charge"],
		"the step of another user":          otherUser["charge"],
		"the step of an older request":      older["charge"],
		"a step that the second key sealed": secondKey["charge"],
		"as if of the second key":           renamed("2"),
		"as if of a key with its secret":    renamed("alias"),
		"as if of an unknown key":           renamed("3"),
		"as if of no key":                   renamed(""),
		"an answer":                         answer.Body,
		"an answer with the mark of a step": append(bytes.Clone(mark), answer.Body...),
		"in the clear":                      []byte(`"done"`),
		"nothing":                           nil,
		"only the mark of the key":          mark,
		"a part of the mark of the key":     mark[:5],
		"no mark of a key":                  genuine["charge"][len(mark):],
		"one byte more":                     append(bytes.Clone(genuine["charge"]), 0),
		"one byte less":                     genuine["charge"][:len(genuine["charge"])-1],
	} {
		inner.forge = func(found map[string][]byte) { found["charge"] = forged }
		_, err := begun()
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, what)
	}
	for bit := range 8 * len(genuine["charge"]) {
		inner.forge = func(found map[string][]byte) { found["charge"][bit/8] ^= 1 << (bit % 8) }
		_, err := begun()
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "bit %d", bit)
	}
	inner.forge = func(found map[string][]byte) { found["new"] = found["charge"] }
	own := stepsOf(t, store, key)
	_, err := own.Checkpoints(t.Context())
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "a step that nobody has run")
	mustRelease(t, own)

	inner.forge = func(map[string][]byte) {}
	all, err := begun()
	require.NoError(t, err)
	require.Len(t, all, 3)
	require.Equal(t, `"done"`, string(all["charge"]))
}

// The answer of an operation cannot be replaced by what was sealed as the result of a step.
func TestStepInThePlaceOfAnAnswer(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	store, key := testservice.MustSeal(t, inner, testservice.Sealing("1")), testservice.NumberedKey(1)
	forged, err := idempotency.Response{Status: 201, Body: []byte("forged")}.MarshalBinary()
	require.NoError(t, err)
	fingerprint := testservice.AttemptFor(0).Fingerprint
	var sealed []byte
	spy := &forgedStore{MemoryStore: inner, forge: func(found map[string][]byte) { sealed = found["charge"] }}
	own := stepsOf(t, testservice.MustSeal(t, spy, testservice.Sealing("1")), key)
	mustStore(t, own, "charge", string(append(fingerprint[:], forged...)))
	mustRelease(t, own)

	record := testservice.MustInspect(t, inner, key)
	claim := testservice.MustClaim(t, inner, key, idempotency.ClaimRequest{
		Fingerprint: record.Fingerprint, Lease: time.Minute, TTL: time.Hour,
	})
	const mark = ":sealed/1 1\n"
	require.NoError(t, claim.Complete(t.Context(), idempotency.Response{
		Status: 201, Header: mark, Body: sealed[len(mark):],
	}, time.Hour))
	_, _, err = store.Begin(t.Context(), key, testservice.AttemptFor(time.Hour))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
}

// A step that cannot be opened is not repeated, and goes on when it can be opened again.
func TestStepThatCannotBeDecrypted(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	down, fails, charges := false, true, 0
	cipher := testservice.KeyService{OnDecrypt: func(_ context.Context, sealed []byte) ([]byte, error) {
		if down {
			return nil, errKeyService
		}
		return bytes.Clone(sealed), nil
	}}
	var told error
	svc := testservice.Setup{Store: testservice.MustSeal(t, inner, testservice.SealingWith(cipher))}.Guard(t,
		func(w http.ResponseWriter, r *http.Request) {
			charge, err := step.Do(r.Context(), "charge", func(context.Context) (int, error) {
				charges++
				return charges, nil
			})
			told = err
			if err != nil || fails {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			require.Equal(t, 1, charge)
			w.WriteHeader(http.StatusCreated)
		})
	require.Equal(t, http.StatusServiceUnavailable, svc.Call("key", "body").Status)
	require.NoError(t, told)
	down, fails = true, false
	require.Equal(t, http.StatusServiceUnavailable, svc.Call("key", "body").Status)
	require.ErrorIs(t, told, idempotency.ErrRecordInvalid)
	require.ErrorIs(t, told, errKeyService)
	down = false
	require.Equal(t, http.StatusCreated, svc.Call("key", "body").Status)
	require.Equal(t, 1, charges)
}

// A result that cannot be encrypted is not stored, neither sealed nor in the clear.
func TestStepThatCannotBeEncrypted(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	key := testservice.NumberedKey(1)
	opts := testservice.SealingWith(testservice.KeyService{OnEncrypt: unavailable})
	own := stepsOf(t, testservice.MustSeal(t, inner, opts), key)
	_, err := own.Checkpoint(t.Context(), "charge", []byte("1"))
	require.ErrorIs(t, err, errKeyService)
	require.False(t, errors.Is(err, idempotency.ErrRecordInvalid))
	require.Empty(t, testservice.MustInspect(t, inner, key).Steps)
}

// The result that a step is given back is not overwritten by its encryption.
func TestSealedStepsKeepTheirMemory(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	own := stepsOf(t, testservice.MustSeal(t, inner, testservice.Sealing("1")), testservice.NumberedKey(1))
	data := append(make([]byte, 0, 1000), "result"...)
	stored, err := own.Checkpoint(t.Context(), "charge", data)
	require.NoError(t, err)
	require.Equal(t, "result", string(stored))
}

// Somebody has resolved an operation in the inner store, in the clear. Its steps can be had all the same, and nothing vouches for
// who has resolved it. An answer that was given there is refused.
func TestResolutionInTheClear(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	sealed := testservice.MustSeal(t, inner, testservice.Sealing("1"))
	key, request := testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)
	lapsed := func() idempotency.Entry {
		brief := request
		brief.Lease, brief.TakeOver = time.Millisecond, true
		claim := testservice.MustClaim(t, sealed, key, brief)
		_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", []byte(`"ch_17"`))
		require.NoError(t, err)
		testservice.Until(t, func() bool {
			return testservice.MustInspect(t, sealed, key).State == idempotency.StateAbandoned
		})
		return testservice.MustInspect(t, sealed, key)
	}
	require.NoError(t, inner.Resolve(t.Context(), lapsed(), idempotency.Resolution{
		Operator: "mallory", Reason: "in the clear", TTL: time.Hour,
	}))
	entry := testservice.MustInspect(t, sealed, key)
	require.Equal(t, idempotency.StateReleased, entry.State)
	require.Nil(t, entry.Resolved)
	claim := testservice.MustClaim(t, sealed, key, request)
	steps, err := claim.(idempotency.Checkpointer).Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"charge": []byte(`"ch_17"`)}, steps)

	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	answer := idempotency.Response{Status: 201, Body: []byte("forged")}
	require.NoError(t, inner.Resolve(t.Context(), lapsed(), idempotency.Resolution{Response: &answer, TTL: time.Hour}))
	_, _, err = sealed.Begin(t.Context(), key, request)
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
}
