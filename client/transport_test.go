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
		return got.recordRequests(func(w http.ResponseWriter, r *http.Request, _ int) { next.ServeHTTP(w, r) })
	}}.Serve(t, testservice.Echo)
	ctx := client.WithKey(t.Context(), "k")

	first := sendRequest(newImpatientTransport(svc.Server), newPostRequest(t, svc.Server.URL, "too long").WithContext(ctx))
	require.Equal(t, 201, first.Status)
	again := sendRequest(newImpatientTransport(svc.Server), newPostRequest(t, svc.Server.URL, "too long").WithContext(ctx))
	testservice.RequireProblem(t, again, 409, "not-replayable")
	reused := sendRequest(newImpatientTransport(svc.Server), newPostRequest(t, svc.Server.URL, "another").WithContext(ctx))
	testservice.RequireProblem(t, reused, 409, "key-reused")
	got.requireOneKey(t, 3)
}

func TestErrorTellsAttemptsAndKey(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close() // so that connections are refused
	transport, seen := newImpatientTransport(server), attempts{}
	transport.Base, transport.Quoted = seen.recordAttempts(transport.Base), true
	a := sendRequest(transport, newPostRequest(t, server.URL, "order 1").WithContext(client.WithKey(t.Context(), "k-1")))

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
		failure, ok := errors.AsType[*url.Error](sendRequest(&transport, newPostRequest(t, "http://service.test", "")).Err)
		require.True(t, ok)
		require.Equal(t, cause == context.DeadlineExceeded, failure.Timeout())
	}
}

// loseAnswers returns middleware that loses the first answers of a guarded handler. The parameter point says at which point
// of the exchange the connection breaks.
func loseAnswers(point string, times int, got *arrivals) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return got.recordRequests(func(w http.ResponseWriter, r *http.Request, n int) {
			if n > times {
				next.ServeHTTP(w, r)
				return
			}
			if point != "before the handler ran" {
				next.ServeHTTP(httptest.NewRecorder(), r)
			}
			partialAnswer, isPartial := map[string]string{
				"in the status line": "HTTP/1.1 201 Cre",
				"in the header":      "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n",
				"in the body":        "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n\r\nord",
			}[point]
			if !isPartial {
				panic(http.ErrAbortHandler)
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, partialAnswer)
			_ = conn.Close()
		})
	}
}

func TestLostAnswersTakeEffectOnce(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"before the handler ran", "before the answer began", "in the status line", "in the header",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			svc := testservice.Setup{Outer: loseAnswers(point, 3, &got)}.Serve(t, testservice.Echo)
			a := sendRequest(newImpatientTransport(svc.Server), newPostRequest(t, svc.Server.URL+"/payments", "order 1"))

			require.NoError(t, a.Err)
			require.Equal(t, testservice.Answer{Status: 201, Body: "order 1"}, testservice.Answer{Status: a.Status, Body: a.Body})
			require.Equal(t, point != "before the handler ran", a.Replayed())
			require.EqualValues(t, 1, svc.Runs.Load())
			got.requireOneKey(t, 4)
		})
	}
}

func TestAnswerCutInItsBodyIsTheCallersToAskForAgain(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: loseAnswers("in the body", 1, &got)}.Serve(t, testservice.Echo)
	r := newPostRequest(t, svc.Server.URL+"/payments", "order 1").WithContext(client.WithKey(t.Context(), "k-1"))

	a := sendRequest(newImpatientTransport(svc.Server), r)
	require.ErrorIs(t, a.Err, io.ErrUnexpectedEOF)
	got.requireOneKey(t, 1)

	r.Body, _ = r.GetBody()
	a = sendRequest(newImpatientTransport(svc.Server), r)
	require.True(t, a.Replayed())
	require.Equal(t, "order 1", a.Body)
	require.EqualValues(t, 1, svc.Runs.Load())
	got.requireOneKey(t, 2)
}

