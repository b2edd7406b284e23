package idempotency_test

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// wrapper is a store of somebody else's in front of another one.
type wrapper struct{ idempotency.Store }

func (w wrapper) Unwrap() idempotency.Store { return w.Store }

// A wrapper that knows nothing of transactions is what the store behind it is, unless it says otherwise.
func TestTransactionalBehindWrappers(t *testing.T) {
	t.Parallel()
	transactions := func(store idempotency.Store, is bool) idempotency.Store { return storeOfTransactions{store, is} }
	for name, row := range map[string]struct {
		store idempotency.Store
		want  bool
	}{
		"one":                    {wrapper{transactions(testservice.NewSpyStore(), true)}, true},
		"two":                    {wrapper{wrapper{transactions(testservice.NewSpyStore(), true)}}, true},
		"of leases":              {wrapper{transactions(testservice.NewSpyStore(), false)}, false},
		"of no answer":           {wrapper{testservice.NewSpyStore()}, false},
		"of nothing":             {wrapper{}, false},
		"the first answers: no":  {transactions(wrapper{transactions(testservice.NewSpyStore(), true)}, false), false},
		"the first answers: yes": {wrapper{transactions(wrapper{transactions(testservice.NewSpyStore(), false)}, true)}, true},
	} {
		t.Run(name, func(t *testing.T) { testservice.RequireTransactional(t, row.store, row.want) })
	}
}

// deadlineStore notes whether Begin had a deadline.
type deadlineStore struct {
	idempotency.Store
	had *bool
}

func (s deadlineStore) Unwrap() idempotency.Store { return s.Store }

func (s deadlineStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	_, *s.had = ctx.Deadline()
	return s.Store.Begin(ctx, key, request)
}

type immediateStore struct {
	deadlineStore
	immediate bool
}

func (s immediateStore) Immediate() bool { return s.immediate }

// Only a store that says itself that it never waits is asked without a deadline.
func TestImmediateStore(t *testing.T) {
	t.Parallel()
	had := false
	memory := deadlineStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{}), &had}
	for name, row := range map[string]struct {
		store    idempotency.Store
		deadline bool
	}{
		"immediate":                 {immediateStore{memory, true}, false},
		"not immediate":             {immediateStore{memory, false}, true},
		"in front of one":           {memory, true},
		"in front of one that says": {wrapper{immediateStore{memory, true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			testservice.Setup{Store: row.store}.Guard(t, testservice.Echo).Call("key", "body")
			require.Equal(t, row.deadline, had)
		})
	}
	require.True(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}).Immediate())
}

// recallingStore has one record at hand for every key.
type recallingStore struct {
	idempotency.Store
	record idempotency.Record
}

func (s recallingStore) Recall(idempotency.Key) (idempotency.Record, bool) { return s.record, true }

// What a store has at hand is judged and replayed without Begin. What a store behind it has at hand is not asked for.
func TestRecallingStore(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	first := testservice.Setup{Store: inner}.Guard(t, testservice.Echo).Call("key", "body")
	require.Equal(t, http.StatusCreated, first.Status)
	record, _, err := inner.Store.Begin(t.Context(), idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "key"}, testservice.AttemptFor(time.Hour))
	require.NoError(t, err)
	recalling := recallingStore{inner, record}

	svc := testservice.Setup{Store: recalling}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	require.True(t, svc.Journal.Last(t).FromCache)
	testservice.RequireProblem(t, svc.Call("key", "another body"), http.StatusConflict, "key-reused")
	require.EqualValues(t, 1, inner.Begins.Load())

	svc = testservice.Setup{Store: wrapper{recalling}}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	require.False(t, svc.Journal.Last(t).FromCache)
	require.EqualValues(t, 2, inner.Begins.Load())
}

// benchPayment answers any request with 201, four fields and a body of a given size.
type benchPayment struct {
	body     []byte
	executed int
}

func (p *benchPayment) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.executed++
	_, _ = io.Copy(io.Discard, r.Body)
	h := w.Header()
	h["Content-Type"] = benchContentType
	h["Location"] = benchLocation
	h["Cache-Control"] = benchCacheControl
	h["Etag"] = benchETag
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(p.body)
}

var (
	benchContentType  = []string{"application/json"}
	benchLocation     = []string{"/payments/1"}
	benchCacheControl = []string{"no-store"}
	benchETag         = []string{`"1"`}
)

