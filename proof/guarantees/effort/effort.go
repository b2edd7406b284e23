// Package effort sets how much a proof does, and lets it report how much it did.
//
// Every test of the proof does a fixed amount by default. The flag -times multiplies it.
package effort

import (
	"flag"
	"strconv"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/killtest"
)

var times = flag.Float64("times", 1, "how many times as much is done as usual")

// Of returns how much to do instead of n: -times as much, and with the race detector three hundredths of that, but at
// least one.
func Of(n int) int { return max(1, int(float64(n)*share**times)) }

// Count writes how much of something a test has done to its output, as an attribute: "deaths", "calls that failed".
func Count[N int | int64](t testing.TB, name string, n N) {
	t.Helper()
	t.Attr(strings.ReplaceAll(name, " ", "-"), strconv.FormatInt(int64(n), 10))
}

// Charges counts how often a provider was called, and how often it has charged.
func Charges(t testing.TB, provider *killtest.Provider) {
	t.Helper()
	_, calls, charges := provider.Counts()
	Count(t, "calls of the provider", calls)
	Count(t, "charges", charges)
}
