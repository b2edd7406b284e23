package skew

import (
	_ "unsafe" // for go:linkname
)

// readClock is the address of the function in the kernel's vDSO that the Go runtime calls to read a clock, unless readClock is
// zero.
//
//go:linkname readClock runtime.vdsoClockgettimeSym
var readClock uintptr

// ahead points to the seconds that shifted, the function in assembly, adds to each clock.
//
//lint:ignore U1000 it is read by shifted, in assembly
var ahead = new([clocks]int64)

// followFile replaces the clock of the runtime by the clock that file shifts.
func followFile(file *[clocks]int64) error {
	ahead = file
	readClock = shiftedClock()
	return nil
}

// shiftedClock returns the address of shifted, a clock_gettime with the calling convention of C.
func shiftedClock() uintptr
