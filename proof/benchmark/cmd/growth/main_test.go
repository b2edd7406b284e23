package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFigures(t *testing.T) {
	t.Parallel()
	for rate, shown := range map[float64]string{0.4: "0", 5: "5", 999: "999", 1230: "1,230", 12345: "12,300", 8.64e9: "8,640,000,000"} {
		require.Equal(t, shown, thousands(rate))
	}
	for took, shown := range map[time.Duration]string{
		212 * time.Nanosecond: "0.212 us", 35276 * time.Nanosecond: "35.3 us", 1234567 * time.Nanosecond: "1.23 ms",
	} {
		require.Equal(t, shown, microseconds(took))
	}
}

// What the page says of 24 hours at its rate: 8,640 million records, with a copy, in memory that is full to 70 %.
func TestPlan(t *testing.T) {
	t.Parallel()
	p := inRedis(24*time.Hour, 35276*time.Nanosecond)
	require.InDelta(t, 8.64e9, p.records, 1)
	require.InDelta(t, 8.64e9*754*2/1e9/0.7, p.gb, 1)
	require.EqualValues(t, 94, p.servers, "masters of 100 GB for a copy of all")
	require.EqualValues(t, 8, inRedis(time.Minute, 35276*time.Nanosecond).servers, "cores that are half busy")
	require.Equal(t, inPostgres(time.Hour).servers, inPostgres(24*time.Hour).servers, "what decides is the rate")
}
