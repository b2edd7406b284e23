//go:build linux && !race

package clocks_test

// slowness is how many times longer short times are.
const slowness = 1