// benchClient sends requests without a network, and without allocations of its own.
type benchClient struct {
	request *http.Request
	body    *bytes.Reader
	key     []string
	header  http.Header
	status  int
	got     int
}

func newBenchClient(size int) *benchClient {
	c := &benchClient{body: bytes.NewReader(make([]byte, size)), key: []string{""}, header: http.Header{}}
	c.request = httptest.NewRequest(http.MethodPost, "/payments", c.body)
	c.request.Header["Content-Type"] = benchContentType
	return c
}

func (c *benchClient) send(h http.Handler, key string) {
	_, _ = c.body.Seek(0, io.SeekStart)
	if c.key[0] = key; key != "" {
		c.request.Header["Idempotency-Key"] = c.key
	}
	clear(c.header)
	c.status, c.got = 0, 0
	h.ServeHTTP(c, c.request)
}

func (c *benchClient) Header() http.Header { return c.header }

func (c *benchClient) WriteHeader(status int) { c.status = status }

func (c *benchClient) Write(p []byte) (int, error) {
	c.got += len(p)
	return len(p), nil
}

// benchKeys is a text every part of which is another key.
var benchKeys = sync.OnceValue(func() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	b := make([]byte, 8<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = letters[random.IntN(len(letters))]
	}
	return string(b)
})

func benchKey(n int) string { return benchKeys()[n : n+36] }

// benchStore makes a handler on a new store.
func benchStore(b testing.TB, store idempotency.Store, next http.Handler) http.Handler {
	m, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	require.NoError(b, err)
	return m.Handler(next)
}

func BenchmarkMiddleware(b *testing.B) {
	stores := map[string]func(b *testing.B) func() idempotency.Store{
		"memory": func(*testing.B) func() idempotency.Store {
			return func() idempotency.Store {
				return idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 30})
			}
		},
		"redis": func(b *testing.B) func() idempotency.Store {
			client := testservice.NewRedisClient(b, servertest.Redis(b).Addr())
			return func() idempotency.Store {
				require.NoError(b, client.FlushAll(b.Context()).Err())
				return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			}
		},
	}
	for _, name := range []string{"memory", "redis"} {
		newStore := stores[name](b)
		for _, size := range []struct {
			name    string
			in, out int
		}{
			{"256B-200B", 256, 200},
			{"256B-64KiB", 256, 64 << 10},
			{"256B-1MiB", 256, 1 << 20},
			{"1MiB-200B", 1 << 20, 200},
		} {
			client := newBenchClient(size.in)
			expect := func(b *testing.B, p *benchPayment, executed int) {
				require.Equal(b, executed, p.executed)
				require.Equal(b, http.StatusCreated, client.status)
				require.Equal(b, size.out, client.got)
			}
			b.Run(name+"/first/"+size.name, func(b *testing.B) {
				payment := &benchPayment{body: make([]byte, size.out)}
				var h http.Handler
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					if n%((256<<20)/(size.out+1024)) == 0 { // what fits into the memory of a small machine
						b.StopTimer()
						h = benchStore(b, newStore(), payment)
						b.StartTimer()
					}
					client.send(h, benchKey(n))
					n++
				}
				expect(b, payment, n)
				require.Empty(b, client.header["Idempotent-Replayed"])
			})
			b.Run(name+"/replay/"+size.name, func(b *testing.B) {
				payment := &benchPayment{body: make([]byte, size.out)}
				h := benchStore(b, newStore(), payment)
				client.send(h, benchKey(0))
				b.ReportAllocs()
				for b.Loop() {
					client.send(h, benchKey(0))
				}
				expect(b, payment, 1)
				require.Equal(b, []string{"true"}, client.header["Idempotent-Replayed"])
			})
		}
	}
	for name, h := range map[string]func(*benchPayment) http.Handler{
		"bare": func(p *benchPayment) http.Handler { return p },
		"without-key": func(p *benchPayment) http.Handler {
			return benchStore(b, idempotency.NewMemoryStore(idempotency.MemoryOptions{}), p)
		},
	} {
		b.Run(name, func(b *testing.B) {
			client, payment := newBenchClient(256), &benchPayment{body: make([]byte, 200)}
			h := h(payment)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				client.send(h, "")
				n++
			}
			require.Equal(b, n, payment.executed)
		})
	}
}

