package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/term"

	"github.com/idempotency-go/idempotency"
)

// mayAsk returns an error if somebody is to be asked, and nobody can be.
func (a *app) mayAsk(yes bool) error {
	if yes || term.IsTerminal(int(a.stdin.Fd())) {
		return nil
	}
	return errors.New("standard input is no terminal, so nobody can be asked: want --yes")
}

// confirm asks whether to do something to an entry, which was shown with a warning. It takes nothing but a word for a yes.
func (a *app) confirm(entry idempotency.Entry, warning, verb string) bool {
	if a.line.JSON || !a.seen {
		fmt.Fprintln(a.questions, paragraph(warning)) // whoever is asked must see it
	}
	fmt.Fprintf(a.questions, "Type %s to %s it, anything else to leave it: ", wordOf(entry), verb)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	return strings.TrimSpace(answer) == wordOf(entry)
}

// wordOf is what to type.
func wordOf(entry idempotency.Entry) string { return entry.OperationID().String()[:8] }
