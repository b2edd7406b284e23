package seal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func allowingClear(opts seal.Options) seal.Options {
	opts.AllowClear = true
	return opts
}

func TestSealedStoreConforms(t *testing.T) {
	t.Parallel()
	conforms := func(name string, newStore func(*testing.T) idempotency.Store, opts seal.Options) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.Run(t, func(t *testing.T) idempotency.Store { return testservice.MustSeal(t, newStore(t), opts) })
		})
	}
	memory := func(*testing.T) idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }
	conforms("memory", memory, testservice.Sealing("1"))
	conforms("memory, older keys", memory, allowingClear(testservice.Sealing("2", "1")))
	conforms("memory, cipher", memory, testservice.SealingWith(testservice.KeyService{}))
	conforms("memory, opening only", memory, testservice.OnlyOpening(testservice.Sealing("1")))

	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
		idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
			return testservice.MustSeal(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{}), testservice.Sealing("1"))
		})
	})
}

// secrets answers with all the parts that an answer has, and with the body of the request.
func secrets(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	w.Header().Set("X-Account", "a header to hide")
	w.Header()["X-Suppressed"] = nil
	testservice.Echo(w, r)
	w.Header().Set("X-Sum", "a trailer to hide")
}

func TestReaderOfASealedStore(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	stored := func(prefix string, wrap func(idempotency.Store) idempotency.Store, body string) (testservice.Answer, []string) {
		store := wrap(idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix}))
		svc := testservice.Setup{Store: store}.Serve(t, secrets)
		first := svc.Post("key-1", body)
		testservice.RequireReplay(t, first, svc.Post("key-1", body))
		svc.Post("key-2", body)
		var values []string
		for _, name := range testservice.RedisKeys(t, client, prefix) {
			values = append(values, client.Get(t.Context(), name).Val())
		}
		require.Len(t, values, 2)
		return first, values
	}
	fingerprints := func(values []string) []string {
		var found []string
		for _, value := range values {
			_, rest, _ := strings.Cut(value, "fingerprint=")
			found = append(found, rest[:64])
		}
		return found
	}
	for name, body := range map[string]string{"small": "a body to hide", "large": "a body to hide" + testservice.LargeBody} {
		clearAnswer, clearly := stored(name+" clear:", func(s idempotency.Store) idempotency.Store { return s }, body)
		sealedAnswer, sealed := stored(name+" sealed:", func(s idempotency.Store) idempotency.Store {
			return testservice.MustSeal(t, s, testservice.Sealing("2026-11"))
		}, body)
		require.Equal(t, clearAnswer, sealedAnswer)

		require.Equal(t, fingerprints(clearly)[0], fingerprints(clearly)[1])
		require.NotEqual(t, fingerprints(sealed)[0], fingerprints(sealed)[1], "equal bodies show")
		for i, value := range sealed {
			for _, secret := range []string{"to hide", "X-Account", "X-Sum", "X-Suppressed", fingerprints(clearly)[0]} {
				require.Contains(t, clearly[i], secret)
				require.NotContains(t, value, secret)
			}
			require.Contains(t, value, "sealed/1 2026-11\n")
		}
	}
}

// generation is a process with its own settings, on a store that it shares with others.
func generation(t *testing.T, inner idempotency.Store, opts seal.Options, handler http.HandlerFunc) *testservice.Service {
	store := inner
	if len(opts.Keys) > 0 {
		store = testservice.MustSeal(t, inner, opts)
	}
	return testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Serve(t, handler)
}

// requireUnreadable checks that a request was refused because its record cannot be trusted.
func requireUnreadable(t *testing.T, svc *testservice.Service, got testservice.Answer) {
	t.Helper()
	testservice.RequireProblem(t, got, http.StatusServiceUnavailable, "store-unavailable")
	require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrRecordInvalid)
}

