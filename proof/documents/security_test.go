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
	_, page, found := strings.Cut(readFile(t, "docs/security.md"), "\n## Attacks\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	var attacks []string
	for _, item := range regexp.MustCompile(`(?m)^- \*\*(.*):\*\* `).FindAllStringSubmatch(page, -1) {
		attacks = append(attacks, item[1])
	}
	require.NotEmpty(t, attacks)
	require.Equal(t, attacks, readShownRows(t, "proof/guarantees/attacks.tsv"))
}
