package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// forgetCommand removes the record of a key after a confirmation.
type forgetCommand struct {
	keyFlags
	Yes bool `help:"Do not ask for confirmation. Required if standard input is not a terminal."`
}

func (c *forgetCommand) Run(a *app) error {
	store, err := a.openStore(c.checkFlags(), a.requireTerminal(c.Yes))
	if err != nil {
		return err
	}
	defer store.closeClient()
	no := false
	entry, damage := a.loadEntry(c.keyFlags, store)
	switch {
	case errors.Is(damage, idempotency.ErrNoRecord):
		return a.reportAbsence(inspection{Store: store.description, Story: c.describeMissingKey(), Forgotten: &no})
	case damage != nil && !errors.Is(damage, idempotency.ErrRecordInvalid):
		return damage
	case damage != nil && entry.State == "":
		return failUnforgettable()
	case entry.State == idempotency.StateRunning:
		return failWith(exitRefused, "not forgotten: %s", describeEntry(entry, damage))
	}
	if !a.flags.JSON {
		fmt.Fprintln(a.out, wrapText(describeEntry(entry, damage)))
		a.showEntry(entry)
		fmt.Fprintf(a.out, "\n%s\n", wrapText(describeForgetting(entry, damage)))
	}
	if !c.Yes && !a.askToConfirm(entry, describeForgetting(entry, damage), "forget") {
		return failWith(exitRefused, "not forgotten: you did not type %s", confirmationWord(entry))
	}
	if err := a.forgetRecord(store, entry); err != nil {
		return err
	}
	if a.flags.JSON {
		yes := true
		return writeJSON(a.out, inspection{
			Store: store.description, Found: true, Forgotten: &yes, Story: describeForgetting(entry, damage),
			Entry: newJSONEntry(entry, damage, false),
		})
	}
	_, err = fmt.Fprintln(a.out, "Forgotten.")
	return err
}

// forgetRecord removes the record of entry, unless the record has changed since the program showed entry.
func (a *app) forgetRecord(store *openedStore, entry idempotency.Entry) error {
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	err := store.Forget(ctx, entry)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return failWith(exitNothing, "there is no record any more")
	case errors.Is(err, idempotency.ErrInProgress):
		return failWith(exitRefused, "not forgotten: the operation is running by now")
	case errors.Is(err, idempotency.ErrRecordInvalid):
		return failUnforgettable()
	case errors.Is(err, idempotency.ErrEntryChanged):
		return failWith(exitRefused, "not forgotten: the record has changed since it was shown")
	case err == nil:
		a.newLogger().Info("idempotency: forgotten", "operation", entry.Operation.String(), "attempt", entry.Attempt,
			"state", string(entry.State))
	}
	return err
}

// failUnforgettable returns the error for a record without a readable state. Forget needs the state to detect changes.
func failUnforgettable() error {
	return failWith(exitUnknown, "not forgotten: too little of the record can be read to tell whether it is still what was "+
		"shown; it can be removed by hand")
}
