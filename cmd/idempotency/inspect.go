package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// keyFlags are the flags that identify a key.
type keyFlags struct {
	User      string `placeholder:"NAME" help:"The user, as the service names it ('single' for SingleUser)."`
	Endpoint  string `placeholder:"TEXT" help:"The endpoint, such as 'POST /payments'."`
	Key       string `placeholder:"TEXT" help:"The Idempotency-Key of the client."`
	Operation string `placeholder:"UUID" help:"The ID of the operation, as in a log or a refusal. Replaces these three flags."`
}

// checkFlags returns an error unless the flags give either an operation or user, endpoint and key.
func (k keyFlags) checkFlags() error {
	_, err := uuid.Parse(k.Operation)
	switch all := k.User != "" && k.Endpoint != "" && k.Key != ""; {
	case k.Operation != "" && (k.User != "" || k.Endpoint != "" || k.Key != ""):
		return errors.New("want --operation, or --user, --endpoint and --key")
	case k.Operation != "" && err != nil:
		return errors.New("--operation: want a UUID")
	case k.Operation == "" && !all:
		return errors.New("which operation? want --user, --endpoint and --key, or --operation")
	}
	return nil
}

// findEntry returns the entry of the key in store.
func (k keyFlags) findEntry(ctx context.Context, store *openedStore) (idempotency.Entry, error) {
	if k.Operation != "" {
		return store.InspectOperation(ctx, k.operationID())
	}
	return store.Inspect(ctx, k.parseKey())
}

// parseKey returns the key of --user, --endpoint and --key.
func (k keyFlags) parseKey() idempotency.Key {
	id, err := idempotency.ParseKey([]string{k.Key}) // in quotes or bare, like the header field
	if err != nil {
		id = k.Key // a Runner accepts other IDs, too
	}
	return idempotency.Key{User: k.User, Endpoint: k.Endpoint, ID: id}.Bounded()
}

// operationID returns the ID of the operation that the flags identify.
func (k keyFlags) operationID() uuid.UUID {
	if k.Operation != "" {
		id, _ := uuid.Parse(k.Operation) // checkFlags has seen to the error
		return id
	}
	return k.parseKey().OperationID()
}

// describeMissingKey describes the key when the store has no record.
func (k keyFlags) describeMissingKey() string { return describeAbsence(k.operationID().String()) }

// isIncomplete reports whether the flags give some of user, endpoint and key, so that only a search finds the operation.
func (k keyFlags) isIncomplete() bool {
	given := (k.User != "" || k.Endpoint != "" || k.Key != "")
	return k.Operation == "" && given && (k.User == "" || k.Endpoint == "" || k.Key == "")
}

// inspectCommand describes the operation of a key.
type inspectCommand struct {
	keyFlags
	Body bool `help:"Show the body of the answer as well."`
}

func (c *inspectCommand) Run(a *app) error {
	var fault error
	if !c.isIncomplete() {
		fault = c.checkFlags()
	}
	store, err := a.openStore(fault)
	if err != nil {
		return err
	}
	defer store.closeClient()
	if c.isIncomplete() {
		if c.Operation, err = c.searchOperation(a, store); err != nil {
			return err
		}
	}
	entry, err := a.loadEntry(c.keyFlags, store)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return a.reportAbsence(inspection{Store: store.description, Story: c.describeMissingKey()})
	case err != nil && !errors.Is(err, idempotency.ErrRecordInvalid):
		return err
	}
	damage := err
	if a.flags.JSON {
		err = writeJSON(a.out, inspection{
			Store: store.description, Found: true, Story: describeEntry(entry, damage), Entry: newJSONEntry(entry, damage, c.Body),
		})
	} else {
		fmt.Fprintln(a.out, wrapText(describeEntry(entry, damage)))
		a.showEntry(entry)
		showBody(a.out, entry, c.Body)
		if damage == nil && entry.State == idempotency.StateAbandoned {
			fmt.Fprint(a.out, "\nWhen you know what it has done, end it: idempotency resolve --help says how.\n")
		}
	}
	if damage != nil {
		return errors.Join(err, &exitError{exitUnknown, damage})
	}
	return err
}

