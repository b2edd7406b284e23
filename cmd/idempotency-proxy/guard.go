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

// newGuard returns the middleware that the operator has configured. The error has every fault of the options.
func newGuard(c *config, store idempotency.Store, user idempotency.UserFunc, m *metrics, log *slog.Logger) (
	*idempotency.Middleware, error,
) {
	opts := idempotency.Options{
		Headers:            c.keyHeaders,
		Methods:            c.methods,
		Required:           c.required,
		Fingerprint:        fingerprints[c.fingerprint],
		FingerprintHeaders: c.fingerprintHeaders,
		MaxBody:            c.maxBody,
		MaxBodies:          c.maxBodies,
		MaxResponse:        c.maxResponse,
		ReuseStatus:        c.reuseStatus,
		ProblemBase:        c.problemBase,
		TTL:                c.ttl,
		Lease:              c.lease,
		Wait:               c.wait,
		Abandoned:          abandoned[c.abandoned],
		StoreTimeout:       c.storeTimeout,
		FailOpen:           c.failOpen,
		Observer:           observer(m, log),
		Logger:             log,
	}
	if c.oneUser {
		opts.MaxUserBodies = c.maxBodies // all of it
	}
	if !c.ignoreHost {
		opts.Endpoint = c.endpoint
	}
	return idempotency.New(store, user, opts)
}

// observer has outcomes counted, and noted for the access log. Why a user is unknown is logged, because the client is not told.
func observer(m *metrics, log *slog.Logger) idempotency.Observer {
	return func(ctx context.Context, e idempotency.Event) {
		m.observe(e)
		noteOutcome(ctx, e.Outcome)
		if errors.Is(e.Err, idempotency.ErrUserUnknown) {
			log.InfoContext(ctx, "user unknown", "error", e.Err)
		}
	}
}

// inTime bounds how long the body of a guarded request may take to arrive. Until it is whole, it takes room from others.
func (c *config) inTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		if r.Body != http.NoBody && c.guards(r) && conn.SetReadDeadline(time.Now().Add(c.bodyTimeout)) == nil {
			r = r.WithContext(r.Context()) // net/http looks at the body of its own request
			r.Body = &timelyBody{r.Body, conn}
		}
		next.ServeHTTP(w, r)
	})
}

// guards reports whether the middleware reads the body of a request.
func (c *config) guards(r *http.Request) bool {
	return slices.Contains(c.methods, r.Method) && c.wantsGuard(r)
}

// wantsGuard reports whether the middleware guards a request if its method is one of -methods.
func (c *config) wantsGuard(r *http.Request) bool {
	hasKey := func(name string) bool { return len(r.Header.Values(name)) > 0 }
	return c.required || slices.ContainsFunc(c.keyHeaders, hasKey)
}

// timelyBody is a body that must arrive before the deadline of its connection. The deadline ends with it: net/http goes
// on to read, to see whether the client leaves.
type timelyBody struct {
	io.ReadCloser
	conn *http.ResponseController
}

func (b *timelyBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

// endpoint scopes a key to the host, too. The service may tell hosts apart, and must not answer for one of them what it
// has answered for another.
func (c *config) endpoint(r *http.Request) string {
	return c.hosts(r) + " " + idempotency.DefaultEndpoint(r)
}

// hosts returns the host that the service gets in X-Forwarded-Host: a proxy in front may have asked for another one
// than its client. With -preserve-host, the service gets that one, too.
func (c *config) hosts(r *http.Request) string {
	forwarded := r.Header["X-Forwarded-Host"]
	if len(forwarded) == 0 || !c.trusted.contain(r.RemoteAddr) {
		return host(r.Host)
	}
	name := url.PathEscape(host(strings.Join(forwarded, ","))) // has no space, as a Host
	if c.preserveHost {
		name += " " + host(r.Host)
	}
	return name
}

// host returns a host without the port that its scheme implies.
func host(hostport string) string {
	name, port, err := net.SplitHostPort(hostport)
	if err != nil || port != "80" && port != "443" {
		name = hostport
	}
	return strings.ToLower(name)
}
