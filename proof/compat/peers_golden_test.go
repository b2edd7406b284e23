package compat_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
)

// Golden files with a line for each check of each library.
const (
	// peersFile has what TestPeers measures.
	peersFile = "testdata/peers.tsv"

	// peersApartFile was measured in the same way, with libraries that are no dependencies of this repository.
	peersApartFile = "testdata/peers_apart.tsv"
)

const peersHeader = "library\toptions\tversion\tinstances\tcheck\tstatus\tdecisions\tfinding\n"

// measuredRow is a line of a golden file: the result of one check of one library.
type measuredRow struct {
	library, options, version, instances, check, status, decisions, finding string
}

func (r measuredRow) String() string {
	cells := []string{r.library, r.options, r.version, r.instances, r.check, r.status, r.decisions, r.finding}
	return strings.Join(cells, "\t") + "\n"
}

// describeResult leaves out what differs from run to run: amounts, and the status that a duplicate got by chance.
func (p peer) describeResult(t *testing.T, instances int, result probe.Result) measuredRow {
	t.Helper()
	var decisions []string
	for _, decision := range result.Decisions {
		if decision.Name != "while-running" || result.Name == decision.Name {
			decisions = append(decisions, decision.Name+"="+decision.Value)
		}
	}
	amounts := regexp.MustCompile(`\d+ times|[\d.]+(ms|µs|s)\b`)
	return measuredRow{
		library: p.name, options: p.options, version: p.version(t), instances: strconv.Itoa(instances),
		check: result.Name, status: string(result.Status), decisions: strings.Join(decisions, ", "),
		finding: amounts.ReplaceAllString(result.Detail, "…"),
	}
}

// version returns the version in go.mod, because the binary of a test does not have it.
func (p peer) version(t *testing.T) string {
	t.Helper()
	if p.module == "" {
		return "this commit"
	}
	required, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(p.module) + ` (\S+)`).FindSubmatch(required)
	require.NotEmpty(t, found, p.module)
	return string(found[1])
}

// TestPeers shows that the probe still finds in each library what the golden file says.
func TestPeers(t *testing.T) {
	t.Parallel()
	measured := make([][]measuredRow, len(peers))
	t.Run("probe", func(t *testing.T) {
		for i, p := range peers {
			t.Run(strings.TrimSpace(p.name+" "+p.options), func(t *testing.T) {
				t.Parallel()
				measured[i] = probePeer(t, p)
			})
		}
	})
	lines := peersHeader
	for _, rows := range measured {
		for _, row := range rows {
			lines += row.String()
		}
	}
	if *writeTable {
		require.NoError(t, os.WriteFile(peersFile, []byte(lines), 0o644))
		return
	}
	golden, err := os.ReadFile(peersFile)
	require.NoError(t, err)
	require.Equal(t, string(golden), lines, "write the file anew: go test -run 'TestPeers$' -write")
}

// readMeasuredRows returns the lines of both golden files.
func readMeasuredRows(t *testing.T) (rows []measuredRow) {
	t.Helper()
	for _, file := range []string{peersFile, peersApartFile} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		body, hasHeader := strings.CutPrefix(string(text), peersHeader)
		require.True(t, hasHeader, file)
		for line := range strings.Lines(body) {
			cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			require.Len(t, cells, 8, line)
			rows = append(rows, measuredRow{cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7]})
		}
	}
	return rows
}
