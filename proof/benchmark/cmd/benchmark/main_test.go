package main

import (
	"encoding/xml"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// TestPage runs all measurements, each with the least work. The batches check executions and answers. One limit of each
// store is enough here, because TestGates checks all limits.
func TestPage(t *testing.T) {
	var limits []bm.Limit
	limited := make(map[bm.Store]bool)
	for _, l := range bm.Limits {
		if !limited[l.Subject.Store] {
			limits = append(limits, l)
		}
		limited[l.Subject.Store] = true
	}
	r, err := measureAll(plan{rounds: 1, requestsPerClient: 4, maxRecords: 1_000, lookupRecords: 3_000,
		rateWindow: 10 * time.Millisecond, limits: limits})
	servertest.Require(t, err)
	files := r.renderFiles()
	page := files["README.md"]
	for _, g := range distantGroups {
		require.Contains(t, page, "\n### "+string(g.store)+", 1 ms away\n")
	}
	for _, c := range r.distant {
		replies := map[bm.Path]time.Duration{bm.First: 2, bm.Replay: 1}[c.path]
		for i, s := range c.subjects {
			require.GreaterOrEqual(t, c.withOneClient.Latency(i, 0), replies*networkDelay, "%s, %s", s.Name, c.path)
		}
	}
	for _, g := range groups {
		require.Contains(t, page, "\n### "+string(g.store)+"\n")
		for _, path := range g.paths {
			for _, s := range g.subjects {
				figures := `( [\d.]+ \| [\d.]+ \| [\d,]+ \|){2} [\d.]+ \| \*\*[\d.]+\*\* \|`
				require.Regexp(t, `\n\| `+requestName(path)+` \| `+nameInGroup(s)+` \|`+figures, page)
			}
		}
	}
	for _, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB, bm.InDynamoDB} {
		require.Regexp(t, `\n\| `+string(store)+` \| 1,000 \| [\d,]+ \| `, page, "bytes of a record")
	}
	for _, store := range []bm.Store{bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB} {
		require.Regexp(t, `\n\| `+string(store)+` \| 3,000 \| [\d.]+, [\d.]+ \|`, page, "an operation is found")
	}
	limitRow := regexp.MustCompile(`\n\| \S.* \| [\d,]+ (allocs|B|round trips)[\w ]* \| [\d,]+ \|`)
	require.Equal(t, len(limits), len(limitRow.FindAllString(page, -1)))
	for _, plot := range []string{"cost.svg", "latency.svg"} {
		require.NoError(t, xml.Unmarshal([]byte(files[plot]), new(struct{})))
		require.NotContains(t, files[plot], "NaN")
	}
	bars := 0
	for _, g := range groups {
		if len(g.subjects) > 1 {
			bars += len(g.paths) * len(g.subjects)
		}
	}
	require.Equal(t, bars, strings.Count(files["cost.svg"], "<rect "), "a bar for each subject that has others beside it")
}

func TestDigits(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"0.998", "1.05", "53.5", "121"}, []string{
		formatRatio(0.998), formatRatio(1.05), formatRatio(53.46), formatRatio(121),
	})
	require.Equal(t, []string{"0", "999", "1,230", "12,300"}, []string{
		formatCount(0), formatCount(999), formatCount(1230), formatCount(12345),
	})
}
