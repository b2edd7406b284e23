package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The attacks of the page and the entries of attacks.tsv match each other, in the same order. Each entry names
// existing tests of the protection.
func TestAttacksAreTested(t *testing.T) {
	t.Parallel()
	tests := findTests(t)
	var tested []string
	for line := range strings.Lines(readFile(t, "proof/guarantees/attacks.tsv")) {
		attack, names, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		require.True(t, found, line)
		tested = append(tested, attack)
		for name := range strings.SplitSeq(names, ", ") {
			require.True(t, tests[name], "%s: no %q", attack, name)
		}
	}
	_, page, found := strings.Cut(readFile(t, "docs/security.md"), "\n## Attacks\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	var attacks []string
	for _, item := range regexp.MustCompile(`(?m)^- \*\*(.*):\*\* `).FindAllStringSubmatch(page, -1) {
		attacks = append(attacks, item[1])
	}
	require.NotEmpty(t, attacks)
	require.Equal(t, attacks, tested)
}
