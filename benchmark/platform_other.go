//go:build !linux

package benchmark

import "time"

// pace sends the numbers from 0 to n-1, each when it is due.
func pace(n int, started time.Time, interval time.Duration, due chan<- int) {
	for i := range n {
		time.Sleep(time.Until(started.Add(time.Duration(i) * interval)))
		due <- i
	}
}

var processStart = time.Now()

// threadTime returns the time on the clock, which is the most that this thread can have worked.
func threadTime() time.Duration { return time.Since(processStart) }
