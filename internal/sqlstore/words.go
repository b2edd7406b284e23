package sqlstore

import "strings"

// Words returns the first n words of a statement in lower case, behind comments and empty statements. There are fewer
// if something else comes in between. Comments are those of MySQL, and so those of SQLite.
func Words(query string, n int) (words []string) {
	query = SkipBlank(query, ";", false)
	for len(words) < n {
		word, rest := CutWord(query)
		if word == "" {
			return words
		}
		words, query = append(words, strings.ToLower(word)), SkipBlank(rest, "", false)
	}
	return words
}

// SkipBlank returns what follows the white space, the comments and the bytes of more that a query begins with. A comment
// without an end is the end. In PostgreSQL comments can be nested, and a carriage return ends a line.
func SkipBlank(query, more string, isPostgres bool) string {
	ends := "\n"
	if isPostgres {
		ends = "\r\n"
	}
	for {
		query = strings.TrimLeft(query, " \t\n\r\f\v"+more)
		switch {
		case strings.HasPrefix(query, "--"), strings.HasPrefix(query, "#") && !isPostgres: // in SQLite "#" begins nothing
			end := strings.IndexAny(query, ends)
			if end < 0 {
				return ""
			}
			query = query[end:]
		case strings.HasPrefix(query, "/*"):
			query = skipComment(query, isPostgres)
		default:
			return query
		}
	}
}

// skipComment returns what follows the comment that a query begins with.
func skipComment(query string, isNested bool) string {
	depth := 0
	for i := 0; i+1 < len(query); {
		switch pair := query[i : i+2]; {
		case pair == "/*" && (depth == 0 || isNested):
			depth, i = depth+1, i+2
		case pair == "*/":
			depth, i = depth-1, i+2
		default:
			i++
		}
		if depth == 0 {
			return query[i:]
		}
	}
	return ""
}

// CutWord cuts off the word that a query begins with.
func CutWord(query string) (word, rest string) {
	n := 0
	for n < len(query) && isOfWord(query[n]) {
		n++
	}
	return query[:n], query[n:]
}

func isOfWord(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '$' || b >= 0x80
}
