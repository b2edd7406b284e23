package documents_test

import (
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each exported function appears in an example of its package. So does each hook that a service implements, because
// hooks are function or interface types.
func TestExamplesShowEveryEntry(t *testing.T) {
	t.Parallel()
	const module = "github.com/idempotency-go/idempotency"
	entry := regexp.MustCompile(`^(?:func (\w+)|type (\w+) (?:func\(|interface\{))`)
	lists, err := filepath.Glob("proof/release/api/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, lists)
	for _, list := range lists {
		var name, examples string
		for line := range strings.Lines(readFile(t, list)) {
			line = strings.TrimSpace(line)
			if path, ok := strings.CutPrefix(line, "package "); ok {
				name = filepath.Base(path)
				examples = readExamples(t, "."+strings.TrimPrefix(path, module))
			} else if found := entry.FindStringSubmatch(line); found != nil {
				shown := regexp.MustCompile(`\b(?:` + name + `\.|func Example)` + found[1] + found[2] + `\b`)
				assert.True(t, shown.MatchString(examples), "no example of %s shows %s", name, found[1]+found[2])
			}
		}
	}
}

// readExamples returns the text of all example files in folders, which may be a pattern.
func readExamples(t *testing.T, folders string) string {
	t.Helper()
	var text strings.Builder
	for _, file := range findExampleFiles(t, folders) {
		text.WriteString(readFile(t, file))
	}
	return text.String()
}

func findExampleFiles(t *testing.T, folders string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folders, "example_*test.go"))
	require.NoError(t, err)
	return files
}

// The documentation shows an example with its types and functions only if the example's own file declares them.
func TestExamplesAreShownWhole(t *testing.T) {
	t.Parallel()
	files := slices.Concat(
		findExampleFiles(t, "."), findExampleFiles(t, "*"), findExampleFiles(t, "stores/*"), findExampleFiles(t, "adapters/*"),
	)
	require.NotEmpty(t, files)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, example := range doc.Examples(parsed) {
			assert.NotNil(t, example.Play, "Example%s in %s uses what another file declares", example.Name, file)
		}
	}
}
