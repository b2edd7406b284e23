// Package effort scales the amount of work of the proofs, and lets a test report its amount of work.
//
// Each test has a fixed amount by default. The flag -times multiplies this amount.
package effort

import (
	"flag"
	"strconv"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/killtest"
)

var times = flag.Float64("times", 1, "how many times as much is done as usual")

// Of scales n, the default amount of a test: by the flag -times, and by three hundredths with the race detector. The result is
// at least one.
func Of(n int) int { return max(1, int(float64(n)*workShare**times)) }

// Count writes the amount n of name, for example "deaths" or "calls that failed", to the output of the test, as an attribute.
func Count[N int | int64](t testing.TB, name string, n N) {
	t.Helper()
	t.Attr(strings.ReplaceAll(name, " ", "-"), strconv.FormatInt(int64(n), 10))
}

// Charges writes the number of calls and of charges of provider to the output of the test.
func Charges(t testing.TB, provider *killtest.Provider) {
	t.Helper()
	_, calls, charges := provider.Counts()
	Count(t, "calls of the provider", calls)
	Count(t, "charges", charges)
}
