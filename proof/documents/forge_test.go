package documents_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Workflows pin actions to a commit, with the version in a comment, and call scripts that exist.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(".github/workflows/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		workflow := readFile(t, file)
		require.Contains(t, workflow, "\npermissions:\n  contents: read\n", file)
		for _, use := range regexp.MustCompile(`uses: .*`).FindAllString(workflow, -1) {
			require.Regexp(t, `^uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`, use, file)
		}
		for _, script := range regexp.MustCompile(`\.ci/\w+`).FindAllString(workflow, -1) {
			info, err := os.Stat(script)
			require.NoError(t, err, file)
			require.NotZero(t, info.Mode()&0o111, script)
		}
	}
}

// Dependabot watches every module.
func TestDependabotKnowsEveryModule(t *testing.T) {
	t.Parallel()
	modules := regexp.MustCompile(`(?m)^\t(\.\S*)$`).FindAllStringSubmatch(readFile(t, "go.work"), -1)
	require.NotEmpty(t, modules)
	var want []string
	for _, module := range modules {
		want = append(want, "      - /"+strings.TrimPrefix(strings.TrimPrefix(module[1], "."), "/"))
	}
	require.Contains(t, readFile(t, ".github/dependabot.yml"), "directories:\n"+strings.Join(want, "\n")+"\n    schedule:")
}
