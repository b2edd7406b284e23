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

// A service that is told to stop answers the request that is under way. The next process has the answer. Each request has
// a line in the log.
func TestServiceStopsInOrder(t *testing.T) {
	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "everysec")
	bank, stopBank := provider.Start()
	defer stopBank()
	var written bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&written, nil)))

	come, release := bank.Hold()
	url, stop, ended := start(t, server)
	go func() {
		<-come
		stop()
		assert.Eventually(t, func() bool { return !demo.IsListening(url) }, time.Minute, time.Millisecond) // it has begun to stop
		release()
	}()
	require.Equal(t, "201 paid by charge 1", send(url, "order-1"))
	require.NoError(t, <-ended)
	require.Regexp(t, `level=WARN .*appendfsync is everysec`, written.String())
	require.Regexp(t, `outcome=executed endpoint="POST /payments" operation=\S+ attempt=1 status=201 took=\S+ error=<nil>`,
		written.String())

	url, stop, ended = start(t, server)
	require.Equal(t, "201 paid by charge 1 replayed", send(url, "order-1"))
	stop()
	require.NoError(t, <-ended)
	require.Contains(t, written.String(), "outcome=replayed")
	require.Equal(t, 1, bank.Calls())
}

// A charge that fails is not stored: a retry charges.
func TestFailedChargeIsTriedAgain(t *testing.T) {
	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	bank, stopBank := provider.Start()
	defer stopBank()
	url, stop, ended := start(t, server)
	bank.LoseAnswer()
	require.Equal(t, "502 try again\n", send(url, "order-1"))
	require.Equal(t, "201 paid by charge 1", send(url, "order-1"))
	require.Equal(t, 1, bank.Acts())
	stop()
	require.NoError(t, <-ended)
}

// A server that forgets its records when it restarts is refused, and so are a broken URL and a port that is taken.
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

// start starts a process of the service: another Middleware, with another client.
func start(t *testing.T, server *servertest.Server) (url string, stop context.CancelFunc, ended chan error) {
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
	client, err := newClient(urlOf(server))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
