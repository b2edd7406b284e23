package sqlstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

func TestWordsOfAStatement(t *testing.T) {
	for query, words := range map[string][]string{
		"":                              nil,
		"COMMIT":                        {"commit"},
		" ;\n; commit;":                 {"commit"},
		"-- why\nCommit /* now */ Work": {"commit", "work"},
		"--":                            nil,
		"# why\ncommit":                 {"commit"},
		"/* no end":                     nil,
		"/*/ no end":                    nil,
		"/* /* */ commit":               {"commit"},
		"rollback to savepoint a":       {"rollback", "to"},
		"ROLLBACK(1)":                   {"rollback"},
		"select 'commit'":               {"select"},
		"(select 1)":                    nil,
		"\"commit\" x":                  nil,
		"commitment x":                  {"commitment", "x"},
	} {
		require.Equal(t, words, sqlstore.Words(query, 2), query)
	}
}
