package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The README of a store fits on a screen or two, and shows compiled code.
func TestStoreReadmesShowExamples(t *testing.T) {
	t.Parallel()
	for store, examples := range map[string]string{
		"dynamodbstore": readExamples(t, "stores/dynamodbstore"),
		"mysqlstore":    readExamples(t, "stores/mysqlstore"),
		"pgxstore":      readExamples(t, "stores/pgxstore"),
		"sqlitestore":   readFile(t, "stores/sqlitestore/internal/readme/main.go"),
	} {
		readme := readFile(t, "stores/"+store+"/README.md")
		require.LessOrEqual(t, len(strings.Fields(readme)), 600, store)
		require.Contains(t, readme, "](../../docs/stores.md)", store)
		blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readme, -1)
		require.NotEmpty(t, blocks, store)
		for _, block := range blocks {
			require.Contains(t, removeIndentation(examples), "\n"+removeIndentation(block[1]), store)
		}
	}
}
