package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// proxyServer is the proxy with its resources.
type proxyServer struct {
	config          *config
	logger          *slog.Logger
	metrics         *proxyMetrics
	store           *storeBackend
	stopVerifier    func()
	guard           *idempotency.Middleware
	upstream        *upstreamHandler
	admin           *adminHandler
	accessLog       *accessLog
	runningRequests sync.WaitGroup // including WebSockets
}

func newServer(ctx context.Context, c *config, log *slog.Logger, stdout io.Writer) (*proxyServer, error) {
	user, stopUser, err := c.newUserFunc()
	if err != nil {
		return nil, err
	}
	store, err := openStore(ctx, c, log)
	if err != nil {
		stopUser()
		return nil, err
	}
	s := &proxyServer{config: c, logger: log, metrics: newMetrics(), store: store, stopVerifier: stopUser}
	if s.guard, err = newGuard(c, store.Store, user, s.metrics, log); err == nil {
		s.upstream, err = newUpstream(c, s.metrics, log)
	}
	if err != nil {
		stopUser()
		return nil, errors.Join(err, store.closeBackend())
	}
	s.admin = &adminHandler{store: store, metrics: s.metrics, failOpen: c.failOpen}
	s.accessLog = newAccessLog(c, stdout)
	return s, nil
}

// serveUntil serves until ctx ends, and then shuts down in order.
func (s *proxyServer) serveUntil(ctx context.Context) (err error) {
	maintaining, stopMaintaining := context.WithCancel(context.Background())
	var background sync.WaitGroup
	if s.store.removeExpired != nil {
		background.Go(func() { s.store.removeExpired(maintaining) })
	}
	defer func() {
		stopMaintaining()
		background.Wait()
		s.stopVerifier()
		s.upstream.closeIdle()
		err = errors.Join(err, s.store.closeBackend())
	}()

	failed := make(chan error, 2)
	if s.config.adminAddress != "" {
		watched := s.newHTTPServer(s.admin.newMux())
		if err := s.listenOn(watched, s.config.adminAddress, "admin", failed); err != nil {
			return err
		}
		defer watched.Close()
	}
	public, err := s.newPublicServer()
	if err != nil {
		return err
	}
	if err := s.listenOn(public, s.config.listenAddress, "serving", failed); err != nil {
		return err
	}
	select {
	case err = <-failed:
		return errors.Join(err, public.Close())
	case <-ctx.Done():
		return s.shutdown(public)
	}
}

// newPublicServer returns the server for clients.
func (s *proxyServer) newPublicServer() (public *http.Server, err error) {
	guarded := s.config.refuseHiddenMethods(s.config.limitBodyTime(s.guard.Handler(s.upstream)))
	public = s.newHTTPServer(s.countRequests(s.accessLog.wrapHandler(requirePath(stripUpgrades(s.config.compareAsForwarded(guarded))))))
	public.Protocols = new(http.Protocols)
	public.Protocols.SetHTTP1(true)
	public.Protocols.SetHTTP2(true)
	public.Protocols.SetUnencryptedHTTP2(true) // for clients with prior knowledge
	public.TLSConfig, err = s.config.serverTLS(s.logger)
	return public, err
}

func (s *proxyServer) newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
}

// listenOn starts server on addr in the background. listenOn returns an error for an unusable address. Later errors go to failed.
func (s *proxyServer) listenOn(server *http.Server, addr, what string, failed chan<- error) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	s.logger.Info(what, "address", listener.Addr().String())
	go func() {
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	return nil
}

// countRequests counts running requests, including WebSockets. http.Server.Shutdown does not wait for WebSockets, or for HTTP/2
// requests that continue after the end of their connection.
func (s *proxyServer) countRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runningRequests.Add(1)
		defer s.runningRequests.Done()
		s.metrics.requestsRunning.Inc()
		defer s.metrics.requestsRunning.Dec()
		next.ServeHTTP(w, r)
	})
}

// requirePath refuses requests whose target is no path. CONNECT is refused because the proxy is no tunnel. Opaque targets are refused
// because net/http would send such a target unchanged: "POST x:http://host/ HTTP/1.1" would request http://host/.
func requirePath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect:
			http.Error(w, "this is no tunnel", http.StatusMethodNotAllowed)
		case r.URL.Opaque != "", r.RequestURI == "*":
			http.Error(w, "the target is no path", http.StatusBadRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// shutdown waits for running requests, and for answers that are still to be stored. Requests that run longer than -shutdown-timeout
// end with the process.
func (s *proxyServer) shutdown(public *http.Server) error {
	s.logger.Info("shutting down")
	s.admin.isStopping.Store(true)
	time.Sleep(s.config.shutdownDelay)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.shutdownTimeout)
	defer cancel()
	err := errors.Join(public.Shutdown(ctx), s.waitForRequests(ctx), s.guard.Shutdown(ctx))
	if err != nil {
		return errors.Join(fmt.Errorf("not all requests ended: %w", err), public.Close())
	}
	s.logger.Info("shut down")
	return nil
}

func (s *proxyServer) waitForRequests(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.runningRequests.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
