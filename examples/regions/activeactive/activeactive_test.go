package activeactive_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/examples/regions/activeactive"
)

// Each cause alone makes a shared store execute twice. With one home, nothing does.
func TestSharedStoreExecutesTwice(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cause   string
		setting activeactive.Setting
		twice   bool
	}{
		{"none", activeactive.Setting{Delay: 50 * time.Millisecond, Retry: time.Second}, false},
		{"retries overtake writes", activeactive.Setting{Delay: 200 * time.Millisecond, Retry: 100 * time.Millisecond}, true},
		{"partition", activeactive.Setting{Retry: time.Second, Partition: 0.5}, true},
		{"clocks", activeactive.Setting{Retry: time.Second, Skew: 2 * time.Second}, true},
	} {
		t.Run(test.cause, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.twice, activeactive.Twice(test.setting, 20_000) > 0)
			test.setting.OneHome = true
			require.Zero(t, activeactive.Twice(test.setting, 20_000))
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
