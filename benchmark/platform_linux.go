package benchmark

import (
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pace sends the numbers from 0 to n-1, each when it is due. It sleeps in the kernel: the timers of Go are up to a
// millisecond late while nothing else happens.
func pace(n int, started time.Time, interval time.Duration, due chan<- int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range n {
		for {
			wait := time.Until(started.Add(time.Duration(i) * interval))
			if wait <= 0 {
				break
			}
			ts := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&ts, nil) // if it is interrupted, the rest is slept next
		}
		due <- i
	}
}

// threadTime returns the processor time that this thread has taken.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // this clock is always there
	return time.Duration(ts.Nano())
}
