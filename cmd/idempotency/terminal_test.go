package main_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// runOnTerminal runs the program on a terminal. At a question, runOnTerminal types the result of reply, whose argument is
// the output until then.
func runOnTerminal(t testing.TB, env []string, reply func(output string) string, args ...string) (status int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	return runCommandOnTerminal(t, newCommand(ctx, append([]string{"TERM=xterm"}, env...), args...), reply)
}

// runCommandOnTerminal is runOnTerminal for a command, whose output may go to a file.
func runCommandOnTerminal(t testing.TB, cmd *exec.Cmd, reply func(output string) string) (status int, output string) {
	t.Helper()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 200})
	require.NoError(t, err)
	defer terminal.Close()
	var all bytes.Buffer
	buffer := make([]byte, 4096)
	for {
		n, err := terminal.Read(buffer)
		all.Write(buffer[:n])
		if reply != nil && strings.HasSuffix(all.String(), "leave it: ") {
			_, err := io.WriteString(terminal, reply(all.String())+"\n")
			require.NoError(t, err)
			reply = nil
		}
		if err != nil { // the program has ended
			break
		}
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), all.String()
}

// confirmationPattern matches the question, and captures the word that confirms.
var confirmationPattern = regexp.MustCompile(`Type ([0-9a-f]{8}) to (?:forget|resolve) it`)

// On a terminal the program asks for confirmation, and accepts only the word.
func TestQuestion(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		completeRecord(t, store, keyOfAlice, answer)
		word := keyOfAlice.OperationID().String()[:8]
		for _, no := range []string{"", "yes", "y", word[:7], word + "0", "\x04"} {
			status, said := runOnTerminal(t, b.environment, func(said string) string {
				require.Contains(t, strings.Join(strings.Fields(said), " "), "happen A SECOND TIME")
				require.Equal(t, word, confirmationPattern.FindStringSubmatch(said)[1])
				return no
			}, commandForAlice("forget")...)
			require.Equal(t, 4, status, "%q: %s", no, said)
			require.Contains(t, said, "not forgotten: you did not type "+word)
			require.Equal(t, 0, b.run(t, commandForAlice("inspect")...).status, "%q", no)
		}
		status, said := runOnTerminal(t, b.environment, func(string) string { return " " + word }, commandForAlice("forget")...)
		require.Zero(t, status, said)
		require.Contains(t, said, "Forgotten.")
		require.Equal(t, 1, b.run(t, commandForAlice("inspect")...).status)
	})
}

// The warning is on the terminal before the question, even if the output goes to a file.
func TestQuestionBesideAFile(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	completeRecord(t, b.openStore(t), keyOfAlice, answer)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	cmd := newCommand(t.Context(), b.environment, commandForAlice("forget")...)
	cmd.Stdout = out
	status, said := runCommandOnTerminal(t, cmd, func(said string) string {
		require.Contains(t, strings.Join(strings.Fields(said), " "), "happen A SECOND TIME")
		return "no"
	})
	require.Equal(t, 4, status, said)
}

// If the record changes while the question waits, the program does not forget the record.
func TestRecordChangesBehindTheQuestion(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		for name, test := range map[string]struct {
			changeRecord func(key idempotency.Key)
			wantStatus   int
			wantOutput   string
		}{
			"claimed":   {func(key idempotency.Key) { claimKey(t, store, key, claimRequest) }, 4, "is running by now"},
			"completed": {func(key idempotency.Key) { completeRecord(t, store, key, answer) }, 4, "has changed since it was shown"},
			"released again": {func(key idempotency.Key) {
				require.NoError(t, claimKey(t, store, key, claimRequest).Release(t.Context(), idempotency.Release{TTL: claimRequest.TTL}))
			}, 4, "has changed since it was shown"},
			"forgotten": {func(key idempotency.Key) {
				got := b.run(t, append(append([]string{"forget"}, keyFlags(key)...), "--yes")...)
				require.Zero(t, got.status, got.stderr)
			}, 1, "no record any more"},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: name}
			require.NoError(t, claimKey(t, store, key, claimRequest).Release(t.Context(), idempotency.Release{TTL: claimRequest.TTL}))
			status, said := runOnTerminal(t, b.environment, func(said string) string {
				test.changeRecord(key)
				return confirmationPattern.FindStringSubmatch(said)[1]
			}, append([]string{"forget"}, keyFlags(key)...)...)
			require.Equal(t, test.wantStatus, status, "%s: %s", name, said)
			require.Contains(t, said, test.wantOutput, name)
		}
	})
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	at := strings.LastIndex(s, sep)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(sep):], true
}