func TestSealKeysRotate(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	before := generation(t, inner, testservice.Sealing("1"), secrets)
	prepared := generation(t, inner, testservice.Sealing("1", "2"), secrets)
	after := generation(t, inner, testservice.Sealing("2", "1"), secrets)
	end := generation(t, inner, testservice.Sealing("2"), secrets)

	old := before.Post("old", "body")
	testservice.RequireReplay(t, old, prepared.Post("old", "body"))
	testservice.RequireReplay(t, old, after.Post("old", "body"))
	testservice.RequireProblem(t, after.Post("old", "another body"), http.StatusConflict, "key-reused")
	requireUnreadable(t, end, end.Post("old", "body"))
	requireUnreadable(t, end, end.Post("old", "another body"))

	young := after.Post("young", "body")
	testservice.RequireReplay(t, young, prepared.Post("young", "body"))
	testservice.RequireReplay(t, young, end.Post("young", "body"))
	requireUnreadable(t, before, before.Post("young", "body"))
	testservice.RequireProblem(t, prepared.Post("young", "another body"), http.StatusConflict, "key-reused")

	require.EqualValues(t, 1, before.Runs.Load())
	require.EqualValues(t, 1, after.Runs.Load())
	require.Zero(t, prepared.Runs.Load()+end.Runs.Load())
	require.EqualValues(t, 11, inner.Begins.Load(), "no more questions than requests")
}

// What was begun under an old key goes on under the new one, at the cost of a second question.
func TestUnfinishedOperationAfterRotation(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	for _, row := range []struct {
		name     string
		begun    seal.Options // without keys: not sealed
		later    seal.Options
		taken    bool // it is not released, but its lease lapses
		takeOver bool
		begins   int64
		claimed  bool
	}{
		{"same key", testservice.Sealing("1"), testservice.Sealing("1"), false, true, 1, true},
		{"same key, must not be taken over", testservice.Sealing("1"), testservice.Sealing("1"), true, false, 1, false},
		{"released", testservice.Sealing("1"), testservice.Sealing("2", "1"), false, false, 2, true},
		{"lapsed", testservice.Sealing("1"), testservice.Sealing("2", "1"), true, true, 2, true},
		{"lapsed, and must not be taken over", testservice.Sealing("1"), testservice.Sealing("2", "1"), true, false, 2, false},
		{"released in the clear", seal.Options{}, allowingClear(testservice.Sealing("2", "1")), false, false, 2, true},
		{"released under the third key", testservice.Sealing("3"), testservice.Sealing("1", "2", "3"), false, false, 2, true},
		{"released by who seals already", testservice.Sealing("1"), testservice.OnlyOpening(testservice.Sealing("1")), false, false, 2, true},
		{"released under a key that is gone", testservice.Sealing("1"), testservice.Sealing("2"), false, true, 1, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := testservice.NewSpyStore()
				store := func(opts seal.Options) idempotency.Store {
					if len(opts.Keys) == 0 {
						return inner
					}
					return testservice.MustSeal(t, inner, opts)
				}
				request := idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: lease, TTL: time.Hour}
				other := request
				other.Fingerprint[0]++
				first, claim, err := store(row.begun).Begin(t.Context(), testservice.NumberedKey(1), request)
				require.NoError(t, err)
				if row.taken {
					time.Sleep(lease)
				} else {
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
				}

				later := store(row.later)
				other.TakeOver, request.TakeOver = true, row.takeOver
				_, claim, err = later.Begin(t.Context(), testservice.NumberedKey(1), other)
				require.NoError(t, err)
				require.Nil(t, claim)

				inner.Begins.Store(0)
				second, claim, err := later.Begin(t.Context(), testservice.NumberedKey(1), request)
				require.NoError(t, err)
				require.Equal(t, row.begins, inner.Begins.Load())
				require.Equal(t, row.claimed, claim != nil)
				require.Equal(t, first.Created, second.Created)
				if !row.claimed {
					require.Equal(t, row.taken, second.Fingerprint == request.Fingerprint)
					return
				}
				require.Equal(t, 2, second.Attempt)
				require.Equal(t, request.Fingerprint, second.Fingerprint)
				require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(3), time.Hour))

				for _, reader := range []idempotency.Store{later, store(row.later)} {
					record, _, err := reader.Begin(t.Context(), testservice.NumberedKey(1), request)
					require.NoError(t, err)
					require.Equal(t, request.Fingerprint, record.Fingerprint)
					require.Equal(t, testservice.BodyOf(3), *record.Response)
					record, _, err = reader.Begin(t.Context(), testservice.NumberedKey(1), other)
					require.NoError(t, err)
					require.NotEqual(t, other.Fingerprint, record.Fingerprint)
				}
			})
		})
	}
}

