package bounds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// Free does not keep huge buffers, so a huge body leaves memory when its request has ended.
func TestHugeBuffersAreNotKept(t *testing.T) {
	require.True(t, (&bounds.Buffer{B: make([]byte, 2<<20)}).Free())
	require.False(t, (&bounds.Buffer{B: make([]byte, 2<<20+1)}).Free())
}

// A small body never gets a buffer that grew for a large body, because the capacity of the buffer counts.
func TestBuffersServeTheirSize(t *testing.T) {
	for _, n := range []int64{0, 1, 512, 513, 4 << 10, 1<<20 + 1, 2 << 20, 2<<20 + 1, 10 << 20} {
		b := bounds.NewBuffer(int(n))
		require.Empty(t, b.B)
		require.Equal(t, bounds.Room(n), int64(cap(b.B)), n)
		b.B = append(b.B, "beginning"[:min(n, 9)]...)
		kept := string(b.B)
		b.Grow(100 << 10)
		require.Equal(t, kept, string(b.B))
		require.Equal(t, max(bounds.Room(n), bounds.Room(int64(len(kept))+100<<10)), int64(cap(b.B)), n)
		b.Free()
	}
}

func TestShares(t *testing.T) {
	s := bounds.Shares{Total: 10, Each: 4}
	require.True(t, s.Take("a", 4))
	require.False(t, s.Take("a", 1), "beyond a share")
	require.True(t, s.Take("b", 6), "a user who holds nothing may take more than a share at once")
	require.False(t, s.Take("c", 1), "beyond the total")
	require.True(t, s.Take("c", 0))
	require.Equal(t, 2, s.Users())
	s.GiveBack("a", 3)
	require.True(t, s.Take("a", 2))
	s.GiveBack("a", 3)
	s.GiveBack("b", 6)
	require.Zero(t, s.Users())

	var none bounds.Shares
	require.True(t, none.Take("a", 1<<40), "no limits")
	none.GiveBack("a", 1<<40)
	require.Zero(t, none.Users())
}
