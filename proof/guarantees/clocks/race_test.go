//go:build linux && race

package clocks_test

// slowness multiplies short durations, because the race detector slows the processes down.
const slowness = 3
