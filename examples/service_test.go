package examples_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
