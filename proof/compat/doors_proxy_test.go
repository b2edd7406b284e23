package compat_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// proxyDoor is a gateway by httputil.ReverseProxy, which guards a service. The handlers are the service's handlers.
func proxyDoor() door {
	d := &proxyWays{door{name: "httputil.ReverseProxy"}}
	n := netHTTPDoor("", nil)
	d.way(returned, "200 and a header", replayed, created)
	d.way(erring, "402", replayed, respond(http.StatusPaymentRequired, "declined"))
	d.way(erring, "409 and Retry-After", runsAgain, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		respond(http.StatusConflict, "locked")(w, r)
	})
	d.way(erring, "503", runsAgain, respond(http.StatusServiceUnavailable, "down"))
	d.way(erring, "502", runsAgain, respond(http.StatusBadGateway, "down"))
	d.way(aborting, "the service drops the connection", runsAgain, func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	})
	d.way(aborting, "the service drops the connection within the body", runsAgain, abortLate)
	d.way(panicking, "panic of the service", runsAgain, crash)
	d.add(aborting, "no connection to the service", runsAgain, func(p *httputil.ReverseProxy, s *stage) {
		p.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
			s.enter()
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
	}, func(http.ResponseWriter, *http.Request) { panic("must not be reached") })
	d.way(asJSON, "JSON", replayed, n.json)
	d.way(asString, "text", replayed, respond(http.StatusAccepted, receipt))
	d.way(asFile, "http.ServeFile", replayed, func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "go.mod")
	})
	d.way(redirecting, "303 and Location", replayed, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/done", http.StatusSeeOther)
	})
	d.way(streaming, "Flush", replayed, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "charged ")
			_ = http.NewResponseController(w).Flush()
		}
	})
	d.way(streaming, "text/event-stream", replayed, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: charged\n\n")
		_ = http.NewResponseController(w).Flush()
		fmt.Fprint(w, "data: done\n\n")
	})
	d.way(streaming, "trailers", replayed, trailing)
	d.way(statusOnly, "204", replayed, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	d.way(statusOnly, "304", replayed, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotModified)
	})
	d.way(silently, "an empty 200", replayed, func(http.ResponseWriter, *http.Request) {})
	d.leaving()
	d.add(timingOut, "ResponseHeaderTimeout", runsAgain, func(p *httputil.ReverseProxy, _ *stage) {
		p.Transport.(*http.Transport).ResponseHeaderTimeout = shortly
	}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise net/http does not notice that the gateway leaves
		_ = tooLong(r.Context())
	})
	d.add(errorHandler, "ErrorHandler", replayed, func(p *httputil.ReverseProxy, _ *stage) {
		p.ErrorHandler = func(w http.ResponseWriter, r *http.Request, _ error) { respond(http.StatusGone, "gone")(w, r) }
	}, crash)
	d.add(errorHandler, "ModifyResponse that fails", runsAgain, func(p *httputil.ReverseProxy, _ *stage) {
		p.ModifyResponse = func(*http.Response) error { return errors.New("not for clients") }
	}, created)
	long := respond(http.StatusOK, strings.Repeat("charged ", 1000))
	d.layer(recovering, "chi's middleware.Recoverer", runsAgain, abortLate, quietly, middleware.Recoverer)
	d.layer(compressOut, "chi's middleware.Compress", replayed, long, middleware.Compress(5))
	d.way(compressIn, "gzip by the service", replayed, middleware.Compress(5)(long).ServeHTTP)
	return d.door
}

// proxyWays is a door whose handlers are behind a gateway.
type proxyWays struct{ door }

func (d *proxyWays) way(k kind, name string, retry fate, h http.HandlerFunc) {
	d.add(k, name, retry, func(*httputil.ReverseProxy, *stage) {}, h)
}

// add adds a way: a gateway, changed by edit, and a service behind the gateway.
func (d *proxyWays) add(
	k kind, name string, retry fate, edit func(*httputil.ReverseProxy, *stage), h http.HandlerFunc,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		gateway := newGateway(t, http1.listen(t, s.counted(h)).URL)
		edit(gateway, s)
		return s.listen(t, s.guard(t, gateway)) + "/charges/1"
	}})
}

// layer adds a way with layers around the gateway.
func (d *proxyWays) layer(
	k kind, name string, retry fate, h http.HandlerFunc, layers ...func(http.Handler) http.Handler,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		gateway := newGateway(t, http1.listen(t, s.counted(h)).URL)
		return s.listen(t, around(layers...)(t, s.guard(t, gateway))) + "/charges/1"
	}})
}

func (d *proxyWays) leaving() {
	d.ways = append(d.ways, way{leaving, "the gateway waits", replayed, func(t testing.TB, s *stage) string {
		service := s.counted(func(w http.ResponseWriter, r *http.Request) {
			if s.wait(r.Context()) == nil {
				created(w, r)
			}
		})
		return s.listen(t, s.guard(t, newGateway(t, http1.listen(t, service).URL))) + "/charges/1"
	}})
}

// newGateway returns a gateway that tells clients what an error means for a retry, as in the examples.
func newGateway(t testing.TB, service string) *httputil.ReverseProxy {
	t.Helper()
	to, err := url.Parse(service)
	require.NoError(t, err)
	gateway := proxyTo(t, service)
	gateway.Rewrite = func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Del("Idempotency-Key")
	}
	gateway.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		if failure, ok := errors.AsType[*net.OpError](err); ok && failure.Op == "dial" {
			idempotency.Decide(r.Context(), idempotency.Free)
		} else {
			idempotency.Decide(r.Context(), idempotency.Unknown)
		}
		http.Error(w, "the service does not answer", http.StatusBadGateway)
	}
	gateway.FlushInterval = time.Millisecond
	return gateway
}
