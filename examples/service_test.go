package examples_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The service needs three lines for idempotency. The rest of the program does not use the package.
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
