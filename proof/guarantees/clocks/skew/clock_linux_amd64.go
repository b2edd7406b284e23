package skew

import (
	_ "unsafe" // for go:linkname
)

// readClock is what the runtime of Go calls to read a clock, unless it is zero. It points into the vDSO of the kernel.
//
//go:linkname readClock runtime.vdsoClockgettimeSym
var readClock uintptr

// ahead has what is added to each clock.
//
//lint:ignore U1000 it is read by shifted, in assembly
var ahead = new([clocks]int64)

func follow(file *[clocks]int64) error {
	ahead = file
	readClock = shiftedClock()
	return nil
}

// shiftedClock returns the address of a clock_gettime for callers in C.
func shiftedClock() uintptr
