package pgxstore

import (
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// commits reports whether sql begins with a statement that commits the transaction: COMMIT, END or PREPARE TRANSACTION,
// behind comments and empty statements. A name of a prepared statement that begins with one of these words is none.
func commits(sql string) bool {
	first, rest := sqlstore.CutWord(sqlstore.SkipBlank(sql, ";", true))
	rest = sqlstore.SkipBlank(rest, "", true)
	next, _ := sqlstore.CutWord(rest)
	switch {
	case isOneOf(first, "commit", "end"):
		return rest == "" || rest[0] == ';' || isOneOf(next, "work", "transaction", "and", "prepared")
	case strings.EqualFold(first, "prepare"):
		return strings.EqualFold(next, "transaction")
	}
	return false
}

// areSeveral reports whether sql may have more than one statement: commits reads only the first.
func areSeveral(sql string) bool { return strings.Contains(strings.TrimRight(sql, "; \t\r\n"), ";") }

func isOneOf(word string, keywords ...string) bool {
	return slices.ContainsFunc(keywords, func(k string) bool { return strings.EqualFold(word, k) })
}
