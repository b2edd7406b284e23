package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// newGuard returns the middleware with the settings of c. The error reports all faults of the options.
func newGuard(c *config, store idempotency.Store, user idempotency.UserFunc, m *proxyMetrics, log *slog.Logger) (
	*idempotency.Middleware, error,
) {
	opts := idempotency.Options{
		Headers:            c.keyHeaders,
		Methods:            c.methods,
		Required:           c.keyRequired,
		Fingerprint:        fingerprintsByName[c.fingerprintName],
		FingerprintHeaders: c.fingerprintHeaders,
		MaxBody:            c.maxBody,
		MaxBodies:          c.maxBodies,
		MaxResponse:        c.maxResponse,
		ReuseStatus:        c.reuseStatus,
		ProblemBase:        c.problemBase,
		TTL:                c.answerTTL,
		Lease:              c.leaseDuration,
		Wait:               c.waitLimit,
		Abandoned:          policiesByName[c.abandonedPolicy],
		StoreTimeout:       c.storeTimeout,
		FailOpen:           c.failOpen,
		Observer:           newObserver(m, log),
		Logger:             log,
	}
	if c.isSingleUser {
		opts.MaxUserBodies = c.maxBodies // the single user may use all bytes
	}
	if !c.ignoreHost {
		opts.Endpoint = c.hostEndpoint
	}
	return idempotency.New(store, user, opts)
}

// newObserver returns an observer that counts outcomes. The observer also logs the reason for an unknown user, because the client
// never sees the reason.
func newObserver(m *proxyMetrics, log *slog.Logger) idempotency.Observer {
	return func(ctx context.Context, e idempotency.Event) {
		m.countOutcome(e)
		if errors.Is(e.Err, idempotency.ErrUserUnknown) {
			log.InfoContext(ctx, "user unknown", "error", e.Err)
		}
	}
}

// limitBodyTime bounds the arrival of the body of a guarded request by -body-timeout, because a slow body uses up a part of
// -max-bodies.
func (c *config) limitBodyTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		if r.Body != http.NoBody && c.readsBody(r) && conn.SetReadDeadline(time.Now().Add(c.bodyTimeout)) == nil {
			r = r.WithContext(r.Context()) // a copy, because net/http inspects the body of the original request
			r.Body = &deadlineBody{r.Body, conn}
		}
		next.ServeHTTP(w, r)
	})
}

// readsBody reports whether the middleware reads the body of r.
func (c *config) readsBody(r *http.Request) bool {
	return slices.Contains(c.methods, r.Method) && c.wantsGuard(r)
}

// wantsGuard reports whether the middleware guards r, provided that the method is one of -methods.
func (c *config) wantsGuard(r *http.Request) bool {
	hasKey := func(name string) bool { return len(r.Header.Values(name)) > 0 }
	return c.keyRequired || slices.ContainsFunc(c.keyHeaders, hasKey)
}

// deadlineBody is a body that must arrive before the read deadline of its connection. The end of the body removes the deadline,
// because net/http continues to read from the connection to detect that the client leaves.
type deadlineBody struct {
	io.ReadCloser
	connection *http.ResponseController
}

func (b *deadlineBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.connection.SetReadDeadline(time.Time{})
	}
	return n, err
}

// hostEndpoint returns an endpoint with the host, so that a key belongs to a host. A service may have several hosts, and a replay
// must not give the answer of a host to a request for another host.
func (c *config) hostEndpoint(r *http.Request) string {
	return c.forwardedHosts(r) + " " + idempotency.DefaultEndpoint(r)
}

// forwardedHosts returns the host that the service gets in X-Forwarded-Host, because a proxy in front may have changed Host. With
// -preserve-host, the service also gets Host, so forwardedHosts returns both.
func (c *config) forwardedHosts(r *http.Request) string {
	forwarded := r.Header["X-Forwarded-Host"]
	if len(forwarded) == 0 || !c.trustedPeers.containsPeer(r.RemoteAddr) {
		return withoutDefaultPort(r.Host)
	}
	name := url.PathEscape(withoutDefaultPort(strings.Join(forwarded, ","))) // free of spaces, like a Host
	if c.preserveHost {
		name += " " + withoutDefaultPort(r.Host)
	}
	return name
}

// withoutDefaultPort returns the host in lower case, without port 80 or 443.
func withoutDefaultPort(hostport string) string {
	name, port, err := net.SplitHostPort(hostport)
	if err != nil || port != "80" && port != "443" {
		name = hostport
	}
	return strings.ToLower(name)
}
