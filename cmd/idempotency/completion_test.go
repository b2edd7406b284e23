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

// A shell that runs what the program tells it completes commands, flags and states.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bin := t.TempDir()
	require.NoError(t, os.Symlink(program, filepath.Join(bin, "idempotency")))
	shell := exec.CommandContext(ctx, "bash", "--norc", "--noprofile", "-i")
	shell.Env = append([]string{"HOME=/nonexistent", "TERM=dumb", "PS1=$ ", "PATH=" + bin + ":" + os.Getenv("PATH")}, asProgram...)
	terminal, err := pty.Start(shell)
	require.NoError(t, err)
	defer func() {
		_ = terminal.Close() // the end of the shell
		_ = shell.Wait()
	}()
	var said strings.Builder
	expect := func(text string) {
		t.Helper()
		buffer := make([]byte, 4096)
		for !strings.Contains(said.String(), text) {
			n, err := terminal.Read(buffer)
			require.NoError(t, err, said.String())
			said.Write(buffer[:n])
		}
		said.Reset()
	}
	for _, step := range []struct{ types, expects string }{
		{"eval \"$(idempotency completion --code bash)\"\n", "$ "},
		{"echo rea''dy\n", "ready"},
		{"idempotency lis\t", "list "},
		{"--lar\t", "--largest "},
		{"--state ab\t", "--state abandoned "},
	} {
		_, err := io.WriteString(terminal, step.types)
		require.NoError(t, err)
		expect(step.expects)
	}
}
