package idempotency_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// ledgerStore counts the claims that are not settled.
type ledgerStore struct {
	idempotency.Store
	open atomic.Int64
}

func (s *ledgerStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		s.open.Add(1)
		claim = &ledgerClaim{claim, s}
	}
	return record, claim, err
}

type ledgerClaim struct {
	idempotency.Claim
	store *ledgerStore
}

func (c *ledgerClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	defer c.store.open.Add(-1)
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c *ledgerClaim) Release(ctx context.Context, ttl time.Duration) error {
	defer c.store.open.Add(-1)
	return c.Claim.Release(ctx, ttl)
}

// fuzzedService is a middleware, and what it and its handler have seen.
type fuzzedService struct {
	t       testing.TB
	network *memoryNetwork
	store   ledgerStore
	guarded http.Handler

	request *http.Request // the last one that has reached the middleware; nil: none has
	runs    int           // of the handler
	key     idempotency.Key
	panics  int
}

// fuzzedLimit is the most bytes of a body.
const fuzzedLimit = 1000

func newFuzzedService(t testing.TB, network *memoryNetwork) *fuzzedService {
	s := &fuzzedService{t: t, network: network}
	s.store.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	m, err := idempotency.New(&s.store, idempotency.SingleUser, idempotency.Options{
		MaxBody: fuzzedLimit, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	s.guarded = m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs++
		op, _ := idempotency.FromContext(r.Context())
		s.key = op.Key
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Run", fmt.Sprint(s.runs))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}))
	return s
}

func (s *fuzzedService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if recover() != nil {
			s.panics++
		}
	}()
	s.request = r
	s.guarded.ServeHTTP(w, r)
}

// ask sends a request, and returns the raw reply and the answer. Whatever it is, there is no panic, one answer and no
// claim left.
func (s *fuzzedService) ask(request fuzzedRequest) (string, wholeAnswer) {
	s.request = nil
	reply := s.network.exchange(s.t, request.raw, request.cut)
	require.Zero(s.t, s.panics)
	require.Zero(s.t, s.store.open.Load(), "a claim is left behind")
	if s.request == nil { // net/http has refused it, whatever the method
		return reply, readWhole(s.t, reply, http.MethodGet)
	}
	return reply, readWhole(s.t, reply, request.method)
}

// fuzzedRequest is a request as bytes, and what net/http reads of it.
type fuzzedRequest struct {
	raw, method string
	body        string
	cut         bool // the body does not end where the request does
}

func newFuzzedRequest(method, target, key, lines, body string) fuzzedRequest {
	raw := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", method, target)
	if key != "" {
		raw += "Idempotency-Key: " + key + "\r\n"
	}
	raw += fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", lines, len(body), body)
	request := fuzzedRequest{raw: raw, method: method}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err == nil {
		var b []byte
		b, err = io.ReadAll(r.Body)
		request.body = string(b)
	}
	request.cut = err != nil
	return request
}

// FuzzRequest sends whatever request twice, and then with another body. What is answered and how often the handler runs
// follows from method, key and body, as another reader sees them.
func FuzzRequest(f *testing.F) {
	const form = "Content-Type: application/x-www-form-urlencoded\r\n"
	for _, method := range []string{"POST", "PATCH", "GET", "post", "HEAD", "CONNECT", "OPTIONS", "P@ST"} {
		f.Add(method, "/payments?a=1", "key", form, "a=1")
	}
	for _, target := range []string{"/", "//a/../b", "/%2F%00", "http://y/a?b", "*", "a b", "/" + strings.Repeat("a", 300), "?", "/\xff"} {
		f.Add("POST", target, "key", "", "body")
	}
	for _, key := range []string{"", `"key"`, `"a\"`, "a,b", " key ", "k\x00", strings.Repeat("k", 256), "\xff"} {
		f.Add("PATCH", "/payments", key, "", "")
	}
	for _, lines := range []string{
		"Idempotency-Key: other\r\n", "idempotency-key: key\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 5000\r\n",
		"Expect: 100-continue\r\n", "Host: y\r\n", " obs: fold\r\n", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
		"Content-Type: text/", "Content-Encoding: ", "X-HTTP-Method-Override:", "\r\n\r\n", "Content-Length: 9\r\n\r\n", "Content-Encoding: gzip\r\nX-HTTP-Method-Override: PUT\r\n", "Upgrade: h2c\r\n", ": \r\n",
	} {
		f.Add("POST", "/payments", "key", lines, "4\r\nbody\r\n0\r\n\r\n")
		f.Add("POST", "/payments", "", lines, "body")
	}
	f.Add("POST", "/payments", "key", "", strings.Repeat("x", fuzzedLimit+1))
	var service atomic.Pointer[fuzzedService]
	network := serveInMemory(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { service.Load().ServeHTTP(w, r) }))
	f.Fuzz(func(t *testing.T, method, target, key, lines, body string) {
		if strings.ContainsAny(method+target+key, "\r\n") {
			return // it would be another request
		}
		s := newFuzzedService(t, network)
		service.Store(s)
		request := newFuzzedRequest(method, target, key, lines, body)
		reply, first := s.ask(request)
		seen := s.request
		if seen == nil { // net/http has answered
			require.Zero(t, s.runs)
			require.True(t, first.Status >= 400 || method == http.MethodOptions, "%d", first.Status)
			return
		}
		ids := seen.Header["Idempotency-Key"]
		if seen.Method != http.MethodPost && seen.Method != http.MethodPatch || len(ids) == 0 {
			_, again := s.ask(request)
			require.Equal(t, 2, s.runs, "nothing guards this request")
			require.False(t, again.Replayed())
			return
		}
		id, ok := keyByForm(ids[0])
		switch {
		case len(ids) > 1 || !ok:
			s.refused(first, http.StatusBadRequest, "key-invalid")
		case seen.ContentLength > fuzzedLimit || !request.cut && len(request.body) > fuzzedLimit:
			s.refused(first, http.StatusRequestEntityTooLarge, "body-too-large")
		case request.cut:
			require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, first.Status)
			require.Zero(t, s.runs)
		default:
			s.replays(request, reply, first)
			s.requireKey(seen, id)
			s.refusesOther(request, newFuzzedRequest(method, target, key, lines, body+"x"), seen)
		}
	})
}

