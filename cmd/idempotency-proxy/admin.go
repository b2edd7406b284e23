package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

// lives asks the proxy whose admin listener has that address whether it lives. A container without a shell has nothing
// else that could ask.
func lives(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("-admin: %w", err)
	}
	client := http.Client{Timeout: pingTimeout, Transport: new(http.Transport)} // by no proxy of the environment
	resp, err := client.Get("http://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port) + "/healthz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New("/healthz: " + resp.Status)
	}
	return nil
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
