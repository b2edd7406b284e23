package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The report of a panic contains no credentials. No argument makes the program panic, so the test panics in env, which
// looks up variables.
func TestPanic(t *testing.T) {
	t.Parallel()
	const address = "redis://:s3cret@host"
	env := func(name string) (string, bool) {
		switch name {
		case "REDIS_URL":
			return address, true
		case "NO_COLOR":
			panic("cannot dial " + address + "\x1b[31m")
		}
		return "", false
	}
	got := runInProcess(t, env, "list")
	require.Equal(t, 3, got.status)
	said := got.stdout + got.stderr
	require.Contains(t, said, "panic: cannot dial ***")
	require.Contains(t, said, "run.go")
	require.NotContains(t, said, "s3cret")
	require.NotContains(t, said, "\x1b")
}
