package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// confirm returns what is said after a change. The record says whether the change was made, because anybody can make an
// address of this console.
func confirm(asked string, e idempotency.Entry) string {
	switch r := e.Resolved; {
	case asked != "resolved" || r == nil:
		return ""
	case !r.Happened && e.State == idempotency.StateReleased:
		return "Resolved: it has not happened, and the next request runs it."
	case !r.Happened: // it runs, or has run, since
		return ""
	case e.Response != nil && e.Response.Omitted:
		return "Resolved: it has happened, and retries are refused with 409 not-replayable."
	default:
		return "Resolved: it has happened, and retries get the answer."
	}
}

// change makes one change to the operation of a form, if that is still what the page has shown.
func (c *Console) change(v *visit) {
	form, ok := v.form()
	if !ok {
		return
	}
	digest, err := parseDigest(form.Get("digest"))
	if err != nil {
		v.refuse(http.StatusBadRequest, "Not readable", "The form is not one of this console. Nothing was changed.", "./")
		return
	}
	back := addressOf(digest)
	entry, damage := c.inspect(v.r.Context(), digest)
	switch {
	case damage != nil && !errors.Is(damage, idempotency.ErrRecordInvalid):
		c.refuseChange(v, damage, back)
		return
	case version(entry) != form.Get("seen"):
		c.refuseChange(v, idempotency.ErrEntryChanged, back)
		return
	}
	change, err := c.read(form, v.operator)
	if err != nil {
		s := c.tell(v, entry, damage != nil)
		s.Typed = form
		v.write(http.StatusUnprocessableEntity, page{Title: s.title(), Story: s, Fault: "Nothing was changed: " + err.Error()})
		return
	}
	// A browser that leaves does not break it off: then nobody would know whether it was made.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), patience)
	defer cancel()
	if err := change(ctx, entry); err != nil {
		c.refuseChange(v, err, back)
		return
	}
	v.see(back + "&done=resolved")
}

// refusals are the errors by which a store says that it has changed nothing.
var refusals = map[error]string{
	idempotency.ErrEntryChanged:  "The operation has changed since the page was made.",
	idempotency.ErrInProgress:    "The operation is running by now.",
	idempotency.ErrNoRecord:      "There is no record any more.",
	idempotency.ErrRecordInvalid: "Too little of the record can be read to change it.",
	idempotency.ErrStoreFull:     "The store has no room for it.",
	idempotency.ErrUserQuota:     "The user's share of the store has no room for it.",
}

// refuseChange says why the store has made no change.
func (c *Console) refuseChange(v *visit, err error, back string) {
	for reason, why := range refusals {
		if errors.Is(err, reason) {
			v.refuse(http.StatusConflict, "Not changed", why+" Nothing was changed.", back)
			return
		}
	}
	c.fail(v, err, back)
}

// read returns the change that a form asks for. The error says what is wrong with the form.
func (c *Console) read(form url.Values, operator string) (func(context.Context, idempotency.Entry) error, error) {
	by, err := resolve.By{Operator: operator, Reason: form.Get("reason")}.Clean()
	if err != nil {
		return nil, fmt.Errorf("a reason is needed, of at most %d bytes", idempotency.MaxReason)
	}
	if form.Get("do") == "forget" {
		return func(ctx context.Context, e idempotency.Entry) error { return c.forget(ctx, e, by) }, nil
	}
	if c.resolver == nil {
		return nil, errors.New("this store cannot resolve operations")
	}
	var resp idempotency.Response
	switch form.Get("do") {
	case "not-happened":
		return func(ctx context.Context, e idempotency.Entry) error { return c.resolver.NotHappened(ctx, e, by) }, nil
	case "tombstone":
		resp, err = tombstone(form)
	case "answer":
		resp, err = c.answer(form)
	default:
		err = errors.New("the form does not say what to do")
	}
	return func(ctx context.Context, e idempotency.Entry) error { return c.resolver.Happened(ctx, e, resp, by) }, err
}

func (c *Console) forget(ctx context.Context, e idempotency.Entry, by resolve.By) error {
	if err := c.store.Forget(ctx, e); err != nil {
		return err
	}
	c.log(ctx, slog.LevelInfo, "idempotency: forgotten", slog.String("operation", e.OperationID().String()),
		slog.Int("attempt", e.Attempt), slog.String("state", string(e.State)),
		slog.String("operator", by.Operator), slog.String("reason", by.Reason))
	return nil
}

func tombstone(form url.Values) (idempotency.Response, error) {
	status, err := strconv.Atoi(form.Get("status"))
	if err != nil || status < 200 || status > 599 {
		return idempotency.Response{}, errors.New("the status is a number from 200 to 599")
	}
	return idempotency.Response{Status: status, Omitted: true}, nil
}

// answer returns the answer that a person has typed in. Browsers end lines with CR LF, whatever was typed.
func (c *Console) answer(form url.Values) (idempotency.Response, error) {
	resp, err := tombstone(form)
	if err != nil {
		return resp, err
	}
	resp.Omitted = false
	if resp.Header, err = parseHeader(form.Get("header")); err != nil {
		return resp, err
	}
	resp.Body = []byte(strings.ReplaceAll(form.Get("body"), "\r\n", "\n"))
	most := cmp.Or(c.opts.Resolve.MaxResponse, 1<<20)
	if int64(len(resp.Body)) > most {
		return resp, fmt.Errorf("the body has %d bytes, more than %d", len(resp.Body), most)
	}
	if len(resp.Body) > 0 && (resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified) {
		return resp, fmt.Errorf("an answer with the status %d has no body", resp.Status)
	}
	if len(resp.Body) > 0 && resp.Header.Get("Content-Type") == "" {
		return resp, errors.New("a body needs a Content-Type, or browsers guess what it is")
	}
	if err := (idempotency.Resolution{Response: &resp, TTL: 1}).Validate(); err != nil {
		return resp, fmt.Errorf("this answer cannot be repeated: %w", err)
	}
	return resp, nil
}

// headerLine is a line such as "Content-Type: text/plain".
var headerLine = regexp.MustCompile("^([0-9A-Za-z!#$%&'*+.^_`|~-]+):([ -~]*)$")

func parseHeader(text string) (idempotency.Fields, error) {
	header := make(http.Header)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		parts := headerLine.FindStringSubmatch(line)
		if parts == nil {
			return "", fmt.Errorf("%q is no line of a header: Name: value, in ASCII", line)
		}
		header.Add(parts[1], strings.TrimSpace(parts[2]))
	}
	return idempotency.NewFields(header), nil
}
