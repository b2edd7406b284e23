package bounds_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bounds.NewCrowd(1)
		require.False(t, c.Enter())
		require.False(t, c.IsCrowded())
		require.True(t, c.Enter())
		require.True(t, c.IsCrowded())
		c.Leave()
		require.False(t, c.IsCrowded())

		require.False(t, c.WasUp(), "nobody has replied yet")
		time.Sleep(time.Second)
		c.Replied()
		time.Sleep(time.Minute - time.Nanosecond)
		require.True(t, c.WasUp())
		time.Sleep(time.Nanosecond)
		require.False(t, c.WasUp())
	})
}
