package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
)

// supervisor serves the page, passes requests on to the shop, and starts the shop again after it has killed it.
type supervisor struct {
	ledger *ledger
	shop   *process.Service
	pause  time.Duration // from a death of the shop to its next start

	killing sync.Mutex // one at a time
	mu      sync.Mutex
	status  status
}

// status is what the page shows of the shop.
type status struct {
	Running bool `json:"running"`
	Deaths  int  `json:"deaths"`
}

// newSupervisor makes an empty ledger and starts a shop. Nothing is left of them after end.
func newSupervisor(ctx context.Context) (s *supervisor, end func()) {
	ledger, drop := createLedger(context.WithoutCancel(ctx)) // which is dropped after an interruption
	s = &supervisor{ledger: ledger, shop: process.New(), pause: time.Second}
	s.start()
	return s, func() {
		s.shop.Kill()
		drop()
	}
}

// start starts the shop, and waits until it serves. It ends by kill, or with this process.
func (s *supervisor) start() {
	s.shop.Start(context.Background())
	demo.Check(s.awaitHeld(context.Background(), 0))
	s.set(true)
}

// kill kills the shop and, after a pause, starts it again.
func (s *supervisor) kill() {
	s.killing.Lock()
	defer s.killing.Unlock()
	s.shop.Kill()
	s.set(false)
	time.Sleep(s.pause) // for the page to show it
	s.start()
}

func (s *supervisor) set(running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status{running, s.shop.Deaths}
}

func (s *supervisor) get() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// handler serves the page, and what it asks for.
func (s *supervisor) handler() http.Handler {
	target, err := url.Parse(s.shop.URL)
	demo.Check(err)
	mux := http.NewServeMux()
	mux.Handle("/", page())
	mux.Handle("/shop/", http.StripPrefix("/shop", passOn(target)))
	mux.HandleFunc("GET /ledger", s.showLedger)
	mux.HandleFunc("POST /kill", s.killHolding)
	return http.NewCrossOriginProtection().Handler(mux)
}

// serve serves until stop is called.
func serve(listener net.Listener, handler http.Handler) (stop func()) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	// A browser sends a POST again by itself if a connection breaks that it has used before. That is one more reason for
	// keys. But here presses are counted, so each request has a connection of its own.
	server.SetKeepAlivesEnabled(false)
	go func() {
		if err := server.Serve(listener); err != http.ErrServerClosed {
			log.Fatal(err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		demo.Check(server.Shutdown(ctx))
	}
}

// passOn is a way to the shop. If the shop breaks a connection, so does this, without an answer.
func passOn(shop *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(shop) },
		Transport: &http.Transport{DisableKeepAlives: true},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler)
		},
	}
}

// showLedger answers with what was charged for a purchase. It reads the ledger itself: also while there is no shop.
func (s *supervisor) showLedger(w http.ResponseWriter, r *http.Request) {
	books, err := s.books(r.Context(), r.FormValue("purchase"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(books)
}

func (s *supervisor) books(ctx context.Context, purchase string) (b books, err error) {
	b.Server = s.get()
	if b.Without, err = s.ledger.account(ctx, without, purchase); err != nil {
		return books{}, err
	}
	b.With, err = s.ledger.account(ctx, with, purchase)
	return b, err
}

// killHolding kills the shop as soon as it holds as many answers as the request says.
func (s *supervisor) killHolding(w http.ResponseWriter, r *http.Request) {
	want, _ := strconv.Atoi(r.FormValue("held"))
	if err := s.awaitHeld(r.Context(), want); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s.kill()
	w.WriteHeader(http.StatusNoContent)
}

func (s *supervisor) awaitHeld(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		held, err := s.held(ctx)
		if err != nil || held >= want {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *supervisor) held(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.shop.URL+"/held", nil)
	if err != nil {
		return 0, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(body)))
}
