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

// onTerminal runs the program on a terminal. When it has said what a question ends with, it gets the answer that reply makes
// of what was said.
func onTerminal(t testing.TB, env []string, reply func(said string) string, args ...string) (status int, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return converse(t, command(ctx, append([]string{"TERM=xterm"}, env...), args...), reply)
}

// converse does that with a command, whose output may go elsewhere.
func converse(t testing.TB, cmd *exec.Cmd, reply func(said string) string) (status int, said string) {
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

var toType = regexp.MustCompile(`Type ([0-9a-f]{8}) to (?:forget|resolve) it`)

// On a terminal the program asks, and takes nothing but the word for a yes.
func TestQuestion(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		complete(t, store, keyOfAlice, answer)
		word := keyOfAlice.OperationID().String()[:8]
		for _, no := range []string{"", "yes", "y", word[:7], word + "0", "\x04"} {
			status, said := onTerminal(t, b.env, func(said string) string {
				require.Contains(t, strings.Join(strings.Fields(said), " "), "happen A SECOND TIME")
				require.Equal(t, word, toType.FindStringSubmatch(said)[1])
				return no
			}, with("forget")...)
			require.Equal(t, 4, status, "%q: %s", no, said)
			require.Contains(t, said, "not forgotten: you did not type "+word)
			require.Equal(t, 0, b.try(t, with("inspect")...).status, "%q", no)
		}
		status, said := onTerminal(t, b.env, func(string) string { return " " + word }, with("forget")...)
		require.Zero(t, status, said)
		require.Contains(t, said, "Forgotten.")
		require.Equal(t, 1, b.try(t, with("inspect")...).status)
	})
}

// Nobody is asked without the warning, though the output goes to a file.
func TestQuestionBesideAFile(t *testing.T) {
	t.Parallel()
	b := newRedis(t)
	complete(t, b.open(t), keyOfAlice, answer)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	cmd := command(t.Context(), b.env, with("forget")...)
	cmd.Stdout = out
	status, said := converse(t, cmd, func(said string) string {
		require.Contains(t, strings.Join(strings.Fields(said), " "), "happen A SECOND TIME")
		return "no"
	})
	require.Equal(t, 4, status, said)
}

// Whatever happens to the record while a person reads, what they have not been shown is not forgotten.
func TestRecordChangesBehindTheQuestion(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		for name, test := range map[string]struct {
			change func(key idempotency.Key)
			status int
			says   string
		}{
			"claimed":   {func(key idempotency.Key) { claim(t, store, key, attempt) }, 4, "is running by now"},
			"completed": {func(key idempotency.Key) { complete(t, store, key, answer) }, 4, "has changed since it was shown"},
			"tried again": {func(key idempotency.Key) {
				require.NoError(t, claim(t, store, key, attempt).Release(t.Context(), attempt.TTL))
			}, 4, "has changed since it was shown"},
			"forgotten": {func(key idempotency.Key) {
				got := b.try(t, append(append([]string{"forget"}, asking(key)...), "--yes")...)
				require.Zero(t, got.status, got.stderr)
			}, 1, "no record any more"},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: name}
			require.NoError(t, claim(t, store, key, attempt).Release(t.Context(), attempt.TTL))
			status, said := onTerminal(t, b.env, func(said string) string {
				test.change(key)
				return toType.FindStringSubmatch(said)[1]
			}, append([]string{"forget"}, asking(key)...)...)
			require.Equal(t, test.status, status, "%s: %s", name, said)
			require.Contains(t, said, test.says, name)
		}
	})
}

// There are colours on a terminal that shows them, and nowhere else. The columns are aligned with them and without.
func TestColours(t *testing.T) {
	t.Parallel()
	b := newPostgres(t)
	store := b.open(t)
	complete(t, store, keyOfAlice, answer)
	claim(t, store, idempotency.Key{User: "bob", Endpoint: "POST /payments", ID: "1"}, attempt)
	_, coloured := onTerminal(t, b.env, nil, "list")
	require.Contains(t, coloured, "\x1b[32mcompleted\x1b[0m")
	require.Contains(t, coloured, "\x1b[34mrunning\x1b[0m")
	bare := regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(coloured, "")
	for _, setting := range []string{"NO_COLOR=1", "TERM=dumb"} {
		_, plain := onTerminal(t, append([]string{setting}, b.env...), nil, "list")
		require.NotContains(t, plain, "\x1b", setting)
	}
	piped := try(t, append(b.env, "TERM=xterm"), "list").stdout
	require.NotContains(t, piped, "\x1b")
	column := func(text, of string) (columns []int) {
		for line := range strings.Lines(text) {
			columns = append(columns, strings.Index(line, of))
		}
		return columns
	}
	for _, text := range []string{bare, piped} {
		at := column(text, "2026-")
		require.Len(t, at, 3)
		require.Equal(t, column(text, "began")[0], at[1])
		require.Equal(t, at[1], at[2])
	}
	_, coloured = onTerminal(t, b.env, nil, with("inspect")...)
	require.Contains(t, coloured, "\x1b[32mcompleted\x1b[0m")
	_, coloured = onTerminal(t, b.env, nil, with("inspect", "--json")...)
	require.NotContains(t, coloured, "\x1b")
}

