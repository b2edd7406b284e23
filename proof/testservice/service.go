package testservice

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// Setup describes a service. The zero value has a memory store, a single user and default options.
type Setup struct {
	Store idempotency.Store // nil: a new SpyStore
	User  idempotency.UserFunc
	Opts  idempotency.Options
	Outer func(http.Handler) http.Handler
}

// Service is a guarded handler.
type Service struct {
	t          testing.TB
	Middleware *idempotency.Middleware
	Handler    http.Handler // with the middleware and Setup.Outer
	Store      *SpyStore    // nil if Setup.Store is no SpyStore
	Journal    Journal      // events, unless Setup.Opts has an Observer
	Runs       atomic.Int64 // runs of the handler
	Server     *httptest.Server
}

// Guard puts handler behind a middleware.
func (s Setup) Guard(t testing.TB, handler http.HandlerFunc) *Service {
	t.Helper()
	svc := &Service{t: t}
	if s.Store == nil {
		s.Store = NewSpyStore()
	}
	svc.Store, _ = s.Store.(*SpyStore)
	if s.User == nil {
		s.User = idempotency.SingleUser
	}
	if s.Opts.Logger == nil {
		s.Opts.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Opts.Observer == nil {
		s.Opts.Observer = svc.Journal.Observe
	}
	m, err := idempotency.New(s.Store, s.User, s.Opts)
	require.NoError(t, err)
	ShutdownAtEnd(t, m)
	svc.Middleware = m
	svc.Handler = m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		svc.Runs.Add(1)
		handler(w, r)
	}))
	if s.Outer != nil {
		svc.Handler = s.Outer(svc.Handler)
	}
	return svc
}

// Serve puts handler behind a middleware on a real server.
func (s Setup) Serve(t testing.TB, handler http.HandlerFunc) *Service {
	t.Helper()
	svc := s.Guard(t, handler)
	svc.Server = Listen(t, svc.Handler, false)
	return svc
}

// Send sends a POST request to target over the network. An empty key means a request without a key.
func (s *Service) Send(target, key, body string, edits ...Edit) Answer {
	r, err := http.NewRequest(http.MethodPost, s.Server.URL+target, strings.NewReader(body))
	if err != nil {
		return Answer{Err: err}
	}
	r.GetBody = nil // otherwise the transport repeats the request after a broken connection
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, edit := range edits {
		edit(r)
	}
	resp, err := s.Server.Client().Do(r)
	if err != nil {
		return Answer{Err: err}
	}
	defer resp.Body.Close()
	resp.Header.Del("Date")
	b, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, string(b), err}
}

// Post sends a request to /payments, and fails the test without an answer.
func (s *Service) Post(key, body string, edits ...Edit) Answer {
	s.t.Helper()
	got := s.Send("/payments", key, body, edits...)
	assert.NoError(s.t, got.Err)
	return got
}

// Call calls the handler directly, without a network.
func (s *Service) Call(key, body string, edits ...Edit) Answer {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	s.Handler.ServeHTTP(w, r)
	return Answer{Status: w.Code, Header: w.Result().Header, Body: w.Body.String()}
}

// HangUp sends a request, and cancels the request after working, by which the handler tells that it runs. HangUp
// returns after gone, by which the handler tells that the server has noticed.
func (s *Service) HangUp(t *testing.T, key string, working <-chan struct{}, gone <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan Answer)
	go func() { answered <- s.Send("/payments", key, "b", WithContext(ctx)) }()
	<-working
	cancel()
	require.Error(t, (<-answered).Err)
	<-gone
}

// ShutdownAtEnd ends the background work of r at the end of the test.
func ShutdownAtEnd(t testing.TB, r interface{ Shutdown(context.Context) error }) {
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Shutdown(ctx) // the error reports only that work was still running
	})
}

// Listen starts a server: with TLS and HTTP/2 if http2 is true, otherwise with HTTP/1.1.
func Listen(t testing.TB, handler http.Handler, http2 bool) *httptest.Server {
	t.Helper()
	server := &httptest.Server{Listener: servertest.Listen(t), EnableHTTP2: http2, Config: &http.Server{
		Handler: handler, ErrorLog: log.New(io.Discard, "", 0), // some tests panic in the handler
	}}
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	if server.Listener.Addr().Network() == "memory" { // the usual DialContext also resolves example.com to the server
		server.Client().Transport.(*http.Transport).DialContext = servertest.Dial
	}
	t.Cleanup(server.Close)
	return server
}

// Echo answers 201 with the body of the request.
func Echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

// EchoOrFail answers like Echo, except that the body "fail" gets status 500, which is not stored.
func EchoOrFail(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if string(body) == "fail" {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

// AttemptNumber answers with the number of the attempt.
func AttemptNumber(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	_, _ = fmt.Fprint(w, "attempt ", op.Attempt)
}

// Status returns a handler that answers with code and without a body.
func Status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}
