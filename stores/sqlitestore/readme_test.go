package sqlitestore_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program in README.md is one that is compiled.
func TestReadmeShowsAProgram(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, shown, _ := strings.Cut(string(readme), "```go\n")
	shown, _, found := strings.Cut(shown, "```")
	require.True(t, found)
	program, err := os.ReadFile("internal/readme/main.go")
	require.NoError(t, err)
	require.Equal(t, "// Readme is the program that README.md shows.\n"+shown, string(program))
}
