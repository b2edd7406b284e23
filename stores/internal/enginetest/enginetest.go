// Package enginetest checks that the statements and the README of a store agree with the list of engines of the store.
package enginetest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var sqlWord = regexp.MustCompile(`[A-Za-z_]\w*`)

// NewWordCheck returns a function that reports whether a statement has an unknown word. The known words are plain and the Words of
// the features for uses. Text that quoted matches, such as comments, strings and quoted names, has no words.
func NewWordCheck(features []sqlstore.Feature, plain string, quoted *regexp.Regexp, uses ...string) func(statement string) bool {
	words := strings.Fields(plain)
	for _, f := range features {
		if f.IsUsedBy(uses) {
			words = append(words, strings.Fields(f.Words)...)
		}
	}
	slices.Sort(words)
	var known sync.Map // results by statement, because tests repeat statements
	return func(statement string) bool {
		if outside, ok := known.Load(statement); ok {
			return outside.(bool)
		}
		text := strings.ToLower(quoted.ReplaceAllString(statement, " "))
		outside := slices.ContainsFunc(sqlWord.FindAllString(text, -1), func(word string) bool {
			_, inside := slices.BinarySearch(words, word)
			return !inside
		})
		known.Store(statement, outside)
		return outside
	}
}

// ReadmeRow returns the row of an engine for the table in a README: whether each of uses is allowed, and the features that the
// engine lacks.
func ReadmeRow(e sqlstore.Engine, features []sqlstore.Feature, uses ...string) string {
	var cells, reasons []string
	for _, use := range uses {
		missing := e.Missing(features, use)
		if len(missing) == 0 {
			cells = append(cells, "allowed")
			continue
		}
		cells = append(cells, "refused")
		reason := linkTo(missing[0].Name, missing[0].Lacks[e.Name])
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	name := strings.TrimSpace(e.Name + " " + strings.Join(e.Versions, ", "))
	return fmt.Sprintf("| %s | %s | %s |", name, strings.Join(cells, " | "), strings.Join(reasons, "; "))
}

func linkTo(text, source string) string {
	if source == "" {
		return text
	}
	return fmt.Sprintf("[%s](%s)", text, source)
}
