package servertest_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// A server in a bubble answers after a timeout of an hour at once.
func TestListenInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		server := &httptest.Server{
			Listener: servertest.Listen(t),
			Config:   &http.Server{Handler: http.TimeoutHandler(hang, time.Hour, "late")},
		}
		server.Start()
		client := &http.Client{Transport: &http.Transport{DialContext: servertest.Dial, DisableKeepAlives: true}}
		resp, err := client.Get(server.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)

		server.Close()
		_, err = client.Get(server.URL)
		require.Error(t, err)
	})
}

func TestDialOfAListenerThatNobodyAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener := servertest.Listen(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := servertest.Dial(ctx, "tcp", listener.Addr().String())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, listener.Close())
		_, err = listener.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
