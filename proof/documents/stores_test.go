package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The README of a store fits on a screen or two, and shows code that is compiled.
func TestStoreReadmesShowExamples(t *testing.T) {
	t.Parallel()
	for store, examples := range map[string]string{
		"dynamodbstore": examplesIn(t, "stores/dynamodbstore"),
		"mysqlstore":    examplesIn(t, "stores/mysqlstore"),
		"pgxstore":      examplesIn(t, "stores/pgxstore"),
		"sqlitestore":   read(t, "stores/sqlitestore/internal/readme/main.go"),
	} {
		readme := read(t, "stores/"+store+"/README.md")
		require.LessOrEqual(t, len(strings.Fields(readme)), 600, store)
		require.Contains(t, readme, "](../../docs/stores.md)", store)
		blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readme, -1)
		require.NotEmpty(t, blocks, store)
		for _, block := range blocks {
			require.Contains(t, unindented(examples), "\n"+unindented(block[1]), store)
		}
	}
}
