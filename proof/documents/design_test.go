package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each block of code on the page stands in the file that is named above it, but for its indentation.
func TestMigratingShowsTheCode(t *testing.T) {
	t.Parallel()
	blocks := shownCode(t, "docs/migrating.md", "go|sql")
	require.Len(t, blocks, strings.Count(read(t, "docs/migrating.md"), "\n```")/2, "a block names no file")
	for _, block := range blocks {
		code := strings.TrimSuffix(unindented(block.code), "\n") // in the file, a backquote may follow
		require.Contains(t, "\n"+unindented(read(t, block.file)), "\n"+code, block.file)
	}
}

// What is called a test on the pages is one.
func TestMigratingAndDesignNameTests(t *testing.T) {
	t.Parallel()
	tests := read(t, "proof/compat/migrate_fiber_test.go") + read(t, "proof/compat/fiber_peer_test.go")
	for _, page := range []string{"docs/migrating.md", "docs/design.md"} {
		for _, name := range regexp.MustCompile("`(Test[A-Z].*?)`").FindAllStringSubmatch(read(t, page), -1) {
			require.Contains(t, tests, "\nfunc "+name[1]+"(")
		}
	}
}

// The files that the decisions name are there.
func TestDesignNamesFiles(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/design.md")
	decisions := strings.Split(page, "\n## ")[1:]
	require.NotEmpty(t, decisions)
	for _, decision := range decisions {
		title, _, _ := strings.Cut(decision, "\n")
		for _, part := range []string{"**Problem.**", "**Decision.**", "**Not chosen.**", "**Price.**", "**Code.**"} {
			require.Contains(t, decision, part, title)
		}
		_, code, _ := strings.Cut(decision, "**Code.**")
		files := regexp.MustCompile("`([a-z_A-Z0-9/-]+\\.(?:go|md|lua|sql))`").FindAllStringSubmatch(code, -1)
		require.NotEmpty(t, files, title)
		for _, file := range files {
			read(t, file[1])
		}
	}
}
