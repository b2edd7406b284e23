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

// supervisor serves the page, forwards requests to the shop, kills the shop, and starts the shop again.
type supervisor struct {
	ledger       *ledger
	shop         *process.Service
	restartPause time.Duration // from a death of the shop to its next start
	consoleURL   string        // of the operators' console; empty without -console

	killMutex  sync.Mutex // held from a kill to the next start
	mu         sync.Mutex
	shopStatus status
}

// status is the status of the shop, for the page.
type status struct {
	Running bool   `json:"running"`
	Deaths  int    `json:"deaths"`
	Console string `json:"console,omitempty"` // where an operator ends an order with an unknown outcome
}

// newSupervisor creates an empty ledger, and starts a shop. end stops the shop, and removes the ledger.
func newSupervisor(ctx context.Context) (s *supervisor, end func()) {
	ledger, drop := createLedger(context.WithoutCancel(ctx)) // an interruption must not keep end from dropping the ledger
	s = &supervisor{ledger: ledger, shop: process.New(), restartPause: time.Second}
	s.startShop()
	return s, func() {
		s.shop.Kill()
		drop()
	}
}

// startShop starts the shop, and waits until the shop serves. The shop runs until killShop, or until this process ends.
func (s *supervisor) startShop() {
	s.shop.Start(context.Background())
	demo.Check(s.awaitHeld(context.Background(), 0))
	s.setRunning(true)
}

// killShop kills the shop and, after restartPause, starts the shop again.
func (s *supervisor) killShop() {
	s.killMutex.Lock()
	defer s.killMutex.Unlock()
	s.shop.Kill()
	s.setRunning(false)
	time.Sleep(s.restartPause) // lets the page show the death
	s.startShop()
}

func (s *supervisor) setRunning(running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shopStatus = status{Running: running, Deaths: s.shop.Deaths}
}

func (s *supervisor) currentStatus() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shopStatus
}

// newHandler returns the handler of the page and of the requests that the page sends.
func (s *supervisor) newHandler() http.Handler {
	target, err := url.Parse(s.shop.URL)
	demo.Check(err)
	mux := http.NewServeMux()
	mux.Handle("/", newPageHandler())
	mux.Handle("/shop/", http.StripPrefix("/shop", newShopProxy(target)))
	mux.HandleFunc("GET /ledger", s.showLedger)
	mux.HandleFunc("POST /kill", s.handleKill)
	return http.NewCrossOriginProtection().Handler(mux)
}

// startServer serves handler until stop is called.
func startServer(listener net.Listener, handler http.Handler) (stop func()) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	// A browser repeats a POST by itself if a reused connection breaks, and this is one more reason for keys. But the example
	// counts presses, so each request gets a new connection.
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

// newShopProxy returns a proxy to the shop. If the shop breaks a connection, the proxy breaks its own without an answer.
func newShopProxy(shop *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(shop) },
		Transport: &http.Transport{DisableKeepAlives: true},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler)
		},
	}
}

// showLedger answers with the charges for a purchase, also while the shop is dead, because showLedger reads the ledger itself.
func (s *supervisor) showLedger(w http.ResponseWriter, r *http.Request) {
	books, err := s.readBooks(r.Context(), r.FormValue("purchase"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(books)
}

func (s *supervisor) readBooks(ctx context.Context, purchase string) (b books, err error) {
	b.Server = s.currentStatus()
	b.Server.Console = s.consoleURL
	if b.Without, err = s.ledger.sumCharges(ctx, without, purchase); err != nil {
		return books{}, err
	}
	b.With, err = s.ledger.sumCharges(ctx, with, purchase)
	return b, err
}

// handleKill kills the shop as soon as the shop holds the number of answers in the request.
func (s *supervisor) handleKill(w http.ResponseWriter, r *http.Request) {
	want, _ := strconv.Atoi(r.FormValue("held"))
	if err := s.awaitHeld(r.Context(), want); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s.killShop()
	w.WriteHeader(http.StatusNoContent)
}

// awaitHeld waits until the shop holds at least want answers.
func (s *supervisor) awaitHeld(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		held, err := s.countHeld(ctx)
		if err != nil || held >= want {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// countHeld asks the shop how many answers the shop holds.
func (s *supervisor) countHeld(ctx context.Context) (int, error) {
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
