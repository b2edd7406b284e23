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

// chapter is one command of a story, and what it has printed.
type chapter struct{ name, command, output string }

// story collects what the program prints.
type story struct {
	t        testing.TB
	backend  backend
	chapters []chapter
}

// ask runs the program, which must end with a status, and adds what it says to the story.
func (s *story) ask(name string, status int, args ...string) string {
	s.t.Helper()
	got := s.backend.try(s.t, args...)
	require.Equal(s.t, status, got.status, "%s: %s%s", name, got.stdout, got.stderr)
	output := got.stdout + got.stderr
	s.chapters = append(s.chapters, chapter{name, shell(args), steady(output)})
	return output
}

// shell returns what a person types.
func shell(args []string) string {
	for i, arg := range args {
		if strings.Contains(arg, " ") {
			args[i] = "'" + arg + "'"
		}
	}
	return "idempotency " + strings.Join(args, " ")
}

// steady returns output with times, numbers and addresses that are always the same.
func steady(output string) string {
	for _, same := range []struct{ pattern, by string }{
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
		output = regexp.MustCompile(same.pattern).ReplaceAllString(output, same.by)
	}
	return output
}

func (s *story) text() string {
	var b strings.Builder
	for _, c := range s.chapters {
		fmt.Fprintf(&b, "## %s\n\n$ %s\n%s\n", c.name, c.command, c.output)
	}
	return b.String()
}

// await asks until the program says what is expected.
func (s *story) await(says string, args ...string) {
	s.t.Helper()
	await(s.t, func() bool { return strings.Contains(s.backend.try(s.t, args...).stdout, says) })
}

// The story of one key: its first attempt dies, the next one takes over, a retry is replayed, the record is forgotten.
func TestStory(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		s := &story{t: t, backend: b}
		s.ask("never used", 1, with("inspect")...)
		first := startService(t, b.kind, b.url())
		first.hang(t)
		s.ask("running", 0, with("inspect")...)
		s.ask("forget while it is running", 4, with("forget", "--yes")...)
		first.kill()
		s.await("was abandoned", with("inspect")...)
		s.ask("abandoned", 0, with("inspect")...)
		s.ask("list of the abandoned", 0, "list", "--state", "abandoned")
		second := startService(t, b.kind, b.url())
		status, replayed := second.pay(t)
		require.Equal(t, []any{http.StatusCreated, false}, []any{status, replayed})
		s.ask("taken over", 0, with("inspect")...)
		status, replayed = second.pay(t)
		require.Equal(t, []any{http.StatusCreated, true}, []any{status, replayed})
		s.ask("replayed", 0, with("inspect", "--body")...)
		s.ask("stats", 0, "stats")
		s.ask("forget", 0, with("forget", "--yes")...)
		s.ask("forgotten", 1, with("inspect")...)
		status, replayed = second.pay(t)
		require.Equal(t, []any{http.StatusCreated, false}, []any{status, replayed}, "it is charged again")
		require.Contains(t, s.ask("executed again", 0, with("inspect")...), "completed by attempt 1")

		golden(t, filepath.Join("testdata", "story-"+b.kind+".txt"), s.text())
		if b.kind == "postgres" {
			document(t, s.chapters, 1)
		}
	})
}

func golden(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "go test -run TestStory -update . writes the file")
	require.Equal(t, string(want), got, "go test -run TestStory -update . writes %s", file)
}

// docBlock is a command in the documentation, with or without its output: a comment with the name of the step, and a block
// of text.
var docBlock = regexp.MustCompile("(?s)<!-- (output|command): ([^>]*) -->\n```\n.*?```\n")

// documenting is held while an output in the page is written.
var documenting sync.Mutex

// document requires that so many blocks in docs/support.md are those of the story. The other blocks belong to other stories.
func document(t testing.TB, chapters []chapter, count int) {
	t.Helper()
	const file = "../../docs/support.md"
	documenting.Lock()
	defer documenting.Unlock()
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
	require.Equal(t, count, blocks)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(have), "go test -run TestStory -update . writes %s", file)
}

// The story of an operation that is uncertain twice: an operator says at first that it has not happened, and then that it has.
func TestStoryOfAResolution(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		s := &story{t: t, backend: b}
		resolve := func(flags ...string) []string {
			return append(with("resolve", flags...), "--operator", "bob", "--yes")
		}
		steps := abandon(t, b, keyOfAlice).(idempotency.Checkpointer)
		_, err := steps.Checkpoint(t.Context(), "reserve", []byte(`"stock 7"`))
		require.NoError(t, err)
		s.ask("list of the abandoned", 0, "list", "--state", "abandoned")
		s.ask("not happened", 0, resolve("--not-happened", "--reason", "no charge at the provider")...)
		s.ask("resolved as not happened", 0, with("show")...)
		abandon(t, b, keyOfAlice)
		s.ask("abandoned again", 0, with("show")...)
		s.ask("happened", 0, resolve("--happened", "--status", "201", "--header", "Location: /payments/pay_1",
			"--reason", "the provider has charge ch_17")...)
		s.ask("resolved as happened", 0, with("show")...)
		s.ask("resolved already", 4, resolve("--not-happened", "--reason", "a mistake")...)
		golden(t, filepath.Join("testdata", "story-resolve-"+b.kind+".txt"), s.text())
		if b.kind == "postgres" {
			document(t, s.chapters, 1)
		}
	})
}
