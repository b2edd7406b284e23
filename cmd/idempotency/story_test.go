package main_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

var update = flag.Bool("update", false, "write the stories to testdata and to docs/support.md")

// chapter is a command of a story with the output.
type chapter struct{ name, command, output string }

// story collects the commands and outputs for a golden file.
type story struct {
	t        testing.TB
	backend  backend
	chapters []chapter
}

// runChapter runs the program, requires the exit status, and adds the output to the story.
func (s *story) runChapter(name string, status int, args ...string) string {
	s.t.Helper()
	got := s.backend.run(s.t, args...)
	require.Equal(s.t, status, got.status, "%s: %s%s", name, got.stdout, got.stderr)
	output := got.stdout + got.stderr
	s.chapters = append(s.chapters, chapter{name, formatCommand(args), normalizeOutput(output)})
	return output
}

// formatCommand returns the command line.
func formatCommand(args []string) string {
	for i, arg := range args {
		if strings.Contains(arg, " ") {
			args[i] = "'" + arg + "'"
		}
	}
	return "idempotency " + strings.Join(args, " ")
}

// normalizeOutput replaces times, IDs and addresses in output by constants.
func normalizeOutput(output string) string {
	for _, rule := range []struct{ pattern, replacement string }{
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`, "2026-11-21 10:05:29 UTC"},
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "2d1f6b0e-9c4a-4f37-8a55-0b9e6c1d7f42"},
		{`(lapses in|lease left +) (less than 1 s|\d+ s)`, "$1 4 s"},
		{`(kept for +)23 h 59 min`, "${1}23 h 59 min"},
		{`database shop_\d+`, "database shop"},
		{`127\.0\.0\.1:\d+`, "127.0.0.1:5432"},
		{`SQLite at \S+\.db`, "SQLite at /var/lib/shop/shop.db"},
		{`time=2\S+ level`, "time=2026-11-21T10:05:30.000Z level"},
		{`Redis at 127\.0\.0\.1:5432`, "Redis at 127.0.0.1:6379"},
	} {
		output = regexp.MustCompile(rule.pattern).ReplaceAllString(output, rule.replacement)
	}
	return output
}

// formatText returns the text of the golden file.
func (s *story) formatText() string {
	var b strings.Builder
	for _, c := range s.chapters {
		fmt.Fprintf(&b, "## %s\n\n$ %s\n%s\n", c.name, c.command, c.output)
	}
	return b.String()
}

// awaitOutput runs the program repeatedly until the output contains text.
func (s *story) awaitOutput(text string, args ...string) {
	s.t.Helper()
	waitUntil(s.t, func() bool { return strings.Contains(s.backend.run(s.t, args...).stdout, text) })
}

// The story of a key: the first attempt dies, the second attempt takes over, a retry is replayed, and the record is
// forgotten.
func TestStory(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		s := &story{t: t, backend: b}
		s.runChapter("never used", 1, commandForAlice("inspect")...)
		first := startService(t, b.kind, b.url())
		first.sendHangingPayment(t)
		s.runChapter("running", 0, commandForAlice("inspect")...)
		s.runChapter("forget while it is running", 4, commandForAlice("forget", "--yes")...)
		first.kill()
		s.awaitOutput("was abandoned", commandForAlice("inspect")...)
		s.runChapter("abandoned", 0, commandForAlice("inspect")...)
		s.runChapter("list of the abandoned", 0, "list", "--state", "abandoned")
		second := startService(t, b.kind, b.url())
		status, replayed := second.sendPayment(t)
		require.Equal(t, []any{http.StatusCreated, false}, []any{status, replayed})
		s.runChapter("taken over", 0, commandForAlice("inspect")...)
		status, replayed = second.sendPayment(t)
		require.Equal(t, []any{http.StatusCreated, true}, []any{status, replayed})
		s.runChapter("replayed", 0, commandForAlice("inspect", "--body")...)
		s.runChapter("stats", 0, "stats")
		s.runChapter("forget", 0, commandForAlice("forget", "--yes")...)
		s.runChapter("forgotten", 1, commandForAlice("inspect")...)
		status, replayed = second.sendPayment(t)
		require.Equal(t, []any{http.StatusCreated, false}, []any{status, replayed}, "the card is charged again")
		require.Contains(t, s.runChapter("executed again", 0, commandForAlice("inspect")...), "completed by attempt 1")

		requireGolden(t, filepath.Join("testdata", "story-"+b.kind+".txt"), s.formatText())
		if b.kind == "postgres" {
			requireDocumented(t, s.chapters, 1)
		}
	})
}

// requireGolden requires that file contains got. With -update, requireGolden writes the file.
func requireGolden(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "go test -run TestStory -update . writes the file")
	require.Equal(t, string(want), got, "go test -run TestStory -update . writes %s", file)
}

// docBlock matches a command in the documentation, with or without the output: a comment with the name of the chapter, and
// a block of text.
var docBlock = regexp.MustCompile("(?s)<!-- (output|command): ([^>]*) -->\n```\n.*?```\n")

// pageMutex protects the page.
var pageMutex sync.Mutex

// requireDocumented requires that wantBlocks blocks in docs/support.md belong to the chapters, and have their output. The
// remaining blocks belong to other stories. With -update, requireDocumented writes the page.
func requireDocumented(t testing.TB, chapters []chapter, wantBlocks int) {
	t.Helper()
	const file = "../../docs/support.md"
	pageMutex.Lock()
	defer pageMutex.Unlock()
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	blocks := 0
	want := docBlock.ReplaceAllStringFunc(string(have), func(block string) string {
		match := docBlock.FindStringSubmatch(block)
		for _, c := range chapters {
			if c.name == match[2] {
				blocks++
				if match[1] == "command" {
					c.output = ""
				}
				return fmt.Sprintf("<!-- %s: %s -->\n```\n$ %s\n%s```\n", match[1], c.name, c.command, c.output)
			}
		}
		return block
	})
	require.Equal(t, wantBlocks, blocks)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(have), "go test -run TestStory -update . writes %s", file)
}

// The story of an operation whose outcome is unknown twice. An operator resolves the operation first as not happened, and
// then as happened.
func TestStoryOfAResolution(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		s := &story{t: t, backend: b}
		resolve := func(flags ...string) []string {
			return append(commandForAlice("resolve", flags...), "--operator", "bob", "--yes")
		}
		steps := abandonAttempt(t, b, keyOfAlice).(idempotency.Checkpointer)
		_, err := steps.Checkpoint(t.Context(), "reserve", []byte(`"stock 7"`))
		require.NoError(t, err)
		s.runChapter("list of the abandoned", 0, "list", "--state", "abandoned")
		s.runChapter("not happened", 0, resolve("--not-happened", "--reason", "no charge at the provider")...)
		s.runChapter("resolved as not happened", 0, commandForAlice("show")...)
		abandonAttempt(t, b, keyOfAlice)
		s.runChapter("abandoned again", 0, commandForAlice("show")...)
		s.runChapter("happened", 0, resolve("--happened", "--status", "201", "--header", "Location: /payments/pay_1",
			"--reason", "the provider has charge ch_17")...)
		s.runChapter("resolved as happened", 0, commandForAlice("show")...)
		s.runChapter("resolved already", 4, resolve("--not-happened", "--reason", "a mistake")...)
		requireGolden(t, filepath.Join("testdata", "story-resolve-"+b.kind+".txt"), s.formatText())
		if b.kind == "postgres" {
			requireDocumented(t, s.chapters, 1)
		}
	})
}