// BenchmarkMemoryStore claims and completes records while as many expire. They belong to one user, or each to another,
// and are kept for equal times or not.
func BenchmarkMemoryStore(b *testing.B) {
	resp := testservice.BodyOf(200)
	attempt := testservice.AttemptFor(time.Minute)
	alice := func(int) string { return "alice" }
	equal := func(int) time.Duration { return time.Millisecond }
	for name, bench := range map[string]struct {
		userOf func(n int) string
		ttlOf  func(n int) time.Duration
	}{
		"one user":   {alice, equal},
		"many users": {func(n int) string { return benchKey(n)[:12] }, equal},
		"many TTLs":  {alice, func(n int) time.Duration { return time.Duration(n%1000) * 50 * time.Microsecond }},
	} {
		b.Run(name, func(b *testing.B) {
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			var last atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					n := int(last.Add(1)) % (8<<20 - 36)
					key := idempotency.Key{User: bench.userOf(n), Endpoint: "POST /payments", ID: benchKey(n)}
					_, claim, err := store.Begin(b.Context(), key, attempt)
					if err == nil && claim != nil {
						err = claim.Complete(b.Context(), resp, bench.ttlOf(n))
					}
					if err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

func BenchmarkRedisStore(b *testing.B) {
	client := testservice.NewRedisClient(b, servertest.Redis(b).Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	attempt := testservice.AttemptFor(time.Hour)
	key := func(n int) idempotency.Key {
		return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: benchKey(n)}
	}
	b.Run("Begin", func(b *testing.B) {
		require.NoError(b, client.FlushAll(b.Context()).Err())
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if _, claim, err := store.Begin(b.Context(), key(n), attempt); err != nil || claim == nil {
				b.Fatal(claim, err)
			}
			n++
		}
	})
	for name, size := range map[string]int{"200B": 200, "64KiB": 64 << 10} {
		resp := testservice.BodyOf(size)
		b.Run("Complete/"+name, func(b *testing.B) {
			require.NoError(b, client.FlushAll(b.Context()).Err())
			claim := testservice.MustClaim(b, store, key(0), attempt)
			b.ReportAllocs()
			for b.Loop() { // all but the first are repetitions, which cost the client the same
				if err := claim.Complete(b.Context(), resp, attempt.TTL); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("replay/"+name, func(b *testing.B) {
			require.NoError(b, client.FlushAll(b.Context()).Err())
			require.NoError(b, testservice.MustClaim(b, store, key(0), attempt).Complete(b.Context(), resp, attempt.TTL))
			b.ReportAllocs()
			for b.Loop() {
				record, claim, err := store.Begin(b.Context(), key(0), attempt)
				if err != nil || claim != nil || len(record.Response.Body) != size {
					b.Fatal(record, claim, err)
				}
			}
		})
	}
}

// allocated returns how many bytes the cheapest of some runs allocates: under the race detector, pools are at times
// empty for no reason.
func allocated(run func(n int)) uint64 {
	least := uint64(math.MaxUint64)
	var before, after runtime.MemStats
	for n := range 20 {
		runtime.ReadMemStats(&before)
		run(n)
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

// A large answer is put together in buffers that are used again, and kept in one piece: by the store in memory when it
// is given, by the client of Redis when it is read.
func TestMemoryOfALargeAnswer(t *testing.T) { // not parallel: it measures all allocations of the process
	const size, none, once = 1 << 20, 1 << 16, 1<<20 + 1<<16
	read := uint64(once)
	if testservice.UnderRace() {
		read = 2 * once // with it, Go grows the slice of the client by way of another one
	}
	for _, test := range []struct {
		name         string
		store        idempotency.Store
		given, again uint64
	}{
		{"memory", idempotency.NewMemoryStore(idempotency.MemoryOptions{}), once, none},
		{"redis", idempotency.NewRedisStore(testservice.NewRedisClient(t, servertest.Redis(t).Addr()), idempotency.RedisOptions{}),
			none, read},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties the pools
			payment := &benchPayment{body: make([]byte, size)}
			h, client := benchStore(t, test.store, payment), newBenchClient(256)

			require.LessOrEqual(t, allocated(func(n int) { client.send(h, benchKey(n)) }), test.given)
			executed := payment.executed
			require.LessOrEqual(t, allocated(func(int) { client.send(h, benchKey(0)) }), test.again)
			require.Equal(t, executed, payment.executed)
			require.Equal(t, []string{"true"}, client.header["Idempotent-Replayed"])
		})
	}
}
