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

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// describeDone returns the sentence that confirms a resolution. describeDone trusts the record instead of doneParam, the query
// parameter, because anybody can write an address of this console.
func describeDone(doneParam string, e idempotency.Entry) string {
	switch r := e.Resolved; {
	case doneParam != "resolved" || r == nil:
		return ""
	case !r.Happened && e.State == idempotency.StateReleased:
		return "Resolved: it has not happened, and the next request runs it."
	case !r.Happened: // another attempt has begun since the resolution
		return ""
	case e.Response != nil && e.Response.Omitted:
		return "Resolved: it has happened, and retries are refused with 409 not-replayable."
	default:
		return "Resolved: it has happened, and retries get the answer."
	}
}

// applyChange makes the change that a form asks for, unless the record has changed since the page with the form was made.
func (c *Console) applyChange(req *request) {
	form, ok := req.parseForm()
	if !ok {
		return
	}
	operation, err := uuid.Parse(form.Get("operation"))
	if err != nil {
		req.writeRefusal(http.StatusBadRequest, "Not readable", "The form is not one of this console. Nothing was changed.", "./")
		return
	}
	backAddress := operationAddress(operation)
	entry, readErr := c.store.InspectOperation(req.httpRequest.Context(), operation)
	switch {
	case readErr != nil && !errors.Is(readErr, idempotency.ErrRecordInvalid):
		c.refuseChange(req, readErr, backAddress)
		return
	case recordVersion(entry) != form.Get("seen"):
		c.refuseChange(req, idempotency.ErrEntryChanged, backAddress)
		return
	}
	apply, err := c.parseChange(form, req.operator)
	if err != nil {
		story := c.newStory(req, entry, readErr != nil)
		story.Typed = form
		fault := "Nothing was changed: " + err.Error()
		req.writePage(http.StatusUnprocessableEntity, pageData{Title: story.storyTitle(), Story: story, Fault: fault})
		return
	}
	// The change continues after the browser has disconnected. A canceled change might or might not be in the store.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(req.httpRequest.Context()), storeTimeout)
	defer cancel()
	if err := apply(ctx, entry); err != nil {
		c.refuseChange(req, err, backAddress)
		return
	}
	req.redirectTo(backAddress + "&done=resolved")
}

// reasonsUnchanged explains the errors with which a store rejects a change and leaves the record as before.
var reasonsUnchanged = map[error]string{
	idempotency.ErrEntryChanged:  "The operation has changed since the page was made.",
	idempotency.ErrInProgress:    "The operation is running by now.",
	idempotency.ErrNoRecord:      "There is no record any more.",
	idempotency.ErrRecordInvalid: "Too little of the record can be read to change it.",
	idempotency.ErrStoreFull:     "The store has no room for it.",
	idempotency.ErrUserQuota:     "The user's share of the store has no room for it.",
}

// refuseChange answers a change that the store rejected. Any other error means that the change may have been made.
func (c *Console) refuseChange(req *request, err error, backAddress string) {
	for known, why := range reasonsUnchanged {
		if errors.Is(err, known) {
			req.writeRefusal(http.StatusConflict, "Not changed", why+" Nothing was changed.", backAddress)
			return
		}
	}
	c.reportStoreError(req, err, backAddress)
}

// parseChange returns a function that makes the change of form on behalf of operator. The error describes the fault of the form
// to the operator.
func (c *Console) parseChange(form url.Values, operator string) (func(context.Context, idempotency.Entry) error, error) {
	by, err := resolve.By{Operator: operator, Reason: form.Get("reason")}.Clean()
	if err != nil {
		return nil, fmt.Errorf("a reason is needed, of at most %d bytes", idempotency.MaxReason)
	}
	if form.Get("do") == "forget" {
		return func(ctx context.Context, e idempotency.Entry) error { return c.forgetRecord(ctx, e, by) }, nil
	}
	if c.resolver == nil {
		return nil, errors.New("this store cannot resolve operations")
	}
	var resp idempotency.Response
	switch form.Get("do") {
	case "not-happened":
		return func(ctx context.Context, e idempotency.Entry) error { return c.resolver.NotHappened(ctx, e, by) }, nil
	case "tombstone":
		resp, err = parseTombstone(form)
	case "answer":
		resp, err = c.parseAnswer(form)
	default:
		err = errors.New("the form does not say what to do")
	}
	return func(ctx context.Context, e idempotency.Entry) error { return c.resolver.Happened(ctx, e, resp, by) }, err
}

func (c *Console) forgetRecord(ctx context.Context, e idempotency.Entry, by resolve.By) error {
	if err := c.store.Forget(ctx, e); err != nil {
		return err
	}
	c.logMessage(ctx, slog.LevelInfo, "idempotency: forgotten", slog.String("operation", e.Operation.String()),
		slog.Int("attempt", e.Attempt), slog.String("state", string(e.State)),
		slog.String("operator", by.Operator), slog.String("reason", by.Reason))
	return nil
}

func parseTombstone(form url.Values) (idempotency.Response, error) {
	status, err := strconv.Atoi(form.Get("status"))
	if err != nil || status < 200 || status > 599 {
		return idempotency.Response{}, errors.New("the status is a number from 200 to 599")
	}
	return idempotency.Response{Status: status, Omitted: true}, nil
}

// parseAnswer returns the response that the operator has typed into form. parseAnswer turns CR LF into LF, because
// browsers send every line break of a form as CR LF.
func (c *Console) parseAnswer(form url.Values) (idempotency.Response, error) {
	resp, err := parseTombstone(form)
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

// headerLinePattern matches a line such as "Content-Type: text/plain".
var headerLinePattern = regexp.MustCompile("^([0-9A-Za-z!#$%&'*+.^_`|~-]+):([ -~]*)$")

func parseHeader(text string) (idempotency.Fields, error) {
	header := make(http.Header)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		parts := headerLinePattern.FindStringSubmatch(line)
		if parts == nil {
			return "", fmt.Errorf("%q is no line of a header: Name: value, in ASCII", line)
		}
		header.Add(parts[1], strings.TrimSpace(parts[2]))
	}
	return idempotency.NewFields(header), nil
}