// If a reused connection fails before the answer begins, net/http itself repeats a request with an Idempotency-Key.
func TestResendingByNetHTTPTakesEffectOnce(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return got.recordRequests(func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 2 { // on the connection of the first request
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}}.Serve(t, testservice.Echo)
	var seen attempts
	transport := newImpatientTransport(svc.Server)
	transport.MaxAttempts, transport.Base = 1, seen.recordAttempts(transport.Base)

	require.NoError(t, sendRequest(transport, newPostRequest(t, svc.Server.URL+"/payments", "order 1")).Err)
	a := sendRequest(transport, newPostRequest(t, svc.Server.URL+"/payments", "order 2"))
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
		return got.recordRequests(func(w http.ResponseWriter, r *http.Request, _ int) { next.ServeHTTP(w, r) })
	}}.Serve(t, testservice.Echo)
	for n := range 20 {
		a := sendRequest(newImpatientTransport(svc.Server), newPostRequest(t, svc.Server.URL+"/payments", fmt.Sprint("order ", n)))
		require.NoError(t, a.Err)
		require.Equal(t, fmt.Sprint("order ", n), a.Body)
		svc.Server.CloseClientConnections() // at the same time as the next request
	}
	require.EqualValues(t, 20, svc.Runs.Load())
}

func TestTransportHosts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		entry, url string
		isNamed    bool
	}{
		{"api.test", "https://api.test/payments", true},
		{"api.test", "http://api.test:8443/", true},
		{"api.test", "https://API.test/", true},
		{"API.test", "https://api.test/", true},
		{"api.test:8443", "https://api.test:8443/", true},
		{"api.test:8443", "https://api.test/", false},
		{"api.test:8443", "https://api.test:443/", false},
		{"api.test:443", "https://api.test/", false}, // the URL contains no port
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
			require.Equal(t, tt.isNamed, r.Header.Get("Idempotency-Key") != "", "%s: %s", tt.entry, tt.url)
			return replyWith(503, nil)(r)
		})
		require.Equal(t, 503, sendRequest(&transport, newPostRequest(t, tt.url, "order 1")).Status)
		require.Equal(t, map[bool]int{false: 1, true: 2}[tt.isNamed], sent, "%s: %s", tt.entry, tt.url)
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
	transport := newImpatientTransport(svc.Server)
	const requests = 32
	var wg sync.WaitGroup
	for n := range requests {
		wg.Go(func() {
			a := sendRequest(transport, newPostRequest(t, svc.Server.URL+"/payments", fmt.Sprint("order ", n)))
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
	server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}), false)
	require.Equal(t, 503, sendRequest(new(client.Transport), newPostRequest(t, server.URL, "order 1")).Status)
	require.Len(t, got.list(), 1)
	require.Empty(t, got.list()[0].keys)
}

func TestIdleConnectionsAreClosedInTheBase(t *testing.T) {
	t.Parallel()
	base := &closableBase{}
	(&http.Client{Transport: &client.Transport{Base: base}}).CloseIdleConnections()
	require.True(t, base.isClosed)
	(&http.Client{Transport: &client.Transport{Base: replyWith(200, nil)}}).CloseIdleConnections()
}

// closableBase is a Base that records a call of CloseIdleConnections.
type closableBase struct {
	http.RoundTripper
	isClosed bool
}

func (b *closableBase) CloseIdleConnections() { b.isClosed = true }

// trailerBody is the body of a request. The end of the body sets a trailer of the request.
type trailerBody struct {
	io.Reader
	request *http.Request
}

func (b trailerBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.request.Trailer.Set("X-Sum", "1")
	}
	return n, err
}

func (trailerBody) Close() error { return nil }

func TestTransportSendsTrailers(t *testing.T) {
	t.Parallel()
	sums := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sums <- r.Trailer.Get("X-Sum")
	}))
	defer server.Close()
	r := newPostRequest(t, server.URL, "")
	r.Body = trailerBody{io.LimitReader(strings.NewReader("body"), 4), r}
	r.ContentLength, r.Trailer = -1, http.Header{"X-Sum": nil}
	require.Equal(t, http.StatusOK, sendRequest(newImpatientTransport(server), r).Status)
	require.Equal(t, "1", <-sums)
}

// A program that only sends requests links neither the packages for servers nor their dependencies.
func TestPackageLinksNothingOfTheServer(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	linked, err := list.Output()
	require.NoError(t, err)
	want := []string{"github.com/google/uuid", "github.com/idempotency-go/idempotency/client"}
	require.Equal(t, want, strings.Fields(string(linked)))
}
