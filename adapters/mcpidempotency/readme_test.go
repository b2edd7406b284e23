package mcpidempotency_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The code in the README is part of the example, and another test runs the example.
func TestReadmeShowsTheExample(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("../../examples/mcp/server.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```\n").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, removeIndent(program), "\n"+removeIndent(block[1]))
	}
}

// removeIndent removes the tabs at the start of each line.
func removeIndent(code []byte) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(string(code), "")
}
