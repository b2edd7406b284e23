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

// A stranger finds each function in an example of its package, and so each hook that a service implements: the types
// that are functions or interfaces.
func TestExamplesShowEveryEntry(t *testing.T) {
	t.Parallel()
	const module = "github.com/idempotency-go/idempotency"
	entry := regexp.MustCompile(`^(?:func (\w+)|type (\w+) (?:func\(|interface\{))`)
	lists, err := filepath.Glob("proof/release/api/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, lists)
	for _, list := range lists {
		var name, examples string
		for line := range strings.Lines(read(t, list)) {
			line = strings.TrimSpace(line)
			if path, ok := strings.CutPrefix(line, "package "); ok {
				name = filepath.Base(path)
				examples = examplesIn(t, "."+strings.TrimPrefix(path, module))
			} else if found := entry.FindStringSubmatch(line); found != nil {
				shown := regexp.MustCompile(`\b(?:` + name + `\.|func Example)` + found[1] + found[2] + `\b`)
				assert.True(t, shown.MatchString(examples), "no example of %s shows %s", name, found[1]+found[2])
			}
		}
	}
}

// examplesIn is the text of all examples in some folders.
func examplesIn(t *testing.T, folders string) string {
	t.Helper()
	var text strings.Builder
	for _, file := range exampleFiles(t, folders) {
		text.WriteString(read(t, file))
	}
	return text.String()
}

func exampleFiles(t *testing.T, folders string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folders, "example_*test.go"))
	require.NoError(t, err)
	return files
}

// An example is shown with the types and functions that it uses if they are declared in its own file.
func TestExamplesAreShownWhole(t *testing.T) {
	t.Parallel()
	files := slices.Concat(exampleFiles(t, "."), exampleFiles(t, "*"), exampleFiles(t, "stores/*"), exampleFiles(t, "adapters/*"))
	require.NotEmpty(t, files)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, example := range doc.Examples(parsed) {
			assert.NotNil(t, example.Play, "Example%s in %s uses what another file declares", example.Name, file)
		}
	}
}
