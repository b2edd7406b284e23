// Package compat_test runs the middleware in frameworks, proxies and RPC libraries. Each scenario sends three
// requests: a request to a service without the middleware, the first request to a service with the middleware, and
// the retry of the first request.
package compat_test

import (
	"context"
	"crypto/tls"
	"flag"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil { // scenarios wait more than they compute
		panic(err)
	}
	goleak.VerifyTestMain(m, leftByFasthttp()...)
}

const (
	shortly = time.Second      // for timeouts that expire, in a bubble if possible
	long    = 10 * time.Second // for timeouts that do not expire, and for expected events
)

// scenario is a handler in a framework, with the expected answers.
type scenario struct {
	outer   wrapper // around the middleware; nil: no wrapper
	inner   wrapper // between the middleware and the handler; nil: no wrapper
	proto   protocol
	opts    idempotency.Options
	mount   func(*idempotency.Middleware, http.Handler) http.Handler // nil: Middleware.Handler
	handler func(*service) http.Handler
	call    caller // nil: post
	bubble  bool   // runs in a bubble of testing/synctest, so that a timeout does not expire before the handler runs
	leaves  bool   // the first client leaves while the handler waits
	late    bool   // the first client gets an answer while the handler waits

	first string // status of the first answer, which equals the answer of the unguarded service
	retry string // status of the answer to the retry; if the status equals first, the whole answer is equal
	runs  int64  // runs of the handler for both requests: 1 if the retry is a replay, else 2
}

// wrapper puts a layer around a handler.
type wrapper func(t testing.TB, next http.Handler) http.Handler

// caller sends a request, with key unless key is empty.
type caller func(ctx context.Context, s *service, key string) answer

// answer is the answer that a client gets, without Date and without the fields about the length of the body.
type answer struct {
	status     string // HTTP status or RPC code; broken if there is none
	header     http.Header
	trailer    http.Header
	body       string
	compressed bool
}

const (
	broken = "broken" // the status of a missing or incomplete answer
	marker = "Idempotent-Replayed"
)

func (a answer) replayed() bool { return a.header.Get(marker) == "true" }

// unmarked returns the answer without the marker of a replay.
func (a answer) unmarked() answer {
	a.header = a.header.Clone()
	a.header.Del(marker)
	return a
}

func (s scenario) run(t *testing.T) {
	t.Parallel()
	if s.bubble {
		synctest.Test(t, s.play)
	} else {
		s.play(t)
	}
}

func (s scenario) play(t *testing.T) {
	bare, guarded := s.start(t, false), s.start(t, true)
	var want answer
	if s.leaves {
		want = s.leave(t, bare, guarded)
	} else {
		want = bare.send("")
		first := guarded.send("key")
		require.Equal(t, want, first)
		require.Equal(t, s.first, first.status, first.body)
		if s.late {
			guarded.goOn()
		}
		guarded.settle(t)
	}
	retry := guarded.send("key")
	require.Equal(t, s.retry, retry.status, retry.body)
	if want.status == s.retry {
		require.Equal(t, want, retry.unmarked())
	}
	require.Equal(t, s.runs, guarded.runs.Load())
	require.Equal(t, s.runs == 1, retry.replayed())
}

// leave makes the first clients of both services leave. The result is the unguarded answer to a client that stays.
func (s scenario) leave(t *testing.T, bare, guarded *service) answer {
	require.Equal(t, s.first, bare.hangUp(t, ""))
	receive(t, bare.gaveUp)
	bare.goOn()

	require.Equal(t, s.first, guarded.hangUp(t, "key"))
	if s.runs == 2 {
		receive(t, guarded.gaveUp)
		guarded.settle(t)
	}
	guarded.goOn()
	if s.runs == 1 {
		guarded.settle(t)
	}
	return bare.send("")
}

// service is a handler on a real server.
type service struct {
	url     string
	client  *http.Client
	call    caller
	runs    atomic.Int64           // runs of the handler
	entered chan struct{}          // receives a value when a handler waits
	gaveUp  chan struct{}          // receives a value when the context of a waiting handler ends
	left    chan struct{}          // receives a value when the client of a request has left, or has its answer
	settled chan idempotency.Event // receives the event of a guarded request
	goOn    func()                 // lets waiting handlers continue
	waiting context.Context        // ends when handlers may continue
}

// start starts the service on a new server.
func (s scenario) start(t testing.TB, guarded bool) *service {
	t.Helper()
	const many = 100
	sv := &service{
		call: s.call, entered: make(chan struct{}, many), gaveUp: make(chan struct{}, many),
		left: make(chan struct{}, many), settled: make(chan idempotency.Event, many),
	}
	sv.waiting, sv.goOn = context.WithCancel(context.Background())
	handler := sv.count(s.handler(sv))
	if s.inner != nil {
		handler = s.inner(t, handler)
	}
	if guarded {
		handler = s.guard(t, sv, handler)
	}
	handler = sv.watch(handler)
	if s.outer != nil {
		handler = s.outer(t, handler)
	}
	server := s.proto.listen(t, handler)
	t.Cleanup(sv.goOn) // runs before the server is closed
	sv.url, sv.client = server.URL, server.Client()
	if sv.call == nil {
		sv.call = post
	}
	return sv
}

