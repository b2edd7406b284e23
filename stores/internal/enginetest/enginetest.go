// Package enginetest holds the statements of a store, and its README, to what the store says of engines.
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

// Outside returns what tells statements that have a word which is neither plain nor a sign of a feature of those uses. What
// quoted matches has no words: comments, strings and names in quotes.
func Outside(features []sqlstore.Feature, plain string, quoted *regexp.Regexp, uses ...string) func(statement string) bool {
	words := strings.Fields(plain)
	for _, f := range features {
		if f.IsUsedBy(uses) {
			words = append(words, strings.Fields(f.Words)...)
		}
	}
	slices.Sort(words)
	var known sync.Map // of statements, which are sent again and again
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

// Row returns what a table in a README says of an engine: who may use it, and what it lacks. The store names, for each feature,
// where the engine says that it has it.
func Row(e sqlstore.Engine, features []sqlstore.Feature, uses ...string) string {
	var cells, reasons []string
	for _, use := range uses {
		missing := e.Missing(features, use)
		if len(missing) == 0 {
			cells = append(cells, "allowed")
			continue
		}
		cells = append(cells, "refused")
		reason := link(missing[0].Name, missing[0].Lacks[e.Name])
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	name := strings.TrimSpace(e.Name + " " + strings.Join(e.Versions, ", "))
	return fmt.Sprintf("| %s | %s | %s |", name, strings.Join(cells, " | "), strings.Join(reasons, "; "))
}

func link(text, source string) string {
	if source == "" {
		return text
	}
	return fmt.Sprintf("[%s](%s)", text, source)
}
