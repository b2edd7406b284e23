//go:build linux && !race

package clocks_test

// slowness multiplies short durations.
const slowness = 1
