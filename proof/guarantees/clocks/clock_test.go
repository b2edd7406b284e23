//go:build linux

package clocks_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/clocks/skew"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// clock shifts the clocks of the programs that follow its file.
type clock struct {
	t    testing.TB
	file *os.File
}

// newClock returns a clock that shows the right time. Its file is readable for the users that the servers run as.
func newClock(t testing.TB) *clock {
	t.Helper()
	dir, err := publicDir(t)
	require.NoError(t, err)
	file, err := os.CreateTemp(dir, "clock-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	require.NoError(t, file.Chmod(0o644))
	require.NoError(t, file.Truncate(skew.Size))
	return &clock{t, file}
}

// publicDir creates a directory that every user can read, and removes the directory after the test.
func publicDir(t testing.TB) (string, error) {
	dir, err := os.MkdirTemp("", "clocks-")
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, os.Chmod(dir, 0o755)
}

// setWallClock makes the wall clock jump to the right time plus ahead.
func (c *clock) setWallClock(ahead time.Duration) { c.shiftClock(skew.Wall, ahead) }

func (c *clock) shiftClock(which int, ahead time.Duration) {
	seconds := binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second))
	_, err := c.file.WriteAt(seconds, int64(which*len(seconds)))
	require.NoError(c.t, err)
}

// buildEnv builds the shim, and returns the environment variables that make a server follow the clock.
func (c *clock) buildEnv() []string {
	return []string{"LD_PRELOAD=" + buildShim(c.t), "CLOCK_FILE=" + c.file.Name()}
}

// buildShim builds the library that shifts the clock of a server, and returns its path.
func buildShim(t testing.TB) string {
	dir, err := publicDir(t)
	require.NoError(t, err)
	path := filepath.Join(dir, "shim.so")
	out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", path, "testdata/shim.c").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("building the shim: %w\n%s", err, out)
	}
	servertest.Require(t, err)
	require.NoError(t, os.Chmod(path, 0o755))
	return path
}