// Between the two questions, the operation may have expired and another process may have begun a new one.
func TestUnfinishedOperationExpiresDuringRotation(t *testing.T) {
	t.Parallel()
	for name, released := range map[string]bool{"a new one runs": false, "a new one was released": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := testservice.NewSpyStore()
				request := idempotency.ClaimRequest{Lease: time.Second, TTL: time.Minute}
				claim := testservice.MustClaim(t, testservice.MustSeal(t, inner, testservice.Sealing("1")), testservice.NumberedKey(1), request)
				require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Minute}))
				rotated := testservice.MustSeal(t, inner, testservice.Sealing("2", "1"))
				inner.Begins.Store(0)
				inner.OnBegin = func(_ context.Context, n int64, step func() error) error {
					if n == 2 {
						time.Sleep(time.Minute)
						claim := testservice.MustClaim(t, testservice.MustSeal(t, inner.Store, testservice.Sealing("2")), testservice.NumberedKey(1), request)
						if released {
							require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Minute}))
						}
					}
					return step()
				}
				record, claim, err := rotated.Begin(t.Context(), testservice.NumberedKey(1), request)
				require.NoError(t, err)
				require.Equal(t, released, claim != nil)
				require.Equal(t, request.Fingerprint, record.Fingerprint)
				require.Equal(t, request.Lease, record.LeaseLeft)
			})
		})
	}
}

// If nobody has begun a new one, the second question does, under the old key. It goes on as any other does, and its
// answer needs the new key only.
func TestOperationIsBegunUnderAnOldKey(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name         string
		begun, later seal.Options
	}{
		{"old key", testservice.Sealing("1"), testservice.Sealing("2", "1")},
		{"in the clear", testservice.OnlyOpening(testservice.Sealing("2")), allowingClear(testservice.Sealing("2"))},
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprint(row.name, ", fails ", fails), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					inner := testservice.NewSpyStore()
					request, other := testservice.AttemptFor(time.Minute), testservice.AttemptFor(time.Minute)
					other.Fingerprint[0]++
					begin := func(store idempotency.Store, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim) {
						record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), request)
						require.NoError(t, err)
						return record, claim
					}
					_, claim := begin(testservice.MustSeal(t, inner, row.begun), request)
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Minute}))
					inner.Begins.Store(0)
					inner.OnBegin = func(_ context.Context, n int64, step func() error) error {
						if n == 2 {
							time.Sleep(time.Minute)
						}
						return step()
					}
					first, claim := begin(testservice.MustSeal(t, inner, row.later), request)
					require.NotNil(t, claim)
					require.Equal(t, 1, first.Attempt)
					require.Equal(t, request.Fingerprint, first.Fingerprint)

					neighbour := testservice.MustSeal(t, inner, row.later)
					running, none := begin(neighbour, request)
					require.Nil(t, none)
					require.Equal(t, request.Fingerprint, running.Fingerprint)
					if fails {
						require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Minute}))
						_, claim = begin(neighbour, other)
						require.Nil(t, claim)
						var second idempotency.Record
						second, claim = begin(neighbour, request)
						require.NotNil(t, claim)
						require.Equal(t, 2, second.Attempt)
					}
					require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(3), time.Minute))
					for _, reader := range []idempotency.Store{neighbour, testservice.MustSeal(t, inner, testservice.Sealing("2"))} {
						record, _ := begin(reader, request)
						require.Equal(t, request.Fingerprint, record.Fingerprint)
						require.Equal(t, testservice.BodyOf(3), *record.Response)
						record, _ = begin(reader, other)
						require.NotEqual(t, other.Fingerprint, record.Fingerprint)
					}
				})
			})
		}
	}
}

// An operation that was begun under an old key is completed under the new one, and outlives the old one.
func TestOldKeyMayGoBeforeWhatWasBegunUnderIt(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	failing := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	generation(t, inner, testservice.Sealing("1"), failing).Post("key", "body")
	first := generation(t, inner, testservice.Sealing("2", "1"), secrets).Post("key", "body")
	require.Equal(t, http.StatusCreated, first.Status)
	end := generation(t, inner, testservice.Sealing("2"), secrets)
	testservice.RequireReplay(t, first, end.Post("key", "body"))
	testservice.RequireProblem(t, end.Post("key", "another body"), http.StatusConflict, "key-reused")
}

