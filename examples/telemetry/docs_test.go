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

func read(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(content)
}

// Whoever is called by an alert finds its section by the link, and every outcome in the table.
func TestOperatingExplains(t *testing.T) {
	t.Parallel()
	page, rules := read(t, "../../docs/operating.md"), read(t, monitoring, "alerts.yml")
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
	outcomes := regexp.MustCompile(`Outcome\w+ +Outcome = "([a-z-]+)"`).FindAllStringSubmatch(read(t, "../../observer.go"), -1)
	require.NotEmpty(t, outcomes)
	for _, outcome := range outcomes {
		assert.Regexp(t, "\n\\| (`[a-z-]+`, )*`"+outcome[1]+"`(, `[a-z-]+`)* \\| ", page)
	}
}

// Grafana asks the data source that is chosen, and shows each panel at a place of its own. Counters begin anew with each process,
// so queries have their rate or increase, which are right all the same.
func TestDashboardIsWellFormed(t *testing.T) {
	t.Parallel()
	panels, err := board.Load(filepath.Join(monitoring, "grafana.json"))
	require.NoError(t, err)
	require.NotEmpty(t, panels)
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, panel := range panels {
		require.False(t, ids[panel.ID], panel.ID)
		ids[panel.ID] = true
		require.Equal(t, "${datasource}", panel.Datasource.UID)
		require.NotEmpty(t, panel.Targets)
		for _, target := range panel.Targets {
			require.Contains(t, target.Expr, `{job=~"$job"`)
			if panel.Title != "Answers not recorded" { // of the processes that run: the others have lost their answers
				require.NotRegexp(t, `_(total|bucket|sum|count)\b`, sinceReset.ReplaceAllString(target.Expr, ""), panel.Title)
			}
		}
		place := panel.GridPos
		require.LessOrEqual(t, place.X+place.W, 24)
		for x := range place.W {
			for y := range place.H {
				cell := [2]int{place.X + x, place.Y + y}
				require.Empty(t, taken[cell], panel.Title)
				taken[cell] = panel.Title
			}
		}
	}
}

// sinceReset is a part of a query for which Prometheus sees where a counter begins anew.
var sinceReset = regexp.MustCompile(`\b(?:rate|increase)\([^()]*\)`)
