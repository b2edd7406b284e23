package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTally(t *testing.T) {
	t.Parallel()
	var counted tally
	for _, line := range []string{
		`{"Action":"run","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"not shown\n"}`,
		`{"Action":"attr","Package":"p","Test":"TestA","Key":"random-deaths","Value":"1200"}`,
		`{"Action":"attr","Package":"p","Test":"TestA/row","Key":"random-deaths","Value":"34"}`,
		`{"Action":"attr","Package":"p","Test":"TestA","Key":"colour","Value":"red"}`,
		`{"Action":"pass","Package":"p","Test":"TestA/row"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"skip","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Test":"TestC","Output":"what went wrong\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestC"}`,
		`{"Action":"skip","Package":"p","Test":"TestA/other"}`,
		`{"Action":"pass","Package":"q"}`,
		"count soak requests 1234567\n",
		"count fuzz FuzzKey executions 5\n",
		"something else that is 7\n",
	} {
		counted.readLine(line)
	}
	require.Equal(t,
		"1,234 random deaths, 1 tests, 2 tests skipped, 1,234,567 requests, 5 FuzzKey executions", counted.String())
	require.Equal(t, "what went wrong\nsomething else that is 7\n", counted.failureOutput.String())
}

// The errors of a package that does not build, or whose process crashes, are in events without a failing test.
func TestTallyKeepsWhatNoTestFailsWith(t *testing.T) {
	t.Parallel()
	var counted tally
	for _, line := range []string{
		`{"Action":"build-output","ImportPath":"p [p.test]","Output":"undefined: f\n"}`,
		`{"Action":"build-fail","ImportPath":"p [p.test]"}`,
		`{"Action":"output","Package":"q","Test":"TestPasses","Output":"not shown\n"}`,
		`{"Action":"pass","Package":"q","Test":"TestPasses"}`,
		`{"Action":"output","Package":"q","Test":"TestHangs","Output":"panic: test timed out\n"}`,
		`{"Action":"output","Package":"r","Test":"TestOfAnother","Output":"not shown\n"}`,
		`{"Action":"output","Package":"q","Output":"FAIL q\n"}`,
		`{"Action":"fail","Package":"q"}`,
	} {
		counted.readLine(line)
	}
	require.Equal(t, "undefined: f\npanic: test timed out\nFAIL q\n", counted.failureOutput.String())
}

func TestTableIsUpdated(t *testing.T) {
	t.Parallel()
	ran := func(name string, deaths int64) []*result {
		return []*result{{
			proof: proof{name: name, summary: "servers killed"}, tally: tally{counts: []count{{"deaths", deaths}}},
			runTime: 90 * time.Second,
		}}
	}
	var table string
	for range 2 {
		table = replaceRows(table, ran("wire", 7))
		table = replaceRows(table, ran("death", 10_000))
		require.Equal(t, tableHead+"death\tservers killed\t10,000 deaths\t1.5\nwire\tservers killed\t7 deaths\t1.5\n", table)
	}
	own, err := os.ReadFile("../../../../" + tablePath)
	require.NoError(t, err)
	require.Equal(t, string(own), replaceRows(string(own), nil))
}

// With -ci, chooseProofs leaves out the proofs without ciArgs, and only these.
func TestChoose(t *testing.T) {
	t.Parallel()
	everything, err := chooseProofs(options{})
	require.NoError(t, err)
	require.Len(t, everything, len(allProofs))
	some, err := chooseProofs(options{isCI: true})
	require.NoError(t, err)
	require.Less(t, len(some), len(allProofs))
	for _, p := range some {
		require.NotEmpty(t, p.ciArgs, p.name)
	}
	two, err := chooseProofs(options{onlyNames: "mutants,death"})
	require.NoError(t, err)
	require.Equal(t, "mutants death", two[0].name+" "+two[1].name)
	_, err = chooseProofs(options{isCI: true, onlyNames: "mutants,death"})
	require.ErrorContains(t, err, `"mutants" is not one of CI`)
	_, err = chooseProofs(options{onlyNames: "deaht"})
	require.ErrorContains(t, err, `no proof "deaht"`)
}

// The result of a failed proof has the output of the proof, and the result of a successful proof has the counts.
func TestResult(t *testing.T) {
	t.Parallel()
	script := func(text string) *result {
		return &result{proof: proof{name: "p", newCommand: func(o options) []string {
			return []string{"sh", "-c", strings.Repeat(text+";", o.repetitions)}
		}}}
	}
	holds := script("echo count p things 21")
	holds.runProof(t.Context(), t.TempDir(), options{repetitions: 2})
	require.NoError(t, holds.err)
	require.Equal(t, "42 things", holds.tally.String())

	echoes := func(o options) *result { // prints the last argument of its command
		r := &result{proof: proof{name: "p", ciArgs: []string{"count p things 2"}, newCommand: func(options) []string {
			return []string{"sh", "-c", `for last; do :; done; echo "$last"`, "sh", "count p things 1"}
		}}}
		r.runProof(t.Context(), t.TempDir(), o)
		return r
	}
	require.Equal(t, "1 things", echoes(options{}).tally.String())
	require.Equal(t, "2 things", echoes(options{isCI: true}).tally.String())

	fails := script("echo too bad; exit 3")
	fails.runProof(t.Context(), t.TempDir(), options{repetitions: 1})
	require.ErrorContains(t, fails.err, "exit status 3")
	require.Equal(t, "too bad\n", fails.failureOutput.String())
	require.Contains(t, formatTable([]*result{holds, fails}), "\tFAILED\t")

	idle := script("echo ok p [no tests to run]")
	idle.runProof(t.Context(), t.TempDir(), options{repetitions: 1})
	require.ErrorContains(t, idle.err, "it counts nothing")

	missing := &result{proof: proof{name: "p", newCommand: func(options) []string { return []string{"./missing"} }}}
	missing.runProof(t.Context(), t.TempDir(), options{repetitions: 1})
	require.Error(t, missing.err)
}
