package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// Most tests wait for something: many more of them than processors run at a time. With the race detector there are fewer:
// it makes the machine so slow that real clients and servers would exceed their deadlines.
func TestMain(m *testing.M) {
	atATime := "16"
	if underRace() {
		atATime = "4"
	}
	if err := flag.Set("test.parallel", atATime); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// underRace reports whether the race detector watches this program.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// hook stands between a caller and one method of a store: it may call step, or fail instead, or both. N counts from 1.
type hook func(ctx context.Context, n int64, step func() error) error

// failing is the hook of a method that fails for the first n calls, without effect.
func failing(n int64, err error) hook {
	return func(_ context.Context, call int64, step func() error) error {
		if call <= n {
			return err
		}
		return step()
	}
}

const always = 1 << 62

// spyStore is a store that counts what is asked of it, and lets a test interfere.
type spyStore struct {
	idempotency.Store
	onBegin, onExtend, onComplete, onRelease hook
	begins, extends, completes, releases     atomic.Int64
}

func newSpyStore() *spyStore {
	return &spyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
}

func spy(ctx context.Context, calls *atomic.Int64, on hook, step func() error) error {
	n := calls.Add(1)
	if on == nil {
		return step()
	}
	return on(ctx, n, step)
}

func (s *spyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (rec idempotency.Record, claim idempotency.Claim, err error) {
	err = spy(ctx, &s.begins, s.onBegin, func() (err error) {
		rec, claim, err = s.Store.Begin(ctx, key, request)
		return err
	})
	if claim != nil {
		claim = &spyClaim{claim, s}
	}
	return rec, claim, err
}

type spyClaim struct {
	idempotency.Claim
	store *spyStore
}

func (c *spyClaim) Extend(ctx context.Context, lease time.Duration) error {
	return spy(ctx, &c.store.extends, c.store.onExtend, func() error { return c.Claim.Extend(ctx, lease) })
}

func (c *spyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	return spy(ctx, &c.store.completes, c.store.onComplete, func() error { return c.Claim.Complete(ctx, resp, ttl) })
}

func (c *spyClaim) Release(ctx context.Context, ttl time.Duration) error {
	return spy(ctx, &c.store.releases, c.store.onRelease, func() error { return c.Claim.Release(ctx, ttl) })
}

// alteredStore is a store whose records are altered before they are shown.
type alteredStore struct {
	idempotency.Store
	alter func(*idempotency.Record)
}

func (s alteredStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	s.alter(&record)
	return record, claim, err
}

// journal keeps the events of a middleware.
type journal struct {
	mu     sync.Mutex
	events []idempotency.Event
}

func (j *journal) observe(_ context.Context, e idempotency.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

func (j *journal) all() []idempotency.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]idempotency.Event(nil), j.events...)
}

func (j *journal) outcomes() []idempotency.Outcome {
	var outcomes []idempotency.Outcome
	for _, e := range j.all() {
		outcomes = append(outcomes, e.Outcome)
	}
	return outcomes
}

// last returns the newest event.
func (j *journal) last(t *testing.T) idempotency.Event {
	t.Helper()
	events := j.all()
	require.NotEmpty(t, events)
	return events[len(events)-1]
}

// setup is what a service is made of. Its zero value has a memory store, one user and default options.
type setup struct {
	store idempotency.Store // a spyStore if nil
	user  idempotency.UserFunc
	opts  idempotency.Options
	outer func(http.Handler) http.Handler
}

// service is a guarded handler.
type service struct {
	t       testing.TB
	handler http.Handler
	store   *spyStore
	journal journal
	runs    atomic.Int64 // of the handler
	server  *httptest.Server

	usersCounted func() int // who hold a part of what the middleware shares out
}

// guard puts handler behind a middleware.
func (s setup) guard(t testing.TB, handler http.HandlerFunc) *service {
	t.Helper()
	svc := &service{t: t}
	if s.store == nil {
		s.store = newSpyStore()
	}
	svc.store, _ = s.store.(*spyStore)
	if s.user == nil {
		s.user = idempotency.SingleUser
	}
	if s.opts.Logger == nil {
		s.opts.Logger = slog.New(slog.DiscardHandler)
	}
	if s.opts.Observer == nil {
		s.opts.Observer = svc.journal.observe
	}
	m, err := idempotency.New(s.store, s.user, s.opts)
	require.NoError(t, err)
	giveUpAtTheEnd(t, m)
	svc.usersCounted = m.UsersCounted
	svc.handler = m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		svc.runs.Add(1)
		handler(w, r)
	}))
	if s.outer != nil {
		svc.handler = s.outer(svc.handler)
	}
	return svc
}

