package sqlstore

import "strings"

// Words returns the first n words of a statement in lower case, behind comments and empty statements. There are fewer
// if something else comes in between.
func Words(query string, n int) (words []string) {
	query = skipBlank(query, ";")
	for len(words) < n {
		word, rest := cutWord(query)
		if word == "" {
			return words
		}
		words, query = append(words, strings.ToLower(word)), skipBlank(rest, "")
	}
	return words
}

// skipBlank returns what follows the white space, the comments and the bytes of more that a query begins with. A comment
// without an end is the end.
func skipBlank(query, more string) string {
	for {
		query = strings.TrimLeft(query, " \t\n\r\f\v"+more)
		switch {
		case strings.HasPrefix(query, "--"), strings.HasPrefix(query, "#"): // "#" begins nothing in SQLite
			_, query, _ = strings.Cut(query, "\n")
		case strings.HasPrefix(query, "/*"):
			_, query, _ = strings.Cut(query, "*/")
		default:
			return query
		}
	}
}

// cutWord cuts off the word that a query begins with.
func cutWord(query string) (word, rest string) {
	n := 0
	for n < len(query) && isOfWord(query[n]) {
		n++
	}
	return query[:n], query[n:]
}

func isOfWord(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '$' || b >= 0x80
}