// The output has colours only on a terminal with colours. The columns are aligned with and without colours.
func TestColours(t *testing.T) {
	t.Parallel()
	b := newPostgres(t)
	store := b.openStore(t)
	completeRecord(t, store, keyOfAlice, answer)
	claimKey(t, store, idempotency.Key{User: "bob", Endpoint: "POST /payments", ID: "1"}, claimRequest)
	_, coloured := runOnTerminal(t, b.environment, nil, "list")
	_, coloured, _ = cutLast(coloured, "\x1b[K") // the listing replaces the progress
	require.Contains(t, coloured, "\x1b[32mcompleted\x1b[0m")
	require.Contains(t, coloured, "\x1b[34mrunning\x1b[0m")
	bare := regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(coloured, "")
	for _, setting := range []string{"NO_COLOR=1", "TERM=dumb"} {
		_, plain := runOnTerminal(t, append([]string{setting}, b.environment...), nil, "list")
		require.NotContains(t, plain, "\x1b", setting)
	}
	piped := runProcess(t, append(b.environment, "TERM=xterm"), "list").stdout
	require.NotContains(t, piped, "\x1b")
	findColumn := func(text, part string) (columns []int) {
		for line := range strings.Lines(text) {
			columns = append(columns, strings.Index(line, part))
		}
		return columns
	}
	for _, text := range []string{bare, piped} {
		columns := findColumn(text, "2026-")
		require.Len(t, columns, 3)
		require.Equal(t, findColumn(text, "began")[0], columns[1])
		require.Equal(t, columns[1], columns[2])
	}
	_, coloured = runOnTerminal(t, b.environment, nil, commandForAlice("inspect")...)
	require.Contains(t, coloured, "\x1b[32mcompleted\x1b[0m")
	_, coloured = runOnTerminal(t, b.environment, nil, commandForAlice("inspect", "--json")...)
	require.NotContains(t, coloured, "\x1b")
}

// If the record changes while the question waits, the program does not resolve the operation.
func TestRecordChangesBehindTheResolution(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		for name, test := range map[string]struct {
			changeRecord func(key idempotency.Key)
			wantStatus   int
			wantOutput   string
		}{
			"nothing": {func(idempotency.Key) {}, 0, "Resolved."},
			"running": {func(key idempotency.Key) { claimKey(t, store, key, takeOverRequest) }, 4, "is running by now"},
			"completed": {func(key idempotency.Key) {
				require.NoError(t, claimKey(t, store, key, takeOverRequest).Complete(t.Context(), answer, claimRequest.TTL))
			}, 4, "has changed since it was shown"},
			"resolved": {func(key idempotency.Key) {
				got := b.run(t, resolveCommand(key, "--happened", "--status", "200", "--yes")...)
				require.Zero(t, got.status, got.stderr)
			}, 4, "has changed since it was shown"},
			"forgotten": {func(key idempotency.Key) {
				got := b.run(t, append(append([]string{"forget"}, keyFlags(key)...), "--yes")...)
				require.Zero(t, got.status, got.stderr)
			}, 1, "no record any more"},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: name}
			abandonAttempt(t, b, key)
			status, said := runOnTerminal(t, b.environment, func(said string) string {
				require.Contains(t, strings.Join(strings.Fields(said), " "), "they happen A SECOND TIME")
				test.changeRecord(key)
				return confirmationPattern.FindStringSubmatch(said)[1]
			}, resolveCommand(key, "--not-happened")...)
			require.Equal(t, test.wantStatus, status, "%s: %s", name, said)
			require.Contains(t, said, test.wantOutput, name)
		}
		key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "no"}
		abandonAttempt(t, b, key)
		status, said := runOnTerminal(t, b.environment, func(string) string { return "yes" },
			resolveCommand(key, "--happened", "--status", "200")...)
		require.Equal(t, 4, status, said)
		require.Contains(t, said, "not resolved: you did not type "+key.OperationID().String()[:8])
		require.Contains(t, b.run(t, append([]string{"show"}, keyFlags(key)...)...).stdout, "abandoned")
	})
}

