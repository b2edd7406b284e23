package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each attack that the page lists has an entry in attacks.tsv, in the same order, and no entry is without an attack. An entry
// names the tests of the protection, each of which exists.
func TestAttacksAreTested(t *testing.T) {
	t.Parallel()
	tests := testFunctions(t)
	var tested []string
	for line := range strings.Lines(read(t, "proof/guarantees/attacks.tsv")) {
		attack, names, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		require.True(t, found, line)
		tested = append(tested, attack)
		for name := range strings.SplitSeq(names, ", ") {
			require.True(t, tests[name], "%s: no %q", attack, name)
		}
	}
	_, page, found := strings.Cut(read(t, "docs/security.md"), "\n## Attacks\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	var attacks []string
	for _, item := range regexp.MustCompile(`(?m)^- \*\*(.*):\*\* `).FindAllStringSubmatch(page, -1) {
		attacks = append(attacks, item[1])
	}
	require.NotEmpty(t, attacks)
	require.Equal(t, attacks, tested)
}