// searchOperation returns the ID of the only operation with the given parts of the key. If there are several, searchOperation
// lists the newest of them and returns an error.
func (c *inspectCommand) searchOperation(a *app, store *openedStore) (string, error) {
	key := c.parseKey()
	listing, err := a.loadListing(store, idempotency.ListRequest{
		User: key.User, Endpoint: key.Endpoint, ID: key.ID, Limit: maxCandidates, Scan: math.MaxInt,
	})
	switch {
	case err != nil:
		return "", err
	case len(listing.Entries) == 0:
		document := inspection{Store: store.description, Story: "No record of the store matches."}
		return "", errors.Join(a.reportAbsence(document), exitWithoutMatch(listing))
	case len(listing.Entries) == 1:
		return listing.Entries[0].Operation.String(), nil
	}
	if !a.flags.JSON {
		a.showEntries(listing.Entries, withOperation)
	}
	return "", failWith(exitUsage, "several records match: choose one of them with --operation, or see all with list")
}

// maxCandidates is how many records inspect lists for the user to choose from.
const maxCandidates = 20

// reportAbsence prints that the record is missing, and returns the exit status as an error.
func (a *app) reportAbsence(document inspection) error {
	if a.flags.JSON {
		return errors.Join(writeJSON(a.out, document), exitSilently(exitNothing))
	}
	fmt.Fprintf(a.out, "%s\nThe store is %s.\n", wrapText(document.Story), document.Store)
	return exitSilently(exitNothing)
}

// loadEntry returns the entry of key in store, within --timeout.
func (a *app) loadEntry(key keyFlags, store *openedStore) (idempotency.Entry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	return key.findEntry(ctx, store)
}

// showEntry prints the known fields of an entry.
func (a *app) showEntry(e idempotency.Entry) {
	t := newTable(a.out)
	addRow := func(name, value string) {
		if value != "" {
			t.writeRow("  "+name, value)
		}
	}
	addRow("state", a.style.colourState(e.State))
	addRow("user", visible.Text(e.Key.User))
	addRow("endpoint", visible.Text(e.Key.Endpoint))
	addRow("key", visible.Text(e.Key.ID))
	addRow("operation", e.Operation.String())
	if e.Attempt > 0 {
		addRow("attempt", fmt.Sprint(e.Attempt))
	}
	addRow("ended", visible.Text(string(e.Ended)))
	addRow("began", formatTime(e.Created))
	addRow("completed", formatTime(e.Completed))
	addRow("lease left", formatDuration(e.LeaseLeft))
	addRow("kept for", formatDuration(e.Remaining))
	if e.Size > 0 {
		addRow("size", formatBytes(e.Size))
	}
	if e.State == idempotency.StateCompleted {
		addRow("status", formatStatus(e.Status))
	}
	t.writeRows("  header", headerLines(e.Response))
	t.writeRows("  steps", stepLines(e))
	addRow("note", visible.Text(e.Note))
	t.writeRows("  resolved", resolutionLines(e.Resolved))
	t.flush()
}

// showBody prints the body of the answer or, if isRequested is false, the flag that shows the body.
func showBody(out io.Writer, e idempotency.Entry, isRequested bool) {
	switch {
	case e.Response == nil || e.Response.Omitted:
	case isSealed(e.Response):
		fmt.Fprintf(out, "\nThe answer is sealed: %s that only the service can open.\n", formatBytes(int64(len(e.Response.Body))))
	case !isRequested:
		fmt.Fprintf(out, "\nThe body has %s: --body shows it.\n", formatBytes(int64(len(e.Response.Body))))
	default:
		fmt.Fprintf(out, "\nThe body has %s:\n\n%s", formatBytes(int64(len(e.Response.Body))),
			quoteLines(string(e.Response.Body), "  | "))
	}
}
