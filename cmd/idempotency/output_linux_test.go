package main_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// If the output cannot be written, the program fails.
func TestOutputIsLost(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	completeRecord(t, b.openStore(t), keyOfAlice, answer)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, args := range [][]string{commandForAlice("inspect"), {"list"}, {"stats"}, {"check"}, {"list", "--json"}} {
		var complaints bytes.Buffer
		cmd := newCommand(t.Context(), b.environment, args...)
		cmd.Stdout, cmd.Stderr = full, &complaints
		_ = cmd.Run()
		require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%v: %s", args, &complaints)
		require.Contains(t, complaints.String(), "no space left", args)
	}
}
