package idempotency_test

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/stretchr/testify/require"
)

func TestReadmeSnippetsAreCompiledExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("example_*test.go")
	require.NoError(t, err)
	var examples string
	for _, file := range files {
		examples += unindented(read(t, file))
	}
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	require.NotEmpty(t, snippets)
	for _, snippet := range snippets {
		if strings.HasPrefix(snippet[1], "package main") {
			requireProgram(t, snippet[1])
			continue
		}
		require.Contains(t, examples, "\n"+unindented(snippet[1]))
	}
}

// requireProgram fails if a program is not formatted, or does not compile.
func requireProgram(t *testing.T, program string) {
	t.Helper()
	formatted, err := format.Source([]byte(program))
	require.NoError(t, err)
	require.Equal(t, string(formatted), program)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The type of a problem is a URL that leads to its row in the README.
func TestReadmeHasAnAnchorForEveryProblem(t *testing.T) {
	t.Parallel()
	codes := regexp.MustCompile(`Code: "(.*?)"`).FindAllStringSubmatch(read(t, "errors.go"), -1)
	require.NotEmpty(t, codes)
	for _, code := range codes {
		require.Regexp(t, `<a name="`+code[1]+`"></a>.*\d{3} .`+code[1], read(t, "README.md"))
	}
}

func TestReadmeListsEveryOption(t *testing.T) {
	t.Parallel()
	for _, option := range reflect.VisibleFields(reflect.TypeFor[idempotency.Options]()) {
		require.Contains(t, read(t, "README.md"), "\n| `"+option.Name+"` |")
	}
}

// What the pages on security and guarantees promise is shown by tests that exist.
func TestPagesNameTests(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, folder := range []string{".", "cmd/idempotency-proxy", "examples", "idempotencytest", "internal/*", "internal/proof/*", "pgxstore"} {
		files, err := filepath.Glob(folder + "/*_test.go")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			tests.WriteString(read(t, file))
		}
	}
	for _, page := range []string{"docs/security.md", "docs/guarantees.md"} {
		names := regexp.MustCompile("`((?:Test|Fuzz|Example)[A-Z].*?)`").FindAllStringSubmatch(read(t, page), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			require.True(t, strings.Contains(tests.String(), "\nfunc "+name[1]+"("), "no %s", name[1])
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

func unindented(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}
