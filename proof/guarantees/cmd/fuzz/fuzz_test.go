package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const overtime = "--- FAIL: FuzzFields (4.05s)\n    context deadline exceeded\nFAIL\n"

// A failed run counts as successful only if its output has timeIsOver and no other line.
func TestVerdict(t *testing.T) {
	t.Parallel()
	exit := error(&exec.ExitError{})
	for said, want := range map[string]bool{
		overtime: true,
		"FAIL\n": false,
		strings.Replace(overtime, "    context", "    fields_test.go:9: context", 1):                         false,
		strings.Replace(overtime, "exceeded\n", "exceeded\n    Failing input written to testdata/a\n", 1):    false,
		strings.Replace(overtime, "--- FAIL", "--- FAIL: FuzzA (0.1s)\n    a_test.go:1: bad\n--- FAIL", 1):   false,
		"fuzz: minimizing 34-byte failing input file\n" + overtime:                                           false,
		strings.Replace(overtime, "context deadline exceeded", "fuzzing process hung or terminated: EOF", 1): false,
	} {
		require.Equal(t, want, judgeRun(exit, said) == nil, "%q", said)
	}
	require.NoError(t, judgeRun(nil, "ok\n"))
	cannotStart := errors.New("exec: not found")
	require.Equal(t, cannotStart, judgeRun(cannotStart, overtime))
}

func TestWatchCountsAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	executions, rest := watchProgress(strings.NewReader("fuzz: elapsed: 0s, gathering baseline coverage: 0/9 completed\n" +
		"fuzz: elapsed: 3s, execs: 1200 (400/sec), new interesting: 1 (total: 10)\n" +
		"fuzz: elapsed: 4s, execs: 5000000000 (380/sec), new interesting: 1 (total: 10)\nPASS\nlast"))
	require.EqualValues(t, 5_000_000_000, executions)
	require.Equal(t, "PASS\nlast", rest)
	executions, rest = watchProgress(strings.NewReader("fuzz: elapsed: 4s, gathering baseline coverage: 7/9 completed\n"))
	require.EqualValues(t, 7, executions)
	require.Empty(t, rest)
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all := []target{{name: "FuzzA"}, {name: "FuzzB"}}
	chosen, err := chooseTargets(all, "FuzzB")
	require.NoError(t, err)
	require.Equal(t, all[1:], chosen)
	_, err = chooseTargets(all, "FuzzA,FuzzC")
	require.ErrorContains(t, err, "FuzzC")
}
