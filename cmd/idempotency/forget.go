package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// forgetCommand removes the record of a key.
type forgetCommand struct {
	keyFlags
	Yes bool `help:"Do not ask. Needed where nobody can be asked."`
}

func (c *forgetCommand) Run(a *app) error {
	s, err := a.open(c.check(), a.mayAsk(c.Yes))
	if err != nil {
		return err
	}
	defer s.close()
	no := false
	entry, damage := a.ask(c.keyFlags, s)
	switch {
	case errors.Is(damage, idempotency.ErrNoRecord):
		return a.tellAbsent(inspection{Store: s.name, Story: c.absent(), Forgotten: &no})
	case damage != nil && !errors.Is(damage, idempotency.ErrRecordInvalid):
		return damage
	case damage != nil && entry.State == "":
		return unforgettable()
	case entry.State == idempotency.StateRunning:
		return fail(exitRefused, "not forgotten: %s", tell(entry, damage))
	}
	if !a.line.JSON {
		fmt.Fprintln(a.out, paragraph(tell(entry, damage)))
		a.show(entry)
		fmt.Fprintf(a.out, "\n%s\n", paragraph(warn(entry, damage)))
	}
	if !c.Yes && !a.confirm(entry, warn(entry, damage), "forget") {
		return fail(exitRefused, "not forgotten: you did not type %s", wordOf(entry))
	}
	if err := a.forget(s, entry); err != nil {
		return err
	}
	if a.line.JSON {
		yes := true
		return writeJSON(a.out, inspection{
			Store: s.name, Found: true, Forgotten: &yes, Story: warn(entry, damage), Entry: jsonOf(entry, damage, false),
		})
	}
	_, err = fmt.Fprintln(a.out, "Forgotten.")
	return err
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
	case err == nil:
		a.logger().Info("idempotency: forgotten", "operation", entry.OperationID().String(), "attempt", entry.Attempt,
			"state", string(entry.State))
	}
	return err
}

// unforgettable is the failure to forget a record of which no state can be read.
func unforgettable() error {
	return fail(exitUnknown, "not forgotten: too little of the record can be read to tell whether it is still what was "+
		"shown; it can be removed by hand")
}