// No command and no format prints control characters of users, headers or bodies.
func TestHostileText(t *testing.T) {
	t.Parallel()
	const hostileText = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnihtyna\u2066\x7f\r\nForgotten.\nidempotency: fake" +
		"\b\x00\xff\xfe\U000E0041"
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		hostile := idempotency.Key{User: "al" + hostileText, Endpoint: "POST /" + hostileText, ID: "k" + hostileText}
		resp := idempotency.Response{
			Status: 200,
			Header: idempotency.NewFields(map[string][]string{"X-Attack": {hostileText}, "X-" + hostileText: {hostileText}}),
			Body:   []byte(hostileText),
		}
		completeRecord(t, store, hostile, resp)
		completeRecord(t, store, keyOfAlice, resp)
		uncertain := idempotency.Key{User: "u" + hostileText, Endpoint: "POST /" + hostileText, ID: "uncertain" + hostileText}
		abandonAttempt(t, b, uncertain)
		body := filepath.Join(t.TempDir(), "body")
		require.NoError(t, os.WriteFile(body, []byte(hostileText), 0o600))
		byOperation := []string{"--operation", uncertain.OperationID().String()}
		flag := []string{"--operation", hostile.OperationID().String()}
		for _, args := range [][]string{
			append([]string{"inspect", "--body"}, flag...), append([]string{"inspect", "--body", "--json"}, flag...),
			commandForAlice("inspect", "--body"), commandForAlice("inspect", "--body", "--json"),
			{"list"}, {"list", "--json"}, {"stats"}, {"stats", "--json"},
			append([]string{"resolve", "--happened", "--status", "200", "--body", body, "--yes",
				"--reason", hostileText[:len(hostileText)-14], "--header", "X-Attack: \u009b31m\u202egnihtyna"}, byOperation...),
			append([]string{"show", "--body"}, byOperation...), append([]string{"show", "--json"}, byOperation...),
			append([]string{"forget", "--yes", "--json"}, flag...), commandForAlice("forget", "--yes"),
		} {
			got := b.run(t, args...)
			require.Zero(t, got.status, "%v: %s", args, got.stderr)
			requirePrintable(t, got.stdout+got.stderr)
			require.NotContains(t, got.stdout, "\nForgotten.\nidempotency: fake", args)
			require.NotContains(t, got.stdout, "\nidempotency: fake", args)
		}
		got := b.run(t, "inspect", "--user", hostileText[:len(hostileText)-10], "--endpoint", "x", "--key", "y", "--"+"x\x1b[31m")
		require.Equal(t, 2, got.status)
		requirePrintable(t, got.stdout+got.stderr)
	})
}

// requirePrintable requires that text contains only printable characters and line ends.
func requirePrintable(t testing.TB, text string) {
	t.Helper()
	for _, c := range text {
		require.True(t, c == '\n' || strconv.IsPrint(c), "%q in %q", c, text)
	}
}

// startSilentServer returns the address of a server that accepts connections, and sends nothing.
func startSilentServer(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}
