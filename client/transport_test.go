package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestTransportEndsAtOnceWhenTheMiddlewareRefusesForGood(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 4}, Outer: func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, _ int) { next.ServeHTTP(w, r) })
	}}.Serve(t, testservice.Echo)
	ctx := client.WithKey(t.Context(), "k")

	require.Equal(t, 201, do(impatient(svc.Server), newPost(t, svc.Server.URL, "too long").WithContext(ctx)).Status)
	again := do(impatient(svc.Server), newPost(t, svc.Server.URL, "too long").WithContext(ctx))
	testservice.RequireProblem(t, again, 409, "not-replayable")
	reused := do(impatient(svc.Server), newPost(t, svc.Server.URL, "another").WithContext(ctx))
	testservice.RequireProblem(t, reused, 409, "key-reused")
	got.requireOneKey(t, 3)
}

func TestErrorTellsAttemptsAndKey(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close() // so that nobody listens there
	transport, seen := impatient(server), attempts{}
	transport.Base, transport.Quoted = seen.of(transport.Base), true
	a := do(transport, newPost(t, server.URL, "order 1").WithContext(client.WithKey(t.Context(), "k-1")))

	failure, ok := errors.AsType[*client.Error](a.Err)
	require.True(t, ok)
	require.Equal(t, 4, failure.Attempts)
	require.Equal(t, "k-1", failure.Key)
	require.ErrorContains(t, a.Err, "after 4 attempt(s): "+failure.Err.Error())
	_, ok = errors.AsType[*net.OpError](a.Err)
	require.True(t, ok, "the network's error is gone: %v", a.Err)
	require.Len(t, seen.list(), 4)
}

func TestErrorIsATimeoutIfItsCauseIs(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{context.DeadlineExceeded, io.EOF} {
		transport := client.Transport{Hosts: []string{"service.test"}, MaxAttempts: 1}
		transport.Base = baseFunc(func(*http.Request) (*http.Response, error) { return nil, cause })
		failure, ok := errors.AsType[*url.Error](do(&transport, newPost(t, "http://service.test", "")).Err)
		require.True(t, ok)
		require.Equal(t, cause == context.DeadlineExceeded, failure.Timeout())
	}
}

// lose returns a wrapper that loses the first answers of a guarded handler, in the way that lost names.
func lose(lost string, times int, got *arrivals) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, n int) {
			if n > times {
				next.ServeHTTP(w, r)
				return
			}
			if lost != "before the handler ran" {
				next.ServeHTTP(httptest.NewRecorder(), r)
			}
			part, cut := map[string]string{
				"in the status line": "HTTP/1.1 201 Cre",
				"in the header":      "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n",
				"in the body":        "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n\r\nord",
			}[lost]
			if !cut {
				panic(http.ErrAbortHandler)
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, part)
			_ = conn.Close()
		})
	}
}

func TestLostAnswersTakeEffectOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{
		"before the handler ran", "before the answer began", "in the status line", "in the header",
	} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			svc := testservice.Setup{Outer: lose(lost, 3, &got)}.Serve(t, testservice.Echo)
			a := do(impatient(svc.Server), newPost(t, svc.Server.URL+"/payments", "order 1"))

			require.NoError(t, a.Err)
			require.Equal(t, testservice.Answer{Status: 201, Body: "order 1"}, testservice.Answer{Status: a.Status, Body: a.Body})
			require.Equal(t, lost != "before the handler ran", a.Replayed())
			require.EqualValues(t, 1, svc.Runs.Load())
			got.requireOneKey(t, 4)
		})
	}
}

func TestAnswerCutInItsBodyIsTheCallersToAskForAgain(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: lose("in the body", 1, &got)}.Serve(t, testservice.Echo)
	r := newPost(t, svc.Server.URL+"/payments", "order 1").WithContext(client.WithKey(t.Context(), "k-1"))

	a := do(impatient(svc.Server), r)
	require.ErrorIs(t, a.Err, io.ErrUnexpectedEOF)
	got.requireOneKey(t, 1)

	r.Body, _ = r.GetBody()
	a = do(impatient(svc.Server), r)
	require.True(t, a.Replayed())
	require.Equal(t, "order 1", a.Body)
	require.EqualValues(t, 1, svc.Runs.Load())
	got.requireOneKey(t, 2)
}

// net/http itself sends a request with an Idempotency-Key again, if a reused connection fails before the answer begins.
func TestResendingByNetHTTPTakesEffectOnce(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 2 { // the connection was kept alive by the first request
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}}.Serve(t, testservice.Echo)
	var seen attempts
	transport := impatient(svc.Server)
	transport.MaxAttempts, transport.Base = 1, seen.of(transport.Base)

	require.NoError(t, do(transport, newPost(t, svc.Server.URL+"/payments", "order 1")).Err)
	a := do(transport, newPost(t, svc.Server.URL+"/payments", "order 2"))
	require.NoError(t, a.Err)
	require.True(t, a.Replayed())
	require.Equal(t, "order 2", a.Body)

	all := got.list()
	require.Len(t, all, 3, "net/http did not send again")
	require.Equal(t, all[1], all[2])
	require.Len(t, seen.list(), 2, "one attempt for each request")
	require.EqualValues(t, 2, svc.Runs.Load())
}

