package mysqlstore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// refuse returns an error for a statement that ends the transaction, or commits what the handler has done so far.
func refuse(query string) error {
	words := sqlstore.Words(query, 4)
	if len(words) == 0 {
		return nil
	}
	name := strings.ToUpper(strings.Join(words[:min(2, len(words))], " "))
	switch first := words[0]; {
	case first == "commit" || isBegin(words):
		return fmt.Errorf("%w: %s was not sent", ErrCommit, name)
	case first == "rollback" && !slices.Contains(words, "to"):
		return fmt.Errorf("mysqlstore: %s was not sent: use the Rollback of the transaction, or a savepoint", name)
	case first == "set" && setsTransaction(query, words):
		return fmt.Errorf("mysqlstore: %s was not sent: it would commit what the handler did so far", name)
	case first == "use":
		return fmt.Errorf("mysqlstore: %s was not sent: the connection goes back to the pool", name)
	case commits(words):
		return fmt.Errorf("mysqlstore: %s was not sent: it would commit what the handler did so far", name)
	}
	return nil
}

func isBegin(words []string) bool {
	return words[0] == "begin" && !slices.Contains(words, "not") || // BEGIN NOT ATOMIC is a block
		words[0] == "start" && slices.Contains(words, "transaction") || words[0] == "xa"
}

func setsTransaction(query string, words []string) bool {
	return strings.Contains(strings.ToLower(query), "autocommit") || slices.Contains(words[1:], "password")
}

// commits reports whether a statement is one of those that commit before they begin. Temporary tables do not.
func commits(words []string) bool {
	second := append(words, "")[1]
	switch words[0] {
	case "create", "drop":
		return !slices.Contains(words, "temporary")
	case "analyze", "optimize", "repair", "check", "checksum":
		return slices.Contains(maintained, second)
	case "load":
		return second == "index"
	}
	return slices.Contains(implicit, words[0])
}

var (
	maintained = []string{"table", "tables", "no_write_to_binlog", "local"}
	implicit   = []string{"alter", "backup", "cache", "change", "flush", "grant", "install", "lock", "purge", "rename",
		"reset", "revoke", "shutdown", "start", "stop", "truncate", "uninstall"}
)