// Nor is what they have not been shown resolved.
func TestRecordChangesBehindTheResolution(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		for name, test := range map[string]struct {
			change func(key idempotency.Key)
			status int
			says   string
		}{
			"nothing": {func(idempotency.Key) {}, 0, "Resolved."},
			"running": {func(key idempotency.Key) { claim(t, store, key, takingOver) }, 4, "is running by now"},
			"completed": {func(key idempotency.Key) {
				require.NoError(t, claim(t, store, key, takingOver).Complete(t.Context(), answer, attempt.TTL))
			}, 4, "has changed since it was shown"},
			"resolved": {func(key idempotency.Key) {
				got := b.try(t, resolving(key, "--happened", "--status", "200", "--yes")...)
				require.Zero(t, got.status, got.stderr)
			}, 4, "has changed since it was shown"},
			"forgotten": {func(key idempotency.Key) {
				got := b.try(t, append(append([]string{"forget"}, asking(key)...), "--yes")...)
				require.Zero(t, got.status, got.stderr)
			}, 1, "no record any more"},
		} {
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: name}
			abandon(t, b, key)
			status, said := onTerminal(t, b.env, func(said string) string {
				require.Contains(t, strings.Join(strings.Fields(said), " "), "they happen A SECOND TIME")
				test.change(key)
				return toType.FindStringSubmatch(said)[1]
			}, resolving(key, "--not-happened")...)
			require.Equal(t, test.status, status, "%s: %s", name, said)
			require.Contains(t, said, test.says, name)
		}
		key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "no"}
		abandon(t, b, key)
		status, said := onTerminal(t, b.env, func(string) string { return "yes" }, resolving(key, "--happened", "--status", "200")...)
		require.Equal(t, 4, status, said)
		require.Contains(t, said, "not resolved: you did not type "+key.OperationID().String()[:8])
		require.Contains(t, b.try(t, append([]string{"show"}, asking(key)...)...).stdout, "abandoned")
	})
}

// What strangers have written reaches no terminal as they have written it, whatever the command and the form.
func TestHostileText(t *testing.T) {
	t.Parallel()
	const attack = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnihtyna\u2066\x7f\r\nForgotten.\nidempotency: fake" +
		"\b\x00\xff\xfe\U000E0041"
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		hostile := idempotency.Key{User: "al" + attack, Endpoint: "POST /" + attack, ID: "k" + attack}
		resp := idempotency.Response{
			Status: 200,
			Header: idempotency.NewFields(map[string][]string{"X-Attack": {attack}, "X-" + attack: {attack}}),
			Body:   []byte(attack),
		}
		complete(t, store, hostile, resp)
		complete(t, store, keyOfAlice, resp)
		uncertain := idempotency.Key{User: "u" + attack, Endpoint: "POST /" + attack, ID: "uncertain" + attack}
		abandon(t, b, uncertain)
		body := filepath.Join(t.TempDir(), "body")
		require.NoError(t, os.WriteFile(body, []byte(attack), 0o600))
		uncertainDigest := uncertain.Digest()
		digest := hostile.Digest()
		flag := []string{"--digest", hexOf(digest)}
		for _, args := range [][]string{
			append([]string{"inspect", "--body"}, flag...), append([]string{"inspect", "--body", "--json"}, flag...),
			with("inspect", "--body"), with("inspect", "--body", "--json"),
			{"list"}, {"list", "--json"}, {"stats"}, {"stats", "--json"},
			{"resolve", "--digest", hexOf(uncertainDigest), "--happened", "--status", "200", "--body", body, "--yes",
				"--reason", attack[:len(attack)-14], "--header", "X-Attack: \u009b31m\u202egnihtyna"},
			{"show", "--digest", hexOf(uncertainDigest), "--body"}, {"show", "--digest", hexOf(uncertainDigest), "--json"},
			append([]string{"forget", "--yes", "--json"}, flag...), with("forget", "--yes"),
		} {
			got := b.try(t, args...)
			require.Zero(t, got.status, "%v: %s", args, got.stderr)
			requireVisible(t, got.stdout+got.stderr)
			require.NotContains(t, got.stdout, "\nForgotten.\nidempotency: fake", args)
			require.NotContains(t, got.stdout, "\nidempotency: fake", args)
		}
		got := b.try(t, "inspect", "--user", attack[:len(attack)-10], "--endpoint", "x", "--key", "y", "--"+"x\x1b[31m")
		require.Equal(t, 2, got.status)
		requireVisible(t, got.stdout+got.stderr)
	})
}

// requireVisible requires that nothing in text can do anything to a terminal.
func requireVisible(t testing.TB, text string) {
	t.Helper()
	for _, c := range text {
		require.True(t, c == '\n' || strconv.IsPrint(c), "%q in %q", c, text)
	}
}

// silent returns the address of a server that accepts connections and says nothing.
func silent(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}
