package compat_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	fiberidempotency "github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// peer is a library whose middleware the probe tests.
type peer struct {
	name    string   // in the golden file and in docs/comparison.md
	options string   // the options that differ from the defaults
	module  string   // the module of the library, or "" for this library
	header  string   // the header that has the key, or "" for Idempotency-Key
	only    []string // the checks that options change, or nil for all checks

	// start serves handler with the middleware in several instances that share records, and returns their URLs.
	start func(t *testing.T, handler http.Handler, instances int) (urls []string)
}

// peers are the libraries that the Go module proxy serves, mounted as their documentation shows.
var peers = []peer{
	{name: "this library", start: startThisLibrary(idempotency.Options{})},
	{name: "this library", options: "Wait", only: []string{"while-running"},
		start: startThisLibrary(idempotency.Options{Wait: long})},
	{name: "this library", options: "ReuseStatus", only: []string{"other-content"},
		start: startThisLibrary(idempotency.Options{ReuseStatus: http.StatusUnprocessableEntity})},
	{name: "fiber", module: "github.com/gofiber/fiber/v3", header: "X-Idempotency-Key", start: startFiber},
}

func startThisLibrary(options idempotency.Options) func(*testing.T, http.Handler, int) []string {
	return func(t *testing.T, handler http.Handler, instances int) (urls []string) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		user := func(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil }
		options.Logger = slog.New(slog.DiscardHandler)
		for range instances {
			idem, err := idempotency.New(store, user, options)
			require.NoError(t, err)
			urls = append(urls, serveHTTP(t, idem.Handler(handler)))
		}
		return urls
	}
}

// startFiber shares a Storage among the instances. The default Lock works within one instance.
func startFiber(t *testing.T, handler http.Handler, instances int) (urls []string) {
	storage := new(peerStorage)
	for range instances {
		app := fiber.New()
		app.Use(fiberidempotency.New(fiberidempotency.Config{Storage: storage}))
		app.Use(adaptor.HTTPHandler(handler))
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
		t.Cleanup(func() {
			assert.NoError(t, app.ShutdownWithTimeout(shortly))
			assert.NoError(t, <-ended)
		})
		urls = append(urls, "http://"+listener.Addr().String())
	}
	return urls
}

// serveHTTP serves handler over HTTP/1.1 and HTTP/2, and returns the URL.
func serveHTTP(t *testing.T, handler http.Handler) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-ended, http.ErrServerClosed)
	})
	return "http://" + listener.Addr().String()
}

// paymentService charges for each execution, so that the effects count the executions:
//
//   - POST /payments and POST /refunds charge {"amount": n, "takes": "20ms"}, and refuse an amount of 0 with 400.
//   - POST /statements charges too, and streams a long answer.
//   - POST /failures answers 503 to the first execution, and charges at the next one.
type paymentService struct {
	charges  atomic.Int64
	failures atomic.Int64
}

func (s *paymentService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var payment struct {
		Amount int
		Takes  string
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &payment)
	}
	if err != nil || payment.Amount <= 0 {
		http.Error(w, "an amount is missing", http.StatusBadRequest)
		return
	}
	if r.URL.Path == "/failures" && s.failures.Add(1)%2 == 1 {
		http.Error(w, "the provider is away", http.StatusServiceUnavailable)
		return
	}
	charge := s.charges.Add(1)
	if takes, err := time.ParseDuration(payment.Takes); err == nil {
		time.Sleep(takes) // a charge cannot be called back, so the service does not end with the client
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", charge))
	w.WriteHeader(http.StatusCreated)
	pieces, padding := 1, ""
	if r.URL.Path == "/statements" {
		pieces, padding = 50, strings.Repeat("-", 1000)
	}
	for range pieces {
		_, _ = fmt.Fprintf(w, `{"payment": %d, "amount": %d, "padding": %q}`+"\n", charge, payment.Amount, padding)
		if pieces > 1 {
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// probePeer makes the checks of p with one instance, and then the checks that need two instances.
func probePeer(t *testing.T, p peer) []measuredRow {
	rows := makePeerChecks(t, p, 1, "20ms", p.only)
	if p.only != nil {
		return rows
	}
	// A request takes longer here, so that duplicates reach both instances before the first one is answered.
	return append(rows, makePeerChecks(t, p, 2, "200ms", []string{"replay-elsewhere", "at-once-20"})...)
}

func makePeerChecks(t *testing.T, p peer, instances int, takes string, only []string) (rows []measuredRow) {
	t.Helper()
	payments := new(paymentService)
	report, err := probe.MakeChecks(t.Context(), probe.Service{
		URLs:       p.start(t, payments, instances),
		Request:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "`+takes+`"}`),
		Other:      testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 20, "takes": "`+takes+`"}`),
		OtherRoute: testservice.BuildJSON(http.MethodPost, "/refunds", `{"amount": 10, "takes": "`+takes+`"}`),
		Invalid:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 0}`),
		Failing:    testservice.BuildJSON(http.MethodPost, "/failures", `{"amount": 10}`),
		Slow:       testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "200ms"}`),
		Stream:     testservice.BuildJSON(http.MethodPost, "/statements", `{"amount": 10}`),
		As:         func(r *http.Request, user string) { r.Header.Set("Authorization", user) },
		Effects:    func(context.Context) (int, error) { return int(payments.charges.Load()), nil },
		Header:     p.header,
		Bound:      1500 * time.Millisecond,
		Timeout:    long,
		Only:       only,
	}, nil)
	require.NoError(t, err)
	for _, result := range report.Results {
		if result.Status != probe.Skipped {
			t.Log(result.Explain())
			rows = append(rows, p.describeResult(t, instances, result))
		}
	}
	return rows
}
