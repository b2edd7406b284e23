package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The command "go run ./proof/mutants" runs the mutants; these tests check the list and the verdicts.

func TestMutantsFitTheCode(t *testing.T) {
	t.Parallel()
	root, err := findRoot()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(allMutants), 25)
	seen := make(map[string]bool)
	for _, m := range allMutants {
		t.Run(m.name, func(t *testing.T) {
			require.False(t, seen[m.name], "the name of another one")
			seen[m.name] = true
			require.NotEmpty(t, m.broken)
			require.NotEqual(t, m.from, m.to)
			_, err := m.applyBug(root)
			require.NoError(t, err)
			name, _, _ := strings.Cut(m.test, "/")
			require.Contains(t, readTests(t, filepath.Join(root, m.findTarget().packageDir)), "\nfunc "+name+"(t *testing.T)")
		})
	}
}

// readTests returns the text of all test files in dir.
func readTests(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	var text strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		text.Write(content)
	}
	return text.String()
}

func TestMutantWithoutItsCode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	m := mutant{name: "m", file: "f", from: "x", to: "y"}
	for text, fits := range map[string]bool{"": false, "x": true, "x x": false} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "f"), []byte(text), 0o600))
		require.Equal(t, fits, checkApplicable(root, []mutant{m}) == nil, text)
	}
}

func TestVerdictOnARun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		events string
		want   verdict
		built  bool
	}{
		"killed": {`{"Action":"run","Test":"T"}` + "\n" + `{"Action":"fail","Test":"T"}`, verdict{hasRun: true, hasFailed: true}, true},
		"panicked": {`{"Action":"run","Test":"T"}` + "\n" + `{"Action":"output","Output":"panic"}` + "\n" + `{"Action":"fail"}`,
			verdict{hasRun: true, hasFailed: true, output: "panic"}, true},
		"survived": {`{"Action":"run","Test":"T"}` + "\n" + `{"Action":"pass","Test":"T"}`, verdict{hasRun: true}, true},
		"skipped": {`{"Action":"run","Test":"T"}` + "\n" + `{"Action":"skip","Test":"T"}`,
			verdict{hasRun: true, skippedTest: "T"}, true},
		"no test":     {`{"Action":"pass"}`, verdict{}, true},
		"not started": {`{"Action":"fail"}`, verdict{}, true},
		"not built":   {`{"Action":"build-fail"}` + "\n" + `{"Action":"fail","FailedBuild":"p"}`, verdict{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, built := parseEvents([]byte(tt.events))
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.built, built)
		})
	}
}