func (s *fuzzedService) refused(got wholeAnswer, status int, code string) {
	s.t.Helper()
	require.Equal(s.t, status, got.Status)
	require.Contains(s.t, got.Body, "#"+code)
	require.Zero(s.t, s.runs)
}

// replays requires that the first answer was the handler's, and that the second one is the same.
func (s *fuzzedService) replays(request fuzzedRequest, reply string, first wholeAnswer) {
	s.t.Helper()
	require.Equal(s.t, http.StatusCreated, first.Status)
	require.False(s.t, first.Replayed())
	require.Equal(s.t, request.body, first.Body)
	again, second := s.ask(request)
	require.True(s.t, second.Replayed())
	require.Equal(s.t, withoutMark(reply), withoutMark(again))
	require.Equal(s.t, 1, s.runs)
}

// requireKey checks what the handler was told of its key.
func (s *fuzzedService) requireKey(r *http.Request, id string) {
	s.t.Helper()
	require.Equal(s.t, id, s.key.ID)
	if path, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(path, "/") {
		want := idempotency.Key{User: "single", Endpoint: r.Method + " " + path, ID: id}.Bounded()
		require.True(s.t, want == s.key, "%q is not %q", s.key.Endpoint, want.Endpoint)
	}
}

// refusesOther requires that a request with the same key and another body is refused. The other request's Content-Length
// may stand in the value of a field of whatever lines: a request with the same body then asks for the same, or not.
func (s *fuzzedService) refusesOther(request, other fuzzedRequest, seen *http.Request) {
	s.t.Helper()
	_, third := s.ask(other)
	if s.request != nil && !other.cut && len(other.body) <= fuzzedLimit {
		if other.body != request.body || reflect.DeepEqual(seen.Header, s.request.Header) {
			require.Equal(s.t, other.body == request.body, third.Replayed())
		}
		require.True(s.t, third.Replayed() || strings.Contains(third.Body, "#key-reused"), "%q", third.Body)
	}
	require.Equal(s.t, 1, s.runs)
}
