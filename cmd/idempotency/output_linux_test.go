package main_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// What could not be printed is not taken for the whole answer.
func TestOutputIsLost(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	complete(t, b.open(t), keyOfAlice, answer)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, args := range [][]string{with("inspect"), {"list"}, {"stats"}, {"check"}, {"list", "--json"}} {
		var complaints bytes.Buffer
		cmd := command(t.Context(), b.env, args...)
		cmd.Stdout, cmd.Stderr = full, &complaints
		_ = cmd.Run()
		require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%v: %s", args, &complaints)
		require.Contains(t, complaints.String(), "no space left", args)
	}
}
