package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// keyFlags name a key.
type keyFlags struct {
	User     string `placeholder:"NAME" help:"The user, as the service names it ('single' for SingleUser)."`
	Endpoint string `placeholder:"TEXT" help:"The endpoint, such as 'POST /payments'."`
	Key      string `placeholder:"TEXT" help:"What the client sent as Idempotency-Key."`
	Digest   string `placeholder:"HEX" help:"The digest of all three, from a list, in their place."`
}

// check reports what is wrong with the flags.
func (k keyFlags) check() error {
	digest, err := hex.DecodeString(k.Digest)
	switch all := k.User != "" && k.Endpoint != "" && k.Key != ""; {
	case k.Digest != "" && (k.User != "" || k.Endpoint != "" || k.Key != ""):
		return errors.New("want --digest, or --user, --endpoint and --key")
	case k.Digest != "" && (err != nil || len(digest) != 32):
		return errors.New("--digest: want 64 hexadecimal digits")
	case k.Digest == "" && !all:
		return errors.New("which key? want --user, --endpoint and --key, or --digest")
	}
	return nil
}

// find returns what the store has of the key.
func (k keyFlags) find(ctx context.Context, s *opened) (idempotency.Entry, error) {
	if k.Digest != "" {
		return s.InspectDigest(ctx, k.digest())
	}
	return s.Inspect(ctx, k.key())
}

// key returns the key that is named by its parts.
func (k keyFlags) key() idempotency.Key {
	id, err := idempotency.ParseKey([]string{k.Key}) // in quotes or bare, as the header may be
	if err != nil {
		id = k.Key // of a Runner, which has other rules
	}
	return idempotency.Key{User: k.User, Endpoint: k.Endpoint, ID: id}.Bounded()
}

func (k keyFlags) digest() [32]byte {
	if k.Digest != "" {
		digest, _ := hex.DecodeString(k.Digest) // was checked
		return [32]byte(digest)
	}
	return k.key().Digest()
}

// absent is the story of the key if there is no record of it.
func (k keyFlags) absent() string {
	return tellAbsent(idempotency.Entry{Digest: k.digest()}.OperationID().String())
}

// inspectCommand tells what happened to a key.
type inspectCommand struct {
	keyFlags
	Body bool `help:"Show the body of the answer, too."`
}

func (c *inspectCommand) Run(a *app) error {
	s, err := a.open(c.check())
	if err != nil {
		return err
	}
	defer s.close()
	entry, err := a.ask(c.keyFlags, s)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return a.tellAbsent(inspection{Store: s.name, Story: c.absent()})
	case err != nil && !errors.Is(err, idempotency.ErrRecordInvalid):
		return err
	}
	damage := err
	if a.line.JSON {
		err = writeJSON(a.out, inspection{
			Store: s.name, Found: true, Story: tell(entry, damage), Entry: jsonOf(entry, damage, c.Body),
		})
	} else {
		fmt.Fprintln(a.out, paragraph(tell(entry, damage)))
		a.show(entry)
		showBody(a.out, entry, c.Body)
		if damage == nil && entry.State == idempotency.StateAbandoned {
			fmt.Fprint(a.out, "\nWhen you know what it has done, end it: idempotency resolve --help says how.\n")
		}
	}
	if damage != nil {
		return errors.Join(err, &failure{exitUnknown, damage})
	}
	return err
}

// tellAbsent says that there is no record, and ends the command.
func (a *app) tellAbsent(document inspection) error {
	if a.line.JSON {
		return errors.Join(writeJSON(a.out, document), nothing(exitNothing))
	}
	fmt.Fprintf(a.out, "%s\nThe store is %s.\n", paragraph(document.Story), document.Store)
	return nothing(exitNothing)
}

// ask returns what the store has of the key, within the bound.
func (a *app) ask(key keyFlags, s *opened) (idempotency.Entry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	return key.find(ctx, s)
}

// show writes what is known of an entry.
func (a *app) show(e idempotency.Entry) {
	t := newTable(a.out)
	row := func(name, value string) {
		if value != "" {
			t.row("  "+name, value)
		}
	}
	row("state", a.style.state(e.State))
	row("user", visible.Text(e.Key.User))
	row("endpoint", visible.Text(e.Key.Endpoint))
	row("key", visible.Text(e.Key.ID))
	row("digest", hex.EncodeToString(e.Digest[:]))
	row("operation", e.OperationID().String())
	if e.Attempt > 0 {
		row("attempt", fmt.Sprint(e.Attempt))
	}
	row("began", instant(e.Created))
	row("completed", instant(e.Completed))
	row("lease left", duration(e.LeaseLeft))
	row("kept for", duration(e.Remaining))
	if e.Size > 0 {
		row("size", bytesOf(e.Size))
	}
	if e.State == idempotency.StateCompleted {
		row("status", statusOf(e.Status))
	}
	t.rows("  header", headerOf(e.Response))
	t.rows("  steps", stepsOf(e))
	row("note", visible.Text(e.Note))
	t.rows("  resolved", resolutionOf(e.Resolved))
	t.flush()
}

// showBody writes the body of the answer, or how to see it.
func showBody(out io.Writer, e idempotency.Entry, asked bool) {
	switch {
	case e.Response == nil || e.Response.Omitted:
	case isSealed(e.Response):
		fmt.Fprintf(out, "\nThe answer is sealed: %s that only the service can open.\n", bytesOf(int64(len(e.Response.Body))))
	case !asked:
		fmt.Fprintf(out, "\nThe body has %s: --body shows it.\n", bytesOf(int64(len(e.Response.Body))))
	default:
		fmt.Fprintf(out, "\nThe body has %s:\n\n%s", bytesOf(int64(len(e.Response.Body))),
			visibleLines(string(e.Response.Body), "  | "))
	}
}
