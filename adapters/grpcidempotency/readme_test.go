package grpcidempotency_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program in the README is the example, which is run by a test of its own.
func TestReadmeShowsTheExample(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("../../examples/grpc/main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```go\n"+string(program)+"```\n")
}
