package pgxstore

import (
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// commits reports whether one of the statements in sql commits the transaction: COMMIT, END or PREPARE TRANSACTION, behind
// comments and empty statements. A name of a prepared statement that begins with one of these words is none.
func commits(sql string) bool {
	body := false // of a function, the only statement with others in it: what ends it commits nothing
	for {
		sql = sqlstore.SkipBlank(sql, ";", true)
		if first, _ := sqlstore.CutWord(sql); isCommit(sql) && !(body && isOneOf(first, "end")) {
			return true
		}
		if !strings.Contains(sql, ";") {
			return false
		}
		rest := skipStatement(sql)
		body = body || beginsBody(strings.TrimSuffix(sql, rest))
		sql = rest
	}
}

// isCommit reports whether sql begins with a statement that commits.
func isCommit(sql string) bool {
	first, rest := sqlstore.CutWord(sql)
	switch {
	case isOneOf(first, "commit", "end"):
		rest = sqlstore.SkipBlank(rest, "", true)
		next, _ := sqlstore.CutWord(rest)
		return rest == "" || rest[0] == ';' || isOneOf(next, "work", "transaction", "and", "prepared")
	case isOneOf(first, "prepare"):
		next, _ := sqlstore.CutWord(sqlstore.SkipBlank(rest, "", true))
		return isOneOf(next, "transaction")
	}
	return false
}

// beginsBody reports whether a statement may be the head of a function with a body of statements: BEGIN ATOMIC.
func beginsBody(statement string) bool {
	return strings.Contains(strings.ToLower(statement), "atomic")
}

// skipStatement returns what follows the statement that sql begins with. A quotation without an end is the end.
func skipStatement(sql string) string {
	for sql != "" {
		word, rest := sqlstore.CutWord(sql)
		switch c := sql[0]; {
		case c == ';':
			return sql[1:]
		case c == '$':
			sql = skipDollars(sql)
		case isOneOf(word, "e") && strings.HasPrefix(rest, "'"):
			sql = skipQuotes(rest, `\`)
		case word != "":
			sql = rest
		case c == '\'' || c == '"':
			sql = skipQuotes(sql, "")
		case strings.HasPrefix(sql, "--") || strings.HasPrefix(sql, "/*"):
			sql = sqlstore.SkipBlank(sql, "", true)
		default:
			sql = sql[1:]
		}
	}
	return ""
}

// skipQuotes returns what follows the string or the name that sql begins with. A doubled quotation mark is a part of it, and
// so is what follows the character escape.
func skipQuotes(sql, escape string) string {
	mark := sql[:1]
	for i := 1; i < len(sql); i++ {
		switch sql[i : i+1] {
		case escape:
			i++
		case mark:
			if !strings.HasPrefix(sql[i+1:], mark) {
				return sql[i+1:]
			}
			i++
		}
	}
	return ""
}

// skipDollars returns what follows the string between two tags that sql begins with, or the dollar sign of a parameter.
func skipDollars(sql string) string {
	name, _, found := strings.Cut(sql[1:], "$")
	word, rest := sqlstore.CutWord(name)
	if !found || rest != "" || word != "" && word[0] >= '0' && word[0] <= '9' {
		return sql[1:]
	}
	tag := "$" + name + "$"
	_, after, _ := strings.Cut(sql[len(tag):], tag)
	return after
}

func isOneOf(word string, keywords ...string) bool {
	return slices.ContainsFunc(keywords, func(k string) bool { return strings.EqualFold(word, k) })
}