// giveUpAtTheEnd ends what goes on in the background when the test does.
func giveUpAtTheEnd(t testing.TB, r interface{ Shutdown(context.Context) error }) {
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Shutdown(ctx) // the error says that something was going on
	})
}

// serve puts handler behind a middleware on a real server.
func (s setup) serve(t testing.TB, handler http.HandlerFunc) *service {
	t.Helper()
	svc := s.guard(t, handler)
	svc.server = listen(t, svc.handler, false)
	return svc
}

// listen starts a server, with HTTP/1.1 or with TLS and HTTP/2.
func listen(t testing.TB, handler http.Handler, http2 bool) *httptest.Server {
	t.Helper()
	server := &httptest.Server{Listener: servertest.Listen(t), EnableHTTP2: http2, Config: &http.Server{
		Handler: handler, ErrorLog: log.New(io.Discard, "", 0), // panics are a part of some tests
	}}
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	if server.Listener.Addr().Network() == "memory" { // else the client knows where example.com is, too
		server.Client().Transport.(*http.Transport).DialContext = servertest.Dial
	}
	t.Cleanup(server.Close)
	return server
}

// answer is what a client got, but for the Date.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // instead of an answer, or in the middle of one
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

type edit func(*http.Request)

func withHeader(name string, values ...string) edit {
	return func(r *http.Request) { r.Header[name] = values }
}

func withMethod(method string) edit { return func(r *http.Request) { r.Method = method } }

func withContext(ctx context.Context) edit { return func(r *http.Request) { *r = *r.WithContext(ctx) } }

// send sends a request over the network as a POST to target, with key unless it is empty.
func (s *service) send(target, key, body string, edits ...edit) answer {
	r, err := http.NewRequest(http.MethodPost, s.server.URL+target, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.GetBody = nil // else the transport repeats a request whose connection broke
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, edit := range edits {
		edit(r)
	}
	resp, err := s.server.Client().Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	resp.Header.Del("Date")
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// post sends a request that must be answered.
func (s *service) post(key, body string, edits ...edit) answer {
	s.t.Helper()
	got := s.send("/payments", key, body, edits...)
	assert.NoError(s.t, got.err)
	return got
}

// call calls the handler without a network in between.
func (s *service) call(key, body string, edits ...edit) answer {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return answer{status: w.Code, header: w.Result().Header, body: w.Body.String()}
}

// problem is the body of a refusal.
type problem struct {
	Type, Title, Detail    string
	Status, OriginalStatus int
	Retry                  idempotency.Retry
}

// retries has what a client is told to do about each problem.
var retries = map[string]idempotency.Retry{
	"key-missing":       idempotency.RetryNewKey,
	"key-invalid":       idempotency.RetryNewKey,
	"user-unknown":      idempotency.RetrySameKey,
	"body-too-large":    idempotency.RetryNever,
	"body-invalid":      idempotency.RetrySameKey,
	"body-consumed":     idempotency.RetryNever,
	"overloaded":        idempotency.RetrySameKey,
	"quota-exceeded":    idempotency.RetrySameKey,
	"in-progress":       idempotency.RetrySameKey,
	"key-reused":        idempotency.RetryNewKey,
	"not-replayable":    idempotency.RetryNever,
	"replay-refused":    idempotency.RetryNever,
	"outcome-unknown":   idempotency.RetryNever,
	"store-unavailable": idempotency.RetrySameKey,
	"rolled-back":       idempotency.RetrySameKey,
}

// requireProblem checks that a is the refusal that code names, in every part.
func requireProblem(t *testing.T, a answer, status int, code string) problem {
	t.Helper()
	require.Equal(t, status, a.status, "body: %s", a.body)
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
	require.Equal(t, status == http.StatusUnauthorized, a.header.Get("WWW-Authenticate") != "")
	require.False(t, a.replayed())
	var p problem
	decoder := json.NewDecoder(bytes.NewReader([]byte(a.body)))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&p))
	require.Equal(t, "https://github.com/idempotency-go/idempotency#"+code, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	require.Contains(t, retries, code)
	require.Equal(t, retries[code], p.Retry)
	switch code {
	case "in-progress", "store-unavailable", "rolled-back", "overloaded":
		require.Equal(t, "1", a.header.Get("Retry-After"))
	case "quota-exceeded":
		require.Equal(t, "60", a.header.Get("Retry-After"))
	default:
		require.NotContains(t, a.header, "Retry-After")
	}
	return p
}

// requireReplay checks that a is first once more.
func requireReplay(t *testing.T, first, a answer) {
	t.Helper()
	require.True(t, a.replayed(), "not marked as a replay: %d %s", a.status, a.body)
	header := a.header.Clone()
	header.Del("Idempotent-Replayed")
	require.Equal(t, first, answer{a.status, header, a.body, a.err})
}

// echo answers 201 with the body of the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}
