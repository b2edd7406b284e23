// Package compat_test runs the middleware within the frameworks, proxies and RPC libraries that it is used with. Each
// scenario is played on three stages: a service without the middleware, the first request to one with it, and the retry.
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
	if err := flag.Set("test.parallel", "16"); err != nil { // scenarios wait more than they work
		panic(err)
	}
	goleak.VerifyTestMain(m, leftByFasthttp()...)
}

const (
	shortly = time.Second      // for timeouts that pass, if possible in a bubble
	long    = 10 * time.Second // for timeouts that do not pass, and for what must happen
)

// scenario is a handler within a framework, and what comes of it.
type scenario struct {
	outer   wrapper // around the middleware; nil: nothing
	inner   wrapper // between the middleware and the handler; nil: nothing
	proto   protocol
	opts    idempotency.Options
	mount   func(*idempotency.Middleware, http.Handler) http.Handler // nil: Middleware.Handler
	handler func(*service) http.Handler
	call    caller // nil: post
	bubble  bool   // in a bubble of testing/synctest: it waits for a timeout, which must not come before its handler runs
	leaves  bool   // the first client leaves while the handler waits
	late    bool   // the first client gets an answer while the handler waits

	first string // status of the first answer; it equals that of the unguarded service
	retry string // status of the answer to the retry; if it is the status of first, all of the answer is equal
	runs  int64  // of the handler for first and retry: 1 if the retry is a replay, else 2
}

// wrapper puts something around a handler.
type wrapper func(t testing.TB, next http.Handler) http.Handler

// caller sends a request, with key unless it is empty.
type caller func(ctx context.Context, s *service, key string) answer

// answer is what a client gets, but for the Date and for what says how long the body is.
type answer struct {
	status     string // HTTP status or RPC code; broken if there is none
	header     http.Header
	trailer    http.Header
	body       string
	compressed bool
}

const (
	broken = "broken" // the status of an answer that did not come, or not whole
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

// leave lets the first clients of both services leave. It returns the answer of the unguarded one to a client that
// stays.
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
	runs    atomic.Int64           // of the handler
	entered chan struct{}          // tells that a handler waits
	gaveUp  chan struct{}          // tells that the context of a handler ended while it waited
	left    chan struct{}          // tells that the client of a request has left, or got its answer
	settled chan idempotency.Event // tells what became of a guarded request
	goOn    func()                 // lets handlers go on that wait
	waiting context.Context        // ends when handlers may go on
}

// start starts the service on a server of its own.
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
	t.Cleanup(sv.goOn) // before the server is closed
	sv.url, sv.client = server.URL, server.Client()
	if sv.call == nil {
		sv.call = post
	}
	return sv
}

func (s scenario) guard(t testing.TB, sv *service, next http.Handler) http.Handler {
	t.Helper()
	s.opts.Observer = func(_ context.Context, e idempotency.Event) { tell(sv.settled, e) }
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
		context.AfterFunc(r.Context(), func() { tell(sv.left, struct{}{}) })
		next.ServeHTTP(w, r)
	})
}

// wait lets a handler wait. It returns an error if ctx ends meanwhile.
func (sv *service) wait(ctx context.Context) error {
	tell(sv.entered, struct{}{})
	select {
	case <-sv.waiting.Done():
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		tell(sv.gaveUp, struct{}{})
	}
	return ctx.Err()
}

// send sends a request, with key unless it is empty.
func (sv *service) send(key string) answer { return sv.call(context.Background(), sv, key) }

// hangUp sends a request, and leaves while the handler waits. It returns the status that the client is left with.
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

// settle waits until it is certain what became of a guarded request.
func (sv *service) settle(t *testing.T) {
	t.Helper()
	receive(t, sv.settled)
}

// requireUnknown checks that a retry is refused, with in-progress until the lease lapses, then with outcome-unknown.
func (sv *service) requireUnknown(t *testing.T, key string) {
	t.Helper()
	retry := sv.send(key)
	require.True(t, isProblem(retry, "in-progress"), retry.body)
	eventually(t, func() bool { retry = sv.send(key); return !isProblem(retry, "in-progress") }, "the lease lapses")
	require.True(t, isProblem(retry, "outcome-unknown"), retry.body)
	require.EqualValues(t, 1, sv.runs.Load())
}

// tell sends a value unless nobody has taken the last hundred.
func tell[T any](to chan<- T, value T) {
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

// posting sends plain requests with a header.
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

// plain returns a header without what differs from answer to answer, and what tells of framing.
func plain(header http.Header) http.Header {
	header = header.Clone()
	header.Del("Date")
	header.Del("Content-Length")
	return header
}

// keyed returns a client whose requests have a header, and key unless it is empty.
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
	r.GetBody = nil // else net/http repeats a request whose connection broke
	return k.next.RoundTrip(r)
}

// protocol is how client and server talk.
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
		Handler: handler, ErrorLog: log.New(io.Discard, "", 0), // panics are a part of some scenarios
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
	if server.Listener.Addr().Network() == "memory" { // else the client knows where example.com is, too
		server.Client().Transport.(*http.Transport).DialContext = servertest.Dial
	}
	t.Cleanup(server.Close)
	return server
}

// tlsConfig returns what a client other than that of net/http needs to reach the server; nil without TLS.
func (sv *service) tlsConfig() *tls.Config {
	if strings.HasPrefix(sv.url, "https:") {
		return sv.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	}
	return nil
}

// around puts wrappers around each other, the first outermost.
func around(wrappers ...func(http.Handler) http.Handler) wrapper {
	return func(_ testing.TB, next http.Handler) http.Handler {
		for i := len(wrappers) - 1; i >= 0; i-- {
			next = wrappers[i](next)
		}
		return next
	}
}

// isProblem reports whether an answer is the refusal that code names.
func isProblem(a answer, code string) bool {
	return a.header.Get("Content-Type") == "application/problem+json" && strings.Contains(a.body, "#"+code+`"`)
}

// eventually waits until what is true.
func eventually(t *testing.T, what func() bool, message string) {
	t.Helper()
	require.Eventually(t, what, long, 20*time.Millisecond, message)
}
