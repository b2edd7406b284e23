package documents_test

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The names in italics in the tutorial are cases of the conformance suite.
func TestStoreTutorialNamesCases(t *testing.T) {
	t.Parallel()
	var suite strings.Builder
	files, err := filepath.Glob("idempotencytest/*.go")
	require.NoError(t, err)
	for _, file := range files {
		suite.WriteString(readFile(t, file))
	}
	names := regexp.MustCompile(`[ (]\*([A-Za-z][^*\n]*)\*[ ,.)]`).FindAllStringSubmatch(readFile(t, "docs/store.md"), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, suite.String(), `name: "`+name[1]+`"`)
	}
}

// The files that the tutorial copies into another module compile there.
func TestStoreTutorialCopiesWhatCanBeBuilt(t *testing.T) {
	t.Parallel()
	files := []string{"stores/internal/sqlstore/row.go", "stores/internal/sqlstore/lease.go", "stores/internal/sqlstore/checkpoints.go"}
	for _, file := range files {
		require.Contains(t, readFile(t, "docs/store.md"), "(../"+file+")")
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range parsed.Imports {
			require.NotContains(t, imported.Path.Value, "internal")
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"vet"}, files...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}
