package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// eraseCommand removes all records of a user.
type eraseCommand struct {
	User string `required:"" placeholder:"NAME" help:"The user, as the service names it."`
	Yes  bool   `help:"Do not ask for confirmation. Required if standard input is not a terminal."`
}

// eraseDocument is the JSON document of erase. It does not name the user.
type eraseDocument struct {
	Store      string `json:"store"`
	Erased     int    `json:"erased"`
	Running    int    `json:"running"`
	Unreadable int    `json:"unreadable"`
}

func (c *eraseCommand) Run(a *app) error {
	var fault error
	if c.User == "" {
		fault = errors.New("--user must not be empty")
	}
	store, err := a.openStore(fault, a.requireTerminal(c.Yes))
	if err != nil {
		return err
	}
	defer store.closeClient()
	found, err := c.countRecords(a, store)
	switch {
	case err != nil:
		return err
	case !c.Yes && found > 0 && !a.askToErase(found):
		return failWith(exitRefused, "not erased: you did not type the number of records")
	}
	erased, err := c.eraseRecords(a, store)
	return errors.Join(a.reportErasure(store, erased, err), err)
}

// countRecords returns how many records the user has.
func (c *eraseCommand) countRecords(a *app, store *openedStore) (count int, err error) {
	user := idempotency.Key{User: c.User}.Bounded().User
	began := time.Now()
	listing, err := a.loadListing(store, idempotency.ListRequest{User: user, Limit: 1, Scan: math.MaxInt})
	for _, total := range listing.Totals {
		count += total.Records
	}
	if err == nil && !a.flags.JSON {
		fmt.Fprintf(a.out, "The store is %s. Reading its records took %s, and erasing takes at least as long.\nRecords of the user: %d.\n",
			store.description, max(time.Millisecond, time.Since(began).Round(time.Millisecond)), count)
	}
	return count, err
}

// eraseRecords removes the records of the user, and shows the progress.
func (c *eraseCommand) eraseRecords(a *app, store *openedStore) (resolve.Erasure, error) {
	scan := a.newScan()
	defer scan.end()
	erased, err := resolve.EraseUser(scan.ctx, store, c.User, resolve.EraseOptions{Progress: func(p resolve.EraseProgress) {
		scan.timer.Reset(a.flags.Timeout)
		scan.progress.showText(fmt.Sprintf("Records read: %d of about %d. Records of the user: %d of %d handled. Ctrl-C ends that.",
			p.Read, max(p.Read, p.Total), p.Handled, p.Found))
	}})
	return erased, scan.explainError(err)
}

// reportErasure prints the numbers of records, also after an error that ended the erasure.
func (a *app) reportErasure(store *openedStore, erased resolve.Erasure, failure error) error {
	a.newLogger().Info("idempotency: erased the records of a user", "erased", erased.Erased, "running", erased.Running,
		"unreadable", erased.Unreadable, "complete", failure == nil)
	if a.flags.JSON {
		document := eraseDocument{store.description, erased.Erased, erased.Running, erased.Unreadable}
		if err := writeJSON(a.out, document); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.out, "Erased: %d.\n", erased.Erased)
	}
	switch {
	case failure != nil:
		return nil
	case erased.Running > 0:
		return failWith(exitRefused, "%d records stay, because an attempt is running: repeat the command after the lease", erased.Running)
	case erased.Unreadable > 0:
		return failWith(exitUnknown, "%d records that cannot be read stay, and may belong to the user", erased.Unreadable)
	case erased.Erased == 0:
		return exitSilently(exitNothing)
	}
	return nil
}
