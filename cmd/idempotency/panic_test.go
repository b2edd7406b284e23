package main_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	main "github.com/idempotency-go/idempotency/cmd/idempotency"
)

// The report of a panic has no credential either. No argument makes the program panic, so what reads its
// variables does.
func TestPanic(t *testing.T) {
	t.Parallel()
	const address = "redis://:s3cret@host"
	env := func(name string) (string, bool) {
		switch name {
		case "REDIS_URL":
			return address, true
		case "NO_COLOR":
			panic("cannot dial " + address + "\x1b[31m")
		}
		return "", false
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer file.Close()
	require.Equal(t, 3, main.Run([]string{"list"}, env, os.Stdin, file, file))
	said, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Contains(t, string(said), "panic: cannot dial ***")
	require.Contains(t, string(said), "run.go")
	require.NotContains(t, string(said), "s3cret")
	require.NotContains(t, string(said), "\x1b")
}
