package grpcidempotency_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The code in the README is part of the example, which is run by a test of its own.
func TestReadmeShowsTheExample(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("../../examples/grpc/main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```\n").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, unindented(program), "\n"+unindented(block[1]))
	}
}

func unindented(code []byte) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(string(code), "")
}
