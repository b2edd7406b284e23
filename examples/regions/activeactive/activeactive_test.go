package activeactive_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/examples/regions/activeactive"
)

// Each cause alone makes regions that share a store execute some operations twice. With one home for each key, each operation
// is executed at most once.
func TestSharedStoreExecutesTwice(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cause      string
		setting    activeactive.Setting
		hasDoubles bool
	}{
		{"none", activeactive.Setting{ReplicationDelay: 50 * time.Millisecond, RetryDelay: time.Second}, false},
		{"retries overtake writes",
			activeactive.Setting{ReplicationDelay: 200 * time.Millisecond, RetryDelay: 100 * time.Millisecond}, true},
		{"partition", activeactive.Setting{RetryDelay: time.Second, PartitionShare: 0.5}, true},
		{"clocks", activeactive.Setting{RetryDelay: time.Second, ClockSkew: 2 * time.Second}, true},
	} {
		t.Run(test.cause, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.hasDoubles, activeactive.CountDoubles(test.setting, 20_000) > 0)
			test.setting.OneHome = true
			require.Zero(t, activeactive.CountDoubles(test.setting, 20_000))
		})
	}
}

func TestPageShowsTheTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	table := activeactive.Table()
	require.True(t, strings.Contains(string(page), "\n\n"+table+"\n"), "the page does not have\n%s", table)
}