func TestConnectionClosedWhileIdleIsReplaced(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, _ int) { next.ServeHTTP(w, r) })
	}}.Serve(t, testservice.Echo)
	for n := range 20 {
		a := do(impatient(svc.Server), newPost(t, svc.Server.URL+"/payments", fmt.Sprint("order ", n)))
		require.NoError(t, a.Err)
		require.Equal(t, fmt.Sprint("order ", n), a.Body)
		svc.Server.CloseClientConnections() // which races with the next request
	}
	require.EqualValues(t, 20, svc.Runs.Load())
}

func TestTransportHosts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		entry, url string
		named      bool
	}{
		{"api.test", "https://api.test/payments", true},
		{"api.test", "http://api.test:8443/", true},
		{"api.test", "https://API.test/", true},
		{"API.test", "https://api.test/", true},
		{"api.test:8443", "https://api.test:8443/", true},
		{"api.test:8443", "https://api.test/", false},
		{"api.test:8443", "https://api.test:443/", false},
		{"api.test:443", "https://api.test/", false}, // the URL does not say so
		{"api.test", "https://eu.api.test/", false},
		{"api.test", "https://api.test.evil.test/", false},
		{"api.test", "https://api.test@evil.test/", false},
		{"api.test", "https://evil.test/api.test", false},
		{"*.api.test", "https://eu.api.test/", false},
		{"*", "https://api.test/", false},
		{"", "https://api.test/", false},
		{"https://api.test", "https://api.test/", false},
		{"::1", "http://[::1]/", true},
		{"[::1]:8080", "http://[::1]:8080/", true},
	}
	for _, tt := range tests {
		sent := 0
		transport := client.Transport{Hosts: []string{"other.test", tt.entry}, MinDelay: 1, MaxAttempts: 2}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			sent++
			require.Equal(t, tt.named, r.Header.Get("Idempotency-Key") != "", "%s: %s", tt.entry, tt.url)
			return replying(503, nil)(r)
		})
		require.Equal(t, 503, do(&transport, newPost(t, tt.url, "order 1")).Status)
		require.Equal(t, map[bool]int{false: 1, true: 2}[tt.named], sent, "%s: %s", tt.entry, tt.url)
	}
}

func TestOneTransportForManyRequests(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]int)
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen[r.Header.Get("Idempotency-Key")]++
			n := seen[r.Header.Get("Idempotency-Key")]
			mu.Unlock()
			if n == 1 {
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}}.Serve(t, testservice.Echo)
	transport := impatient(svc.Server)
	const requests = 32
	var wg sync.WaitGroup
	for n := range requests {
		wg.Go(func() {
			a := do(transport, newPost(t, svc.Server.URL+"/payments", fmt.Sprint("order ", n)))
			assert.NoError(t, a.Err)
			assert.Equal(t, fmt.Sprint("order ", n), a.Body)
			assert.True(t, a.Replayed())
		})
	}
	wg.Wait()
	require.Len(t, seen, requests)
	require.EqualValues(t, requests, svc.Runs.Load())
}

func TestZeroTransportSendsEverythingOnce(t *testing.T) {
	t.Parallel()
	var got arrivals
	server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}), false)
	require.Equal(t, 503, do(new(client.Transport), newPost(t, server.URL, "order 1")).Status)
	require.Len(t, got.list(), 1)
	require.Empty(t, got.list()[0].keys)
}

func TestIdleConnectionsAreClosedInTheBase(t *testing.T) {
	t.Parallel()
	base := &idle{}
	(&http.Client{Transport: &client.Transport{Base: base}}).CloseIdleConnections()
	require.True(t, base.closed)
	(&http.Client{Transport: &client.Transport{Base: replying(200, nil)}}).CloseIdleConnections()
}

type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

// summing is a body that sets a trailer at its end.
type summing struct {
	io.Reader
	of *http.Request
}

func (s summing) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err == io.EOF {
		s.of.Trailer.Set("X-Sum", "1")
	}
	return n, err
}

func (summing) Close() error { return nil }

func TestTransportSendsTrailers(t *testing.T) {
	t.Parallel()
	sums := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sums <- r.Trailer.Get("X-Sum")
	}))
	defer server.Close()
	r := newPost(t, server.URL, "")
	r.Body, r.ContentLength, r.Trailer = summing{io.LimitReader(strings.NewReader("body"), 4), r}, -1, http.Header{"X-Sum": nil}
	require.Equal(t, http.StatusOK, do(impatient(server), r).Status)
	require.Equal(t, "1", <-sums)
}

// A program that only sends requests links no package for servers, and none of their dependencies.
func TestPackageLinksNothingOfTheServer(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	linked, err := list.Output()
	require.NoError(t, err)
	require.Equal(t, []string{"github.com/google/uuid", "github.com/idempotency-go/idempotency/client"}, strings.Fields(string(linked)))
}
