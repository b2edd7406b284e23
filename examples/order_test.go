package examples_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page on the order of middlewares shows the service as it is.
func TestOrderShowsTheService(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/order.md")
	require.NoError(t, err)
	shown := snippet.FindAllStringSubmatch(string(page), -1)
	require.Len(t, shown, 2)
	source := linked(t, string(page))
	for _, found := range shown {
		require.Contains(t, source, unindented(found[1]))
	}
}

// Three lines of the service are there for idempotency: nothing else in it uses the package.
func TestServiceIsGuardedByThreeLines(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("service/main.go")
	require.NoError(t, err)
	_, code, found := strings.Cut(string(source), "\n)\n") // behind the imports
	require.True(t, found)
	var lines []string
	for line := range strings.Lines(code) {
		if usesGuard.MatchString(line) {
			lines = append(lines, line)
		}
	}
	require.Len(t, lines, 3)
	for i, line := range lines {
		require.Contains(t, line, "// the guard, line "+strconv.Itoa(i+1))
	}
}

var usesGuard = regexp.MustCompile(`\bidem(potency)?\.|\bidem\b`)
