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

// TestPage measures everything, with as little of it as possible. The batches check executions and answers. TestGates counts
// what the limits bound, so one limit of each store is enough here.
func TestPage(t *testing.T) {
	var limits []bm.Limit
	limited := make(map[bm.Store]bool)
	for _, l := range bm.Limits {
		if !limited[l.Subject.Store] {
			limits = append(limits, l)
		}
		limited[l.Subject.Store] = true
	}
	r, err := measure(plan{rounds: 1, requests: 4, records: 1_000, window: 10 * time.Millisecond, limits: limits})
	servertest.Require(t, err)
	files := r.files()
	page := files["README.md"]
	for _, g := range groups {
		require.Contains(t, page, "\n### "+string(g.store)+"\n")
		for _, path := range g.paths {
			for _, s := range g.subjects {
				figures := `( [\d.]+ ms \| [\d.]+ ms \| [\d,]+ \|){2} [\d.]+ ms \| \*\*[\d.]+\*\* \|`
				require.Regexp(t, `\n\| `+requestName(path)+` \| `+s.Name+` \|`+figures, page)
			}
		}
	}
	for _, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB, bm.InDynamoDB} {
		require.Regexp(t, `\n\| `+string(store)+` \| 1,000 \| [\d,]+ \| `, page, "bytes of a record")
	}
	require.Equal(t, len(limits), len(regexp.MustCompile(`\n\| \S.* \| (at most [\d.]+|no) [\w ]+ \| [\d,]+ \|`).FindAllString(page, -1)))
	require.NoError(t, xml.Unmarshal([]byte(files["cost.svg"]), new(struct{})))
	require.NotContains(t, files["cost.svg"], "NaN")
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
	require.Equal(t, []string{"0.998", "1.05", "53.5", "121"}, []string{ratio(0.998), ratio(1.05), ratio(53.46), ratio(121)})
	require.Equal(t, []string{"0", "999", "1,230", "12,300"}, []string{digits(0), digits(999), digits(1230), digits(12345)})
}