func TestSealingIsRolledIn(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	clearly := generation(t, inner, seal.Options{}, secrets)
	opening := generation(t, inner, testservice.OnlyOpening(testservice.Sealing("1")), secrets)
	rolling := generation(t, inner, allowingClear(testservice.Sealing("1")), secrets)
	sealed := generation(t, inner, testservice.Sealing("1"), secrets)
	all := []*testservice.Service{clearly, opening, rolling, sealed}

	keys := 0
	replays := func(writer *testservice.Service, readers ...*testservice.Service) {
		keys++
		key := fmt.Sprintf("key-%d", keys)
		first := writer.Post(key, "body")
		require.Equal(t, http.StatusCreated, first.Status)
		for _, reader := range readers {
			testservice.RequireReplay(t, first, reader.Post(key, "body"))
			testservice.RequireProblem(t, reader.Post(key, "another body"), http.StatusConflict, "key-reused")
		}
	}
	replays(clearly, clearly, opening, rolling)
	replays(opening, clearly, opening, rolling)
	replays(rolling, opening, rolling, sealed)
	replays(sealed, opening, rolling, sealed)

	clearly.Post("clear", "body")
	requireUnreadable(t, sealed, sealed.Post("clear", "body"))
	requireUnreadable(t, sealed, sealed.Post("clear", "another body"))
	var runs int64
	for _, svc := range all {
		runs += svc.Runs.Load()
	}
	require.EqualValues(t, 5, runs)
}

// Whatever a client makes a handler answer, it is not taken for something sealed, or for something damaged, in any step of the
// rolling in.
func TestNoAnswerLooksSealed(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	answer := func(w http.ResponseWriter, r *http.Request) {
		said := r.Header.Get("X-Say")
		assert.NoError(t, idempotency.Annotate(r.Context(), "sealed/1 1"))
		for _, name := range []string{"", ":", ":" + said, said, said + "\n:" + said} {
			w.Header()[name] = []string{said}
			w.Header()[name+" "] = nil
		}
		testservice.Echo(w, r)
	}
	clearly := generation(t, inner, seal.Options{}, answer)
	opening := generation(t, inner, testservice.OnlyOpening(testservice.Sealing("1")), answer)
	rolling := generation(t, inner, allowingClear(testservice.Sealing("1")), answer)
	sealed := generation(t, inner, testservice.Sealing("1"), answer)
	for writer, row := range map[string]struct {
		writer  *testservice.Service
		readers []*testservice.Service
	}{
		"clear":       {clearly, []*testservice.Service{clearly, opening, rolling}},
		"open only":   {opening, []*testservice.Service{clearly, opening, rolling}},
		"allow clear": {rolling, []*testservice.Service{opening, rolling, sealed}},
		"sealed":      {sealed, []*testservice.Service{opening, rolling, sealed}},
	} {
		for i, said := range []string{"sealed/1 1", "sealed/1 a", "sealed/1 ", ":sealed/1 1", ": sealed/1 1", "response/1 "} {
			key := fmt.Sprintf("%s-%d", strings.ReplaceAll(writer, " ", "-"), i)
			body, saying := said+"\nbody", testservice.WithHeader("X-Say", said)
			first := row.writer.Post(key, body, saying)
			require.Equal(t, http.StatusCreated, first.Status, writer)
			require.Equal(t, body, first.Body)
			for _, reader := range row.readers {
				testservice.RequireReplay(t, first, reader.Post(key, body, saying))
			}
			for _, opts := range []seal.Options{testservice.OnlyOpening(testservice.Sealing("1")), allowingClear(testservice.Sealing("1"))} {
				entry := testservice.MustInspect(t, testservice.MustSeal(t, inner, opts), idempotency.Key{User: "single", Endpoint: "POST /payments", ID: key})
				require.Equal(t, body, string(entry.Response.Body))
				require.Equal(t, "sealed/1 1", entry.Note)
			}
		}
	}
}

