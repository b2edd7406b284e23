package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/term"

	"github.com/idempotency-go/idempotency"
)

// forgetCommand removes the record of a key.
type forgetCommand struct {
	keyFlags
	Yes bool `help:"Do not ask. Needed where nobody can be asked."`
}

func (c *forgetCommand) Run(a *app) error {
	var silent error
	if !c.Yes && !term.IsTerminal(int(a.stdin.Fd())) {
		silent = errors.New("standard input is no terminal, so nobody can be asked: want --yes")
	}
	s, err := a.open(c.check(), silent)
	if err != nil {
		return err
	}
	defer s.close()
	entry, damage := a.ask(c.keyFlags, s)
	switch {
	case errors.Is(damage, idempotency.ErrNoRecord) && a.line.JSON:
		forgotten := false
		document := inspection{Store: s.name, Story: c.absent(), Forgotten: &forgotten}
		return errors.Join(writeJSON(a.out, document), nothing(exitNothing))
	case errors.Is(damage, idempotency.ErrNoRecord):
		fmt.Fprintf(a.out, "%s\nThe store is %s.\n", paragraph(c.absent()), s.name)
		return nothing(exitNothing)
	case damage != nil && !errors.Is(damage, idempotency.ErrRecordInvalid):
		return damage
	}
	if damage != nil && entry.State == "" {
		return unforgettable()
	}
	if err := c.decide(a, entry, damage); err != nil {
		return err
	}
	if err := a.forget(s, entry); err != nil {
		return err
	}
	if a.line.JSON {
		forgotten := true
		return writeJSON(a.out, inspection{
			Store: s.name, Found: true, Forgotten: &forgotten, Story: warn(entry, damage), Entry: jsonOf(entry, damage, false),
		})
	}
	_, err = fmt.Fprintln(a.out, "Forgotten.")
	return err
}

// decide shows what is to be forgotten, and asks. It returns nil if it may be.
func (c *forgetCommand) decide(a *app, entry idempotency.Entry, damage error) error {
	if entry.State == idempotency.StateRunning {
		return fail(exitRefused, "not forgotten: %s", tell(entry, damage))
	}
	if !a.line.JSON {
		fmt.Fprintln(a.out, paragraph(tell(entry, damage)))
		a.show(entry)
		fmt.Fprintf(a.out, "\n%s\n", paragraph(warn(entry, damage)))
	}
	if c.Yes {
		return nil
	}
	word := entry.OperationID().String()[:8]
	if a.line.JSON || !a.seen {
		fmt.Fprintln(a.questions, paragraph(warn(entry, damage))) // whoever is asked must see it
	}
	fmt.Fprintf(a.questions, "Type %s to forget it, anything else to keep it: ", word)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	if strings.TrimSpace(answer) != word {
		return fail(exitRefused, "not forgotten: you did not type %s", word)
	}
	return nil
}

// forget removes a record that has not changed since it was shown.
func (a *app) forget(s *opened, entry idempotency.Entry) error {
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	err := s.Forget(ctx, entry)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return fail(exitNothing, "there is no record any more")
	case errors.Is(err, idempotency.ErrInProgress):
		return fail(exitRefused, "not forgotten: the operation is running by now")
	case errors.Is(err, idempotency.ErrRecordInvalid):
		return unforgettable()
	case errors.Is(err, idempotency.ErrEntryChanged):
		return fail(exitRefused, "not forgotten: the record has changed since it was shown")
	}
	return err
}

// unforgettable is the failure to forget a record of which no state can be read.
func unforgettable() error {
	return fail(exitUnknown, "not forgotten: too little of the record can be read to tell whether it is still what was "+
		"shown; it can be removed by hand")
}
