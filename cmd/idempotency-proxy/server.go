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

// server is the proxy with all that it has opened.
type server struct {
	config   *config
	log      *slog.Logger
	metrics  *metrics
	store    *backing
	stopUser func()
	guard    *idempotency.Middleware
	upstream *upstream
	admin    *admin
	access   *accessLog
	running  sync.WaitGroup // requests
}

func newServer(ctx context.Context, c *config, log *slog.Logger, stdout io.Writer) (*server, error) {
	user, stopUser, err := c.user()
	if err != nil {
		return nil, err
	}
	store, err := openStore(ctx, c, log)
	if err != nil {
		stopUser()
		return nil, err
	}
	s := &server{config: c, log: log, metrics: newMetrics(), store: store, stopUser: stopUser}
	if s.guard, err = newGuard(c, store.Store, user, s.metrics, log); err == nil {
		s.upstream, err = newUpstream(c, s.metrics, log)
	}
	if err != nil {
		stopUser()
		return nil, errors.Join(err, store.shut())
	}
	s.admin = &admin{store: store, metrics: s.metrics, failOpen: c.failOpen}
	s.access = newAccessLog(c, stdout)
	return s, nil
}

// serve serves until ctx ends, and then comes to an orderly end.
func (s *server) serve(ctx context.Context) (err error) {
	maintaining, stopMaintaining := context.WithCancel(context.Background())
	var background sync.WaitGroup
	if s.store.maintain != nil {
		background.Go(func() { s.store.maintain(maintaining) })
	}
	defer func() {
		stopMaintaining()
		background.Wait()
		s.stopUser()
		s.upstream.close()
		err = errors.Join(err, s.store.shut())
	}()

	failed := make(chan error, 2)
	if s.config.admin != "" {
		watched := s.newHTTP(s.admin.handler())
		if err := s.listen(watched, s.config.admin, "admin", failed); err != nil {
			return err
		}
		defer watched.Close()
	}
	public, err := s.newPublic()
	if err != nil {
		return err
	}
	if err := s.listen(public, s.config.listen, "serving", failed); err != nil {
		return err
	}
	select {
	case err = <-failed:
		return errors.Join(err, public.Close())
	case <-ctx.Done():
		return s.shutdown(public)
	}
}

// newPublic returns the server that clients see.
func (s *server) newPublic() (public *http.Server, err error) {
	guarded := s.config.refuseHiddenMethods(s.config.inTime(s.guard.Handler(s.upstream)))
	public = s.newHTTP(s.counted(s.access.handler(forPaths(onlyWebSockets(s.config.compareAsForwarded(guarded))))))
	public.Protocols = new(http.Protocols)
	public.Protocols.SetHTTP1(true)
	public.Protocols.SetHTTP2(true)
	public.Protocols.SetUnencryptedHTTP2(true) // to a client that begins with it
	public.TLSConfig, err = s.config.serverTLS(s.log)
	return public, err
}

func (s *server) newHTTP(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// listen has a server serve on an address in the background. An address that cannot be used is an error at once.
func (s *server) listen(server *http.Server, addr, what string, failed chan<- error) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	s.log.Info(what, "address", listener.Addr().String())
	go func() {
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	return nil
}

// counted counts the requests that are being answered, and the WebSockets that they have opened. http.Server.Shutdown
// waits neither for those nor for requests of HTTP/2, which run on when their connection has gone.
func (s *server) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.running.Add(1)
		defer s.running.Done()
		s.metrics.running.Inc()
		defer s.metrics.running.Dec()
		next.ServeHTTP(w, r)
	})
}

// forPaths refuses requests that do not ask for a path. It is no tunnel; and net/http would send another target to the
// service as it is: "POST x:http://host/ HTTP/1.1" asks for http://host/.
func forPaths(next http.Handler) http.Handler {
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

// shutdown waits for running requests, and for answers that the store has not taken yet. What runs on then ends with the
// process.
func (s *server) shutdown(public *http.Server) error {
	s.log.Info("shutting down")
	s.admin.stopping.Store(true)
	time.Sleep(s.config.shutdownDelay)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.shutdownTimeout)
	defer cancel()
	err := errors.Join(public.Shutdown(ctx), s.wait(ctx), s.guard.Shutdown(ctx))
	if err != nil {
		return errors.Join(fmt.Errorf("not all requests ended: %w", err), public.Close())
	}
	s.log.Info("shut down")
	return nil
}

func (s *server) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
