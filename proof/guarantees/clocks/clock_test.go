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

// newClock returns a clock that is right. The users that servers run as can read its file.
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

// publicDir returns a directory that everybody can read, for the duration of the test.
func publicDir(t testing.TB) (string, error) {
	dir, err := os.MkdirTemp("", "clocks-")
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, os.Chmod(dir, 0o755)
}

// set makes the wall clock jump to so much ahead of the right time.
func (c *clock) set(ahead time.Duration) { c.shift(skew.Wall, ahead) }

func (c *clock) shift(which int, ahead time.Duration) {
	seconds := binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second))
	_, err := c.file.WriteAt(seconds, int64(which*len(seconds)))
	require.NoError(c.t, err)
}

// env returns what the environment of a server needs to follow the clock.
func (c *clock) env() []string {
	return []string{"LD_PRELOAD=" + buildShim(c.t), "CLOCK_FILE=" + c.file.Name()}
}

// buildShim builds the library that shifts the clock of a server.
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
