package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// newTestPool connects to the server of the test. DEVELOPMENT is set, because this server runs without fsync.
func newTestPool(t *testing.T) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(servertest.Postgres(t).URL())
	require.NoError(t, err)
	pool, err := newPool(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), createPayments)
	require.NoError(t, err)
	t.Setenv("DEVELOPMENT", "yes")
	return pool
}

// A route without the middleware fails this test.
func TestRoutesAreGuarded(t *testing.T) {
	s, err := newService(t.Context(), newTestPool(t), options)
	require.NoError(t, err)
	var requests []*http.Request
	for pattern := range s.routes() {
		method, path, _ := strings.Cut(pattern, " ")
		r := httptest.NewRequest(method, path, nil)
		r.SetBasicAuth("alice", "secret")
		requests = append(requests, r)
	}
	idempotencytest.Guarded(t, s.server.Handler, idempotencytest.GuardedOptions{}, requests...)
}

// A service that is told to stop still answers the running request. The next process of the service replays the answer, so both
// requests make one charge. Each request writes a line to the log.
func TestServiceStopsInOrder(t *testing.T) {
	bank, stopBank := provider.Start()
	defer stopBank()
	pool := newTestPool(t)
	s, err := newService(t.Context(), pool, options)
	require.NoError(t, err)
	var log bytes.Buffer
	oldDefault := slog.Default()
	defer slog.SetDefault(oldDefault)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	listener := demo.Listen()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.run(ctx, listener) }()
	address := "http://" + listener.Addr().String() + "/orders"
	send := func() (status int, body string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader("2"))
		require.NoError(t, err)
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", "order-1")
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}

	arrived, release := bank.Hold()
	go func() {
		<-arrived
		stop()
		// release the provider when the service has begun to stop
		assert.Eventually(t, func() bool { return !demo.IsListening(address) }, time.Minute, time.Millisecond)
		release()
	}()
	status, body := send()
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, "payment 1, paid by charge 1", body)
	require.NoError(t, <-ended)
	require.Regexp(t, `outcome=executed endpoint="POST /orders" operation=\S+ attempt=1 status=201 took=\S+ error=<nil>`, log.String())

	s, err = newService(t.Context(), pool, options) // the next process finds the answer in the store
	require.NoError(t, err)
	listener = demo.Listen()
	address = "http://" + listener.Addr().String() + "/orders"
	ctx, stop = context.WithCancel(t.Context())
	go func() { ended <- s.run(ctx, listener) }()
	status, body = send()
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, "payment 1, paid by charge 1", body)
	stop()
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), "outcome=replayed")
	require.Equal(t, 1, bank.Calls())
}

// Outside of development, the service refuses a server that may lose acknowledged commits.
func TestServiceChecksItsServer(t *testing.T) {
	pool := newTestPool(t)
	t.Setenv("DEVELOPMENT", "")
	_, err := newService(t.Context(), pool, options)
	require.ErrorContains(t, err, "fsync is off")
}
