package dynamodbstore_test

import (
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The README has a table that compares takeovers with and without clocks. The test simulates the table, in seconds since the
// last renewal. For more than one process, the formula above the table is within six percent of the simulation.
func TestObserversTakeLonger(t *testing.T) {
	t.Parallel()
	const lease, skew, retry = 30, 10, 5
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| ([\d,]+) \| (\d+) s \| (\d+) s \|$`).FindAllStringSubmatch(string(readme), -1)
	require.Len(t, rows, 4)
	for _, row := range rows {
		var cells [3]float64
		for i := range cells {
			cells[i], err = strconv.ParseFloat(strings.ReplaceAll(row[1+i], ",", ""), 64)
			require.NoError(t, err)
		}
		processes := int(cells[0])
		random := rand.New(rand.NewPCG(35, uint64(processes)))
		observed, clocked := 0., 0.
		const failures = 20_000
		for range failures {
			first := retry * random.Float64()
			observed += simulateTakeover(random, processes, first, retry, lease) / failures
			clocked += (first + retry*math.Ceil((lease+skew-first)/retry)) / failures
		}
		require.InDelta(t, cells[1], observed, 0.6, row[0])
		require.InDelta(t, cells[2], clocked, 0.6, row[0])
		if formula := lease + retry*math.Sqrt(math.Pi*float64(processes)/2); processes > 1 {
			require.InEpsilon(t, formula, observed, 0.06, row[0])
		}
	}
}

// simulateTakeover returns the time of a takeover without clocks. Each retry reaches a random process. A process takes over
// if it has seen the record at least a lease before.
func simulateTakeover(random *rand.Rand, processes int, first, retry, lease float64) float64 {
	seen := make(map[int]float64)
	for at := first; ; at += retry {
		process := random.IntN(processes)
		before, known := seen[process]
		switch {
		case !known:
			seen[process] = at
		case at-before >= lease-1e-9:
			return at
		}
	}
}
