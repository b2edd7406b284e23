package benchmark_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/benchmark"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	var order []string
	contender := func(name string, times ...time.Duration) benchmark.Contender {
		return benchmark.Contender{Name: name, Batch: func() (time.Duration, error) {
			order = append(order, name)
			d := times[0]
			times = times[1:]
			return d, nil
		}}
	}
	c, err := benchmark.Compare(5, []benchmark.Contender{
		contender("a", 10, 20, 30, 40, 50),
		contender("b", 30, 40, 150, 40, 200), // 3, 2, 5, 1 and 4 times as long
	})
	require.NoError(t, err)
	require.Equal(t, benchmark.Ratio{Median: 3, Low: 2, High: 4}, c.Ratio(1, 0), "median and quartiles of the rounds")
	require.Equal(t, benchmark.Ratio{Median: 1, Low: 1, High: 1}, c.Ratio(0, 0))
	require.Equal(t, time.Duration(30), c.Best(1))
	require.Equal(t, []string{"a", "b", "b", "a", "a", "b", "b", "a", "a", "b"}, order, "each once a round, in turns")
}

func TestCompareStopsAtAnError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	_, err := benchmark.Compare(2, []benchmark.Contender{
		{Name: "a", Batch: func() (time.Duration, error) { return 0, broken }},
	})
	require.ErrorIs(t, err, broken)
}
