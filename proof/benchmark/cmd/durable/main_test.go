package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	t.Parallel()
	for took, shown := range map[time.Duration]string{
		time.Second: "1", 8 * time.Millisecond: "125", time.Millisecond: "1,000", 810 * time.Microsecond: "1,230",
		81 * time.Microsecond: "12,300", 8127 * time.Nanosecond: "123,000",
	} {
		require.Equal(t, shown, rate(took))
	}
}
