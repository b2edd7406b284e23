package main

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/idempotency-go/idempotency"
)

// requireTerminal returns an error if the command needs a confirmation and standard input is not a terminal.
func (a *app) requireTerminal(yes bool) error {
	if yes || term.IsTerminal(int(a.stdin.Fd())) {
		return nil
	}
	return errors.New("standard input is not a terminal, so the command cannot ask for confirmation: want --yes")
}

// askToConfirm asks the user to confirm a change of entry. Only the confirmationWord confirms.
func (a *app) askToConfirm(entry idempotency.Entry, warning, verb string) bool {
	if a.flags.JSON || !a.outIsTerminal {
		fmt.Fprintln(a.stderr, wrapText(warning)) // standard output does not show the warning to the user
	}
	fmt.Fprintf(a.stderr, "Type %s to %s it, anything else to leave it: ", confirmationWord(entry), verb)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	return strings.TrimSpace(answer) == confirmationWord(entry)
}

// askToErase asks the user to confirm the removal of count records. Only the number confirms.
func (a *app) askToErase(count int) bool {
	fmt.Fprintln(a.stderr, wrapText("The next request with one of these keys is executed A SECOND TIME. Stop the requests of the user first."))
	fmt.Fprintf(a.stderr, "Type %d to erase them, anything else to leave it: ", count)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	return strings.TrimSpace(answer) == strconv.Itoa(count)
}

// confirmationWord is the beginning of the operation ID, so that a user confirms a specific operation.
func confirmationWord(entry idempotency.Entry) string { return entry.Operation.String()[:8] }
