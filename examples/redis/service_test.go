package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// A service that is told to stop still answers the running request. The next process of the service replays the answer. Each
// request writes a line to the log.
func TestServiceStopsInOrder(t *testing.T) {
	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "everysec")
	bank, stopBank := provider.Start()
	defer stopBank()
	var log bytes.Buffer
	oldDefault := slog.Default()
	defer slog.SetDefault(oldDefault)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))

	arrived, release := bank.Hold()
	url, stop, ended := startService(t, server)
	go func() {
		<-arrived
		stop()
		// release the provider when the service has begun to stop
		assert.Eventually(t, func() bool { return !demo.IsListening(url) }, time.Minute, time.Millisecond)
		release()
	}()
	require.Equal(t, "201 paid by charge 1", sendPayment(url, "order-1"))
	require.NoError(t, <-ended)
	require.Regexp(t, `level=WARN .*appendfsync is everysec`, log.String())
	require.Regexp(t, `outcome=executed endpoint="POST /payments" operation=\S+ attempt=1 status=201 took=\S+ error=<nil>`,
		log.String())

	url, stop, ended = startService(t, server)
	require.Equal(t, "201 paid by charge 1 replayed", sendPayment(url, "order-1"))
	stop()
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), "outcome=replayed")
	require.Equal(t, 1, bank.Calls())
}

// The answer to a failed charge is not stored, so a retry calls the provider again.
func TestFailedChargeIsTriedAgain(t *testing.T) {
	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	bank, stopBank := provider.Start()
	defer stopBank()
	url, stop, ended := startService(t, server)
	bank.LoseAnswer()
	require.Equal(t, "502 try again\n", sendPayment(url, "order-1"))
	require.Equal(t, "201 paid by charge 1", sendPayment(url, "order-1"))
	require.Equal(t, 1, bank.Acts())
	stop()
	require.NoError(t, <-ended)
}

// The service refuses a server that forgets its records at a restart, an invalid URL, and a closed listener.
func TestServiceRefusesToStart(t *testing.T) {
	_, err := newClient("localhost:6379")
	require.ErrorContains(t, err, "invalid URL scheme")
	_, err = newService(t.Context(), newTestClient(t, servertest.Redis(t)))
	require.ErrorContains(t, err, "aof_enabled is 0")

	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	s, err := newService(t.Context(), newTestClient(t, server))
	require.NoError(t, err)
	listener := demo.Listen()
	require.NoError(t, listener.Close())
	require.ErrorIs(t, s.run(t.Context(), listener), net.ErrClosed)
}

// startService starts the service with a new Middleware and a new client, as a new process does.
func startService(t *testing.T, server *servertest.Server) (url string, stop context.CancelFunc, ended chan error) {
	t.Helper()
	s, err := newService(t.Context(), newTestClient(t, server))
	require.NoError(t, err)
	listener := demo.Listen()
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan error)
	go func() { ended <- s.run(ctx, listener) }()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return "http://" + listener.Addr().String() + "/payments", stop, ended
}

func newTestClient(t *testing.T, server *servertest.Server) *redis.Client {
	t.Helper()
	client, err := newClient(redisURL(server))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
