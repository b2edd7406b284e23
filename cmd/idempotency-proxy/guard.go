package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"

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
		TTL:                c.ttl,
		Lease:              c.lease,
		Wait:               c.wait,
		Abandoned:          abandoned[c.abandoned],
		StoreTimeout:       c.storeTimeout,
		FailOpen:           c.failOpen,
		Observer:           observer(m, log),
		Logger:             log,
	}
	if !c.ignoreHost {
		opts.Endpoint = endpoint
	}
	return idempotency.New(store, user, opts)
}

// observer has outcomes counted. Why a user is unknown is logged, because the client is not told.
func observer(m *metrics, log *slog.Logger) idempotency.Observer {
	return func(ctx context.Context, e idempotency.Event) {
		m.observe(e)
		if errors.Is(e.Err, idempotency.ErrUserUnknown) {
			log.InfoContext(ctx, "user unknown", "error", e.Err)
		}
	}
}

// endpoint scopes a key to the method, the host and the path that the client asked for. The service may tell hosts
// apart by Host or X-Forwarded-Host, and must not answer for one of them what it has answered for another.
func endpoint(r *http.Request) string {
	path := r.URL.EscapedPath()
	if strings.HasPrefix(r.RequestURI, "/") { // as it was sent
		path, _, _ = strings.Cut(r.RequestURI, "?")
	}
	return r.Method + " " + host(r) + path
}

// host returns the host of a request without the port that its scheme implies.
func host(r *http.Request) string {
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil || port != "80" && port != "443" {
		name = r.Host
	}
	return strings.ToLower(name)
}
