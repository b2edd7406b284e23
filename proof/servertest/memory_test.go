package servertest_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestDialWithoutAccept(t *testing.T) {
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
