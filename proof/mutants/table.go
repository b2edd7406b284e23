package main

import (
	"fmt"
	"strings"
)

const page = "proof/mutants/README.md"

const intro = `# Mutants

A test that cannot fail proves nothing. Each row is a *mutant*: a bug that somebody might put into the library by mistake. The
test beside it must fail then, which *kills* the mutant. ` + "`go run ./proof/mutants`" + ` puts the mutants in, one at a
time, and runs these tests: all %d are killed. A test of the repository fails if the code that a mutant changes is no longer
there, or if this page is out of date (` + "`go run ./proof/mutants -write`" + ` writes it).

| Mutant | What is broken | File | Killed by | Needs |
|---|---|---|---|---|
`

// table returns the page with all mutants.
func table(mutants []mutant) string {
	var b strings.Builder
	fmt.Fprintf(&b, intro, len(mutants))
	for _, m := range mutants {
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` | %s |\n", m.name, m.broken, m.file, m.test, m.needs)
	}
	return b.String()
}