// A store that had no room for an answer cannot say so under a seal.
func TestSealedAnswerThatWasNotKept(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("x", 4096)
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 4096})
	full := testservice.Setup{Store: testservice.MustSeal(t, inner, testservice.Sealing("1"))}.Serve(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, full.Post("key", body).Status)
	refused := full.Post("key", body)
	testservice.RequireProblem(t, refused, http.StatusConflict, "not-replayable")
	require.NotContains(t, refused.Body, "originalStatus")
	testservice.RequireProblem(t, full.Post("key", "another body"), http.StatusConflict, "key-reused")
	require.EqualValues(t, 1, full.Runs.Load())

	rolling := testservice.Setup{Store: testservice.MustSeal(t, inner, allowingClear(testservice.Sealing("1")))}.Serve(t, testservice.Echo)
	got := testservice.RequireProblem(t, rolling.Post("key", body), http.StatusConflict, "not-replayable")
	require.Equal(t, http.StatusCreated, got.OriginalStatus, "answers in the clear are trusted")

	// One that was too large to be given to the store is sealed as such.
	svc := testservice.Setup{Store: testservice.MustSeal(t, testservice.NewSpyStore(), testservice.Sealing("1")), Opts: idempotency.Options{MaxResponse: 2}}.Serve(t, testservice.Echo)
	svc.Post("key", "body")
	got = testservice.RequireProblem(t, svc.Post("key", "body"), http.StatusConflict, "not-replayable")
	require.Equal(t, http.StatusCreated, got.OriginalStatus)

	store := testservice.MustSeal(t, testservice.NewSpyStore(), testservice.Sealing("1"))
	testservice.MustComplete(t, store, testservice.NumberedKey(1), idempotency.Response{Status: 200, Body: []byte("body"), Omitted: true})
	record, _, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.NoError(t, err)
	require.True(t, record.Response.Omitted)
	require.Empty(t, record.Response.Body)
}

var errKeyService = errors.New("the key service is down")

func unavailable(context.Context, []byte) ([]byte, error) { return nil, errKeyService }

// A completed operation does not run again because its answer cannot be decrypted at the moment.
func TestSealedAnswerThatCannotBeDecrypted(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	first := generation(t, inner, testservice.SealingWith(testservice.KeyService{}), secrets).Post("key", "body")
	down := generation(t, inner, testservice.SealingWith(testservice.KeyService{OnDecrypt: unavailable}), secrets)
	requireUnreadable(t, down, down.Post("key", "body"))
	require.ErrorIs(t, down.Journal.Last(t).Err, errKeyService)
	require.Zero(t, down.Runs.Load())

	for name, decrypted := range map[string][]byte{
		"nothing": nil, "a fingerprint": make([]byte, 32), "a byte more": make([]byte, 33), "no trailer": make([]byte, 41),
		"a header that is too long": append(make([]byte, 33), bytes.Repeat([]byte{255}, 64)...),
		"an unknown kind":           append(append(make([]byte, 32), 2), make([]byte, 16)...),
	} {
		t.Run(name, func(t *testing.T) {
			broken := testservice.KeyService{OnDecrypt: func(context.Context, []byte) ([]byte, error) { return decrypted, nil }}
			svc := generation(t, inner, testservice.SealingWith(broken), secrets)
			requireUnreadable(t, svc, svc.Post("key", "body"))
		})
	}
	up := generation(t, inner, testservice.SealingWith(testservice.KeyService{}), secrets)
	testservice.RequireReplay(t, first, up.Post("key", "body"))
}

// An answer that cannot be encrypted in time is sent, and sealed in the background.
func TestAnswerThatCannotBeEncrypted(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]time.Duration{"shortly": time.Second, "for long": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner, began := testservice.NewSpyStore(), time.Now()
				cipher := testservice.KeyService{OnEncrypt: func(_ context.Context, plain []byte) ([]byte, error) {
					if time.Since(began) < outage {
						return nil, errKeyService
					}
					return bytes.Clone(plain), nil
				}}
				svc := testservice.Setup{Store: testservice.MustSeal(t, inner, testservice.SealingWith(cipher))}.Guard(t, testservice.Echo)
				require.Equal(t, http.StatusCreated, svc.Call("key", "body").Status)
				time.Sleep(outage)
				synctest.Wait()
				require.True(t, svc.Call("key", "body").Replayed())
				require.EqualValues(t, 1, svc.Runs.Load())
				require.EqualValues(t, 1, inner.Completes.Load())
				require.Zero(t, inner.Releases.Load())
				if outage > 5*time.Second {
					require.ErrorIs(t, svc.Journal.All()[0].Err, errKeyService)
				}
			})
		})
	}
}

// A cipher may still be sending an answer when its context has ended: nothing else is written there.
func TestCipherKeepsItsMemory(t *testing.T) {
	t.Parallel()
	var kept, copied []byte
	store := testservice.MustSeal(t, testservice.NewSpyStore(), testservice.SealingWith(testservice.KeyService{OnEncrypt: func(_ context.Context, plain []byte) ([]byte, error) {
		kept, copied = plain, bytes.Clone(plain)
		return copied, nil
	}}))
	testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(100))
	local := testservice.MustSeal(t, testservice.NewSpyStore(), testservice.Sealing("1"))
	for i := range 32 {
		testservice.MustComplete(t, local, testservice.NumberedKey(i), idempotency.Response{Status: 200, Body: bytes.Repeat([]byte("x"), 100)})
	}
	require.Equal(t, copied, kept)
}

