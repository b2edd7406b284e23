package main_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

// A shell that evaluates the output of the command completion completes commands, flags and states.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	bin := t.TempDir()
	require.NoError(t, os.Symlink(programPath, filepath.Join(bin, "idempotency")))
	shell := exec.CommandContext(ctx, "bash", "--norc", "--noprofile", "-i")
	shell.Env = append([]string{"HOME=/nonexistent", "TERM=dumb", "PS1=$ ", "PATH=" + bin + ":" + os.Getenv("PATH")},
		programEnvironment...)
	terminal, err := pty.Start(shell)
	require.NoError(t, err)
	defer func() {
		_ = terminal.Close() // ends the shell
		_ = shell.Wait()
	}()
	var output strings.Builder
	expect := func(text string) {
		t.Helper()
		buffer := make([]byte, 4096)
		for !strings.Contains(output.String(), text) {
			n, err := terminal.Read(buffer)
			require.NoError(t, err, output.String())
			output.Write(buffer[:n])
		}
		output.Reset()
	}
	for _, step := range []struct{ typedText, wantOutput string }{
		{"eval \"$(idempotency completion --code bash)\"\n", "$ "},
		{"echo rea''dy\n", "ready"},
		{"idempotency lis\t", "list "},
		{"--ord\t", "--order "},
		{"--state ab\t", "--state abandoned "},
	} {
		_, err := io.WriteString(terminal, step.typedText)
		require.NoError(t, err)
		expect(step.wantOutput)
	}
}
