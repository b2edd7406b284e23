package compat_test

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// proxy puts a handler on its own server, behind a reverse proxy.
func proxy(t testing.TB, next http.Handler) http.Handler {
	t.Helper()
	return proxyTo(t, http1.listen(t, next).URL)
}

func proxyTo(t testing.TB, target string) *httputil.ReverseProxy {
	t.Helper()
	to, err := url.Parse(target)
	require.NoError(t, err)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = servertest.Dial
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0),
	}
}

// In the case "outside", the guarded service is behind a proxy. In the case "inside", the middleware is a gateway
// in front of a service.
func TestReverseProxy(t *testing.T) {
	t.Parallel()
	wrapped{wrap: proxy, panicked: "502"}.test(t)
	t.Run("upstream breaks off", func(t *testing.T) {
		outside(t, proxy, scenario{handler: plainly(abort), first: "502", retry: "502", runs: 2})
		inside(t, proxy, scenario{handler: plainly(abort), first: "502", retry: "502", runs: 2})
	})
	t.Run("upstream breaks off within the body", func(t *testing.T) {
		inside(t, proxy, scenario{handler: plainly(abortLate), first: broken, retry: broken, runs: 2})
	})
}

func abortLate(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "half of")
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// A gateway removes the header before a service that does not know keys, because net/http repeats a request with a
// key and without a body if a reused connection breaks.
func TestReverseProxyTakesTheKeyAway(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	s := scenario{
		handler: plainly(func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) > 1 {
				panic(http.ErrAbortHandler)
			}
			created(w, r)
		}),
		inner: func(t testing.TB, next http.Handler) http.Handler {
			gateway := proxyTo(t, http1.listen(t, next).URL)
			rewrite := gateway.Rewrite
			gateway.Rewrite = func(r *httputil.ProxyRequest) {
				rewrite(r)
				r.Out.Header.Del("Idempotency-Key")
			}
			return gateway
		},
	}.start(t, true)
	for n, status := range []int{http.StatusCreated, http.StatusBadGateway} {
		resp, err := s.keyed(strconv.Itoa(n), nil).Post(s.url+procedure, "text/plain", http.NoBody)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, status, resp.StatusCode)
	}
	require.EqualValues(t, 2, requests.Load())
}

// A gateway and the service behind it are both guarded. The service's in-progress refusal does not count as an
// answer.
func TestReverseProxyBetweenTwo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := scenario{
			handler: patient,
			inner: func(t testing.TB, next http.Handler) http.Handler {
				service := newMiddleware(t, newStore(), idempotency.Options{}).Handler(next)
				impatient := proxyTo(t, http1.listen(t, service).URL)
				impatient.Transport.(*http.Transport).ResponseHeaderTimeout = shortly
				return impatient
			},
		}.start(t, true)
		require.Equal(t, "502", s.send("key").status, "the gateway has lost its patience")
		busy := s.send("key")
		require.True(t, isProblem(busy, "in-progress"), busy.body)
		s.goOn()

		var late answer
		eventually(t, func() bool { late = s.send("key"); return late.status == "201" }, "the answer of the service")
		require.Equal(t, receipt, late.body)
		require.Equal(t, late.unmarked(), s.send("key").unmarked())
		require.EqualValues(t, 1, s.runs.Load())
	})
}

// A gateway tells clients what an error of its upstream means for a retry.
func TestReverseProxyDecides(t *testing.T) {
	t.Parallel()
	gateway := func(target string) func(testing.TB, http.Handler) http.Handler {
		return func(t testing.TB, next http.Handler) http.Handler {
			if target == "" {
				target = http1.listen(t, next).URL
			}
			proxy := proxyTo(t, target)
			proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
				verdict := idempotency.Unknown
				if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
					verdict = idempotency.Free
				}
				if !idempotency.Decide(r.Context(), verdict) {
					panic("no operation to decide about")
				}
				w.WriteHeader(http.StatusBadGateway)
			}
			return proxy
		}
	}
	refuse := idempotency.Options{Abandoned: idempotency.Refuse, Lease: 2 * time.Second}
	t.Run("dropped", func(t *testing.T) {
		t.Parallel()
		s := scenario{inner: gateway(""), opts: refuse, handler: plainly(abort)}.start(t, true)
		require.Equal(t, "502", s.send("key").status)
		s.requireUnknown(t, "key")
	})
	t.Run("dropped, executed again", func(t *testing.T) {
		t.Parallel()
		s := scenario{inner: gateway(""), handler: plainly(abort)}.start(t, true)
		require.Equal(t, "502", s.send("key").status)
		require.Equal(t, "502", s.send("key").status)
		require.EqualValues(t, 2, s.runs.Load())
	})
	t.Run("not dialed", func(t *testing.T) {
		t.Parallel()
		s := scenario{inner: gateway("http://127.0.0.1:1"), opts: refuse, handler: plainly(created)}.start(t, true)
		require.Equal(t, "502", s.send("key").status)
		require.Equal(t, "502", s.send("key").status, "it is tried again")
	})
}
