package compat_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// behaviour is a way in which a plain handler behaves.
type behaviour struct {
	name    string
	handler http.HandlerFunc
	first   string // status of the first answer
	runs    int64  // runs for a request and its retry
}

const receipt = "charged"

// behaviours must pass through every wrapper unchanged.
var behaviours = []behaviour{
	{"201", created, "201", 1},
	{"204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "204", 1},
	{"large", respond(http.StatusOK, strings.Repeat("charged ", 10_000)), "200", 1},
	{"trailers", trailing, "201", 1},
	{"422", respond(http.StatusUnprocessableEntity, `{"error":"amount"}`), "422", 1},
	{"409 with Retry-After", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		respond(http.StatusConflict, "locked")(w, r)
	}, "409", 2},
	{"499", respond(499, "you have left"), "499", 2},
	{"503", respond(http.StatusServiceUnavailable, "no"), "503", 2},
}

func respond(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/charges/1")
	w.Header().Add("Link", "</a>; rel=next")
	w.Header().Add("Link", "</b>; rel=prev")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, receipt)
}

func trailing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Trailer", "Charge-Sum")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, receipt)
	w.Header().Set("Charge-Sum", "1234")
	w.Header().Set(http.TrailerPrefix+"Charge-Time", "5 ms")
}

func crash(http.ResponseWriter, *http.Request) { panic("crash") }

func abort(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "half of")
	panic(http.ErrAbortHandler)
}

// plainly adapts a handler that needs no service.
func plainly(handler http.HandlerFunc) func(*service) http.Handler {
	return func(*service) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			handler(w, r)
		})
	}
}

// patient waits before its answer, and returns without an answer if its context ends.
func patient(s *service) http.Handler {
	return plainly(func(w http.ResponseWriter, r *http.Request) {
		if s.wait(r.Context()) == nil {
			created(w, r)
		}
	})(s)
}

// stubborn answers after its context has ended.
func stubborn(s *service) http.Handler {
	return plainly(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		created(w, r)
	})(s)
}

// deaf waits before its answer, and ignores its context.
func deaf(s *service) http.Handler {
	return plainly(func(w http.ResponseWriter, r *http.Request) {
		_ = s.wait(context.WithoutCancel(r.Context()))
		created(w, r)
	})(s)
}

// each runs the scenario with a wrapper around the middleware, and with the wrapper between the middleware and the
// handler, over both protocols.
func each(t *testing.T, wrap wrapper, s scenario) {
	t.Helper()
	outside(t, wrap, s)
	inside(t, wrap, s)
}

func outside(t *testing.T, wrap wrapper, s scenario) {
	t.Helper()
	s.outer = wrap
	s.both(t, "outside")
}

func inside(t *testing.T, wrap wrapper, s scenario) {
	t.Helper()
	s.inner = wrap
	s.both(t, "inside")
}

func (s scenario) both(t *testing.T, name string) {
	t.Helper()
	for _, s.proto = range []protocol{http1, h2c} {
		t.Run(fmt.Sprint(name, ", ", s.proto), s.run)
	}
}

// wrapped is a wrapper that must pass every behaviour through.
type wrapped struct {
	wrap     wrapper
	panicked string // status of the answer when a handler panics
	chatty   bool   // the wrapper writes something even if the handler writes nothing
}

// test runs answers, failures, panics and leaving clients.
func (w wrapped) test(t *testing.T) {
	t.Helper()
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			each(t, w.wrap, scenario{handler: plainly(b.handler), first: b.first, retry: b.first, runs: b.runs})
		})
	}
	t.Run("panic", func(t *testing.T) {
		each(t, w.wrap, scenario{handler: plainly(crash), first: w.panicked, retry: w.panicked, runs: 2})
	})
	t.Run("client leaves", func(t *testing.T) {
		each(t, w.wrap, scenario{handler: patient, leaves: true, first: broken, retry: "201", runs: 1})
	})
	for name, opts := range map[string]idempotency.Options{
		"client leaves and takes the handler along": {CancelWithClient: true},
		"client leaves a stream":                    {Stream: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := scenario{handler: patient, opts: opts, leaves: true, first: broken, retry: "201", runs: 2}
			outside(t, w.wrap, s)
			if !w.chatty {
				inside(t, w.wrap, s)
			}
		})
	}
}

func timeoutHandler(after time.Duration) wrapper {
	return around(func(next http.Handler) http.Handler { return http.TimeoutHandler(next, after, "late") })
}

func TestTimeoutHandler(t *testing.T) {
	t.Parallel()
	wrapped{wrap: timeoutHandler(long), panicked: broken}.test(t)
	t.Run("obeyed", func(t *testing.T) {
		each(t, timeoutHandler(shortly), scenario{bubble: true, handler: patient, first: "503", retry: "503", runs: 2})
	})
	t.Run("ignored", func(t *testing.T) {
		late := scenario{bubble: true, handler: deaf, late: true, first: "503", retry: "201", runs: 1}
		outside(t, timeoutHandler(shortly), late)
		late.runs = 2
		inside(t, timeoutHandler(shortly), late)
	})
}

// The handler must not see the end of its context before the timeout layer does, because the layer would take the
// handler's silence for an answer. A single request rarely loses this race, so the test sends many requests.
func TestTimeoutIsAnsweredByTheOuterLayer(t *testing.T) {
	t.Parallel()
	for status, outer := range map[string]wrapper{
		"503": timeoutHandler(shortly), "504": chiRouter(middleware.Timeout(shortly)),
	} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := scenario{outer: outer, handler: patient}.start(t, true)
				const many = 50
				got := make(chan string, many)
				for n := range many {
					go func() { got <- s.send(strconv.Itoa(n)).status }()
				}
				for range many {
					require.Equal(t, status, receive(t, got))
				}
			})
		})
	}
}