func (s scenario) guard(t testing.TB, sv *service, next http.Handler) http.Handler {
	t.Helper()
	s.opts.Observer = func(_ context.Context, e idempotency.Event) { trySend(sv.settled, e) }
	m := newMiddleware(t, newStore(), s.opts)
	if s.mount == nil {
		return m.Handler(next)
	}
	return s.mount(m, next)
}

func newStore() idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }

func newMiddleware(t testing.TB, store idempotency.Store, opts idempotency.Options) *idempotency.Middleware {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	m, err := idempotency.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	return m
}

func (sv *service) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sv.runs.Add(1)
		next.ServeHTTP(w, r)
	})
}

func (sv *service) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { trySend(sv.left, struct{}{}) })
		next.ServeHTTP(w, r)
	})
}

// wait makes a handler wait for goOn. The error is not nil if ctx ends before.
func (sv *service) wait(ctx context.Context) error {
	trySend(sv.entered, struct{}{})
	select {
	case <-sv.waiting.Done():
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		trySend(sv.gaveUp, struct{}{})
	}
	return ctx.Err()
}

// send sends a request, with key unless key is empty.
func (sv *service) send(key string) answer { return sv.call(context.Background(), sv, key) }

// hangUp sends a request, and leaves while the handler waits. The result is the status that the client sees.
func (sv *service) hangUp(t *testing.T, key string) string {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	got := make(chan answer, 1)
	go func() { got <- sv.call(ctx, sv, key) }()
	receive(t, sv.entered)
	leave()
	receive(t, sv.left)
	return receive(t, got).status
}

// settle waits until the outcome of a guarded request is final.
func (sv *service) settle(t *testing.T) {
	t.Helper()
	receive(t, sv.settled)
}

// requireUnknown requires that a retry is refused with outcome-unknown.
func (sv *service) requireUnknown(t *testing.T, key string) {
	t.Helper()
	retry := sv.send(key)
	require.True(t, isProblem(retry, "outcome-unknown"), retry.body)
	require.EqualValues(t, 1, sv.runs.Load())
}

// trySend sends a value, unless the buffer of the channel is full.
func trySend[T any](to chan<- T, value T) {
	select {
	case to <- value:
	default:
	}
}

func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(long):
		require.FailNow(t, "what must happen has not happened")
	}
	return value
}

// post sends a plain request.
func post(ctx context.Context, s *service, key string) answer { return posting(nil)(ctx, s, key) }

// posting returns a caller that sends plain requests with a header.
func posting(header http.Header) caller {
	return func(ctx context.Context, s *service, key string) answer {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+procedure, strings.NewReader("4200"))
		if err != nil {
			return answer{status: broken, body: err.Error()}
		}
		resp, err := s.keyed(key, header).Do(r)
		if err != nil {
			return answer{status: broken}
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return answer{status: broken}
		}
		return answer{strconv.Itoa(resp.StatusCode), plain(resp.Header), resp.Trailer, string(body), resp.Uncompressed}
	}
}

// plain returns a header without the fields that differ between answers, and without the fields about framing.
func plain(header http.Header) http.Header {
	header = header.Clone()
	header.Del("Date")
	header.Del("Content-Length")
	return header
}

// keyed returns a client whose requests have a header, and key unless key is empty.
func (sv *service) keyed(key string, header http.Header) *http.Client {
	header = header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	return &http.Client{
		Transport:     &keyed{sv.client.Transport, header},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type keyed struct {
	next   http.RoundTripper
	header http.Header
}

func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range k.header {
		r.Header[name] = values
	}
	r.GetBody = nil // otherwise net/http repeats a request whose connection broke
	return k.next.RoundTrip(r)
}

// protocol is the protocol between client and server.
type protocol string

const (
	http1 protocol = "HTTP1"
	http2 protocol = "HTTP2"
	h2c   protocol = "h2c"
)

// listen starts a server.
func (p protocol) listen(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	server := &httptest.Server{Listener: servertest.Listen(t), Config: &http.Server{
		Handler: handler, ErrorLog: log.New(io.Discard, "", 0), // some scenarios panic
	}}
	switch p {
	case http2:
		server.EnableHTTP2 = true
		server.StartTLS()
	case h2c:
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		server.Client().Transport.(*http.Transport).Protocols = server.Config.Protocols
	default:
		server.Start()
	}
	if server.Listener.Addr().Network() == "memory" { // otherwise the client can resolve example.com itself
		server.Client().Transport.(*http.Transport).DialContext = servertest.Dial
	}
	t.Cleanup(server.Close)
	return server
}

// tlsConfig returns the TLS settings of a client that is not from net/http; nil without TLS.
func (sv *service) tlsConfig() *tls.Config {
	if strings.HasPrefix(sv.url, "https:") {
		return sv.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	}
	return nil
}

// around composes wrappers, the first outermost.
func around(wrappers ...func(http.Handler) http.Handler) wrapper {
	return func(_ testing.TB, next http.Handler) http.Handler {
		for i := len(wrappers) - 1; i >= 0; i-- {
			next = wrappers[i](next)
		}
		return next
	}
}

// isProblem reports whether an answer is the problem with the given code.
func isProblem(a answer, code string) bool {
	return a.header.Get("Content-Type") == "application/problem+json" && strings.Contains(a.body, "#"+code+`"`)
}

// eventually waits until the condition is true.
func eventually(t *testing.T, what func() bool, message string) {
	t.Helper()
	require.Eventually(t, what, long, 20*time.Millisecond, message)
}
