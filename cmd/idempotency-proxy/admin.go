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

// pingTimeout bounds the ping of the store.
const pingTimeout = 2 * time.Second

// adminHandler serves the endpoints for monitoring.
type adminHandler struct {
	isStopping atomic.Bool
	failOpen   bool
	store      *storeBackend
	metrics    *proxyMetrics
}

func (a *adminHandler) newMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "alive\n") })
	mux.HandleFunc("GET /readyz", a.serveReady)
	mux.Handle("GET /metrics", a.metrics.newMetricsHandler())
	return mux
}

// checkAlive requests /healthz from the proxy with the admin listener at addr. A container without a shell has no other client for
// a health check.
func checkAlive(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("-admin: %w", err)
	}
	client := http.Client{Timeout: pingTimeout, Transport: new(http.Transport)} // ignores HTTP_PROXY
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

// serveReady answers whether to send requests to this instance. serveReady leaves out the service, because all instances would
// become unready while the service fails. With -fail-open, serveReady also leaves out the store.
func (a *adminHandler) serveReady(w http.ResponseWriter, r *http.Request) {
	if a.isStopping.Load() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingTimeout)
	defer cancel()
	if !a.failOpen && a.store.pingServer != nil && a.store.pingServer(ctx) != nil {
		http.Error(w, "store not reached", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ready\n")
}
