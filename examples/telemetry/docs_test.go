package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/examples/telemetry/board"
)

// readFile returns the content of the file whose path has the given elements.
func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(content)
}

// The link of each alert leads to a section of the operating page with the three answers that an operator needs. The table of
// the page has every outcome.
func TestOperatingPageExplainsEveryAlert(t *testing.T) {
	t.Parallel()
	page, rules := readFile(t, "../../docs/operating.md"), readFile(t, monitoringDir, "alerts.yml")
	alerts := regexp.MustCompile(`(?s)alert: (\w+)\n.*?/docs/operating\.md#(\w+)\n`).FindAllStringSubmatch(rules, -1)
	require.Len(t, alerts, strings.Count(rules, "- alert:"))
	for _, alert := range alerts {
		require.Equal(t, strings.ToLower(alert[1]), alert[2])
		_, section, found := strings.Cut(page, "\n### "+alert[1]+"\n")
		require.True(t, found, alert[1])
		section, _, _ = strings.Cut(section, "\n### ")
		for _, part := range []string{"**For customers:**", "**Look at:**", "**Do:**"} {
			require.Contains(t, section, part, alert[1])
		}
	}
	outcomes := regexp.MustCompile(`Outcome\w+ +Outcome = "([a-z-]+)"`).FindAllStringSubmatch(readFile(t, "../../observer.go"), -1)
	require.NotEmpty(t, outcomes)
	for _, outcome := range outcomes {
		assert.Regexp(t, "\n\\| (`[a-z-]+`, )*`"+outcome[1]+"`(, `[a-z-]+`)* \\| ", page)
	}
}

// Each panel queries the data source that the user has chosen, and has its own cells of the grid. Queries use rate or increase,
// because counters restart at zero with each process.
func TestDashboardIsWellFormed(t *testing.T) {
	t.Parallel()
	panels, err := board.LoadPanels(filepath.Join(monitoringDir, "grafana.json"))
	require.NoError(t, err)
	require.NotEmpty(t, panels)
	titleByCell, ids := map[[2]int]string{}, map[int]bool{}
	for _, panel := range panels {
		require.False(t, ids[panel.ID], panel.ID)
		ids[panel.ID] = true
		require.Equal(t, "${datasource}", panel.Datasource.UID)
		require.NotEmpty(t, panel.Targets)
		for _, target := range panel.Targets {
			require.Contains(t, target.Expr, `{job=~"$job"`)
			// "Answers not recorded" counts the running processes only, because a process that has ended has lost its answers.
			if panel.Title != "Answers not recorded" {
				require.NotRegexp(t, `_(total|bucket|sum|count)\b`, resetAware.ReplaceAllString(target.Expr, ""), panel.Title)
			}
		}
		place := panel.GridPos
		require.LessOrEqual(t, place.X+place.W, 24)
		for x := range place.W {
			for y := range place.H {
				cell := [2]int{place.X + x, place.Y + y}
				require.Empty(t, titleByCell[cell], panel.Title)
				titleByCell[cell] = panel.Title
			}
		}
	}
}

// resetAware matches a function of a query that takes into account when a counter restarts at zero.
var resetAware = regexp.MustCompile(`\b(?:rate|increase)\([^()]*\)`)
