package main

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// pingTimeout bounds the question whether the store can be reached.
const pingTimeout = 2 * time.Second

// admin answers those who watch the proxy.
type admin struct {
	stopping atomic.Bool
	failOpen bool
	store    *backing
	metrics  *metrics
}

func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "alive\n") })
	mux.HandleFunc("GET /readyz", a.ready)
	mux.Handle("GET /metrics", a.metrics.handler())
	return mux
}

// ready answers whether requests should come here. The service behind is not asked: if it failed, no instance would be
// ready. Nor is the store, if requests are forwarded without it.
func (a *admin) ready(w http.ResponseWriter, r *http.Request) {
	if a.stopping.Load() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	if !a.failOpen && a.store.ping != nil && a.store.ping(ctx) != nil {
		http.Error(w, "store not reached", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ready\n")
}
