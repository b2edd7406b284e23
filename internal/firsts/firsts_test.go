package firsts_test

import (
	"cmp"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/firsts"
)

func TestFirstsOfMany(t *testing.T) {
	t.Parallel()
	for _, maxValues := range []int{1, 10, 999, 5000, 20_000} {
		list := firsts.New(maxValues, cmp.Compare[int])
		for _, n := range rand.Perm(10_000) {
			list.Add(n)
		}
		values := list.Values()
		require.Len(t, values, min(maxValues, 10_000))
		for i, n := range values {
			require.Equal(t, i, n)
		}
	}
}