// Whatever else a store can do shows through the seal.
func TestSealPassesOn(t *testing.T) {
	t.Parallel()
	memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	for store, want := range map[*seal.Store]bool{
		testservice.MustSeal(t, memory, testservice.Sealing("1")):                                                                             true,
		testservice.MustSeal(t, testservice.MustSeal(t, memory, testservice.Sealing("1")), testservice.OnlyOpening(testservice.Sealing("1"))): true,
		testservice.MustSeal(t, memory, testservice.SealingWith(testservice.KeyService{})):                                                    false,
		testservice.MustSeal(t, testservice.NewSpyStore(), testservice.Sealing("1")):                                                          false,
	} {
		require.Equal(t, want, store.Immediate())
	}

	// A claim that may have been granted is the inner store's.
	inner := testservice.NewSpyStore()
	inner.OnBegin = func(_ context.Context, _ int64, step func() error) error {
		return errors.Join(step(), testservice.ErrDown)
	}
	store := testservice.MustSeal(t, inner, testservice.Sealing("1"))
	_, _, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.ErrorIs(t, err, testservice.ErrDown)
	require.NoError(t, testservice.InDoubt(err).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	inner.OnBegin = nil
	testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
}

// secretByForm reads what is in a sealed answer: the fingerprint, and a stored response.
func secretByForm(b []byte) (fp idempotency.Fingerprint, resp idempotency.Response, ok bool) {
	if len(b) < len(fp) {
		return fp, resp, false
	}
	err := resp.UnmarshalBinary(b[len(fp):])
	return idempotency.Fingerprint(b[:len(fp)]), resp, err == nil
}

// FuzzSealedSecret reads anything as what was in a sealed answer, as behind a cipher that was taken in. Another reader says
// the same. What was read is sealed and opened once more, to the same answer.
func FuzzSealedSecret(f *testing.F) {
	sealed := func(t testing.TB, secret []byte) (idempotency.Record, error) {
		record := idempotency.Record{Attempt: 1, Response: &idempotency.Response{
			Status: http.StatusCreated, Header: ":sealed/1 kms\n", Body: secret,
		}}
		got, _, err := testservice.MustSeal(t, fixedStore{record}, testservice.SealingWith(testservice.KeyService{})).Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		return got, err
	}
	secretOf := func(t testing.TB, resp idempotency.Response) []byte {
		inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		testservice.MustComplete(t, testservice.MustSeal(t, inner, testservice.SealingWith(testservice.KeyService{})), testservice.NumberedKey(1), resp)
		return testservice.MustRead(t, inner, testservice.NumberedKey(1)).Response.Body
	}
	for _, resp := range []idempotency.Response{testservice.BodyOf(3), secret(), {Status: 200, Omitted: true}, {Header: "A\n", Trailer: "B\n", Note: "n"}} {
		secret := secretOf(f, resp)
		f.Add(secret)
		f.Add(secret[:len(secret)/2])
	}
	f.Add(bytes.Repeat([]byte{0xff}, 60))
	f.Fuzz(func(t *testing.T, secret []byte) {
		fp, want, ok := secretByForm(secret)
		got, err := sealed(t, secret)
		if !ok {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			return
		}
		require.NoError(t, err)
		require.Equal(t, fp, got.Fingerprint)
		require.Equal(t, &want, got.Response)
		_, again, ok := secretByForm(secretOf(t, *got.Response))
		require.True(t, ok)
		require.Equal(t, want, again)
	})
}

// BenchmarkReplay compares replays from a store as it is and sealed.
func BenchmarkReplay(b *testing.B) {
	memory := func() idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }
	for name, store := range map[string]idempotency.Store{
		"plain": memory(), "sealed": testservice.MustSeal(b, memory(), testservice.Sealing("1")),
	} {
		b.Run(name, func(b *testing.B) {
			key, request := testservice.NumberedKey(b.N), testservice.AttemptFor(time.Hour)
			testservice.MustComplete(b, store, key, testservice.BodyOf(200))
			b.ReportAllocs()
			for b.Loop() {
				if record, _, err := store.Begin(b.Context(), key, request); err != nil || record.Response == nil {
					b.Fatal("no replay: ", record, err)
				}
			}
		})
	}
}
