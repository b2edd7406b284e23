package pgxstore

import (
	"slices"
	"strings"
)

// commits reports whether sql begins with a statement that commits the transaction: COMMIT, END or PREPARE TRANSACTION,
// behind comments and empty statements. A name of a prepared statement that begins with one of these words is none.
func commits(sql string) bool {
	first, rest := cutWord(skipBlank(sql, ";"))
	switch {
	case isOneOf(first, "commit", "end"):
		rest = skipBlank(rest, "")
		next, _ := cutWord(rest)
		return rest == "" || rest[0] == ';' || isOneOf(next, "work", "transaction", "and", "prepared")
	case isOneOf(first, "prepare"):
		next, _ := cutWord(skipBlank(rest, ""))
		return isOneOf(next, "transaction")
	}
	return false
}

func isOneOf(word string, keywords ...string) bool {
	return slices.ContainsFunc(keywords, func(k string) bool { return strings.EqualFold(word, k) })
}

// skipBlank returns sql without the white space, the comments and the bytes of more that it begins with. A comment
// without an end is the end.
func skipBlank(sql, more string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\n\r\f\v"+more)
		switch {
		case strings.HasPrefix(sql, "--"):
			sql = sql[endOfLine(sql):]
		case strings.HasPrefix(sql, "/*"):
			sql = skipComment(sql)
		default:
			return sql
		}
	}
}

func endOfLine(sql string) int {
	if i := strings.IndexAny(sql, "\r\n"); i >= 0 {
		return i
	}
	return len(sql)
}

// skipComment returns what follows the comment that sql begins with. Comments can be nested.
func skipComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); {
		switch sql[i : i+2] {
		case "/*":
			depth, i = depth+1, i+2
		case "*/":
			depth, i = depth-1, i+2
		default:
			i++
		}
		if depth == 0 {
			return sql[i:]
		}
	}
	return ""
}

// cutWord cuts the keyword or the name off that sql begins with.
func cutWord(sql string) (word, rest string) {
	n := 0
	for n < len(sql) && isOfWord(sql[n]) {
		n++
	}
	return sql[:n], sql[n:]
}

func isOfWord(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '$' || b >= 0x80
}
