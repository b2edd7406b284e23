package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/resolve"
)

// resolveCommand resolves an abandoned operation after a confirmation.
type resolveCommand struct {
	keyFlags
	Happened    bool `help:"The operation was executed. Retries get the given answer."`
	NotHappened bool `help:"The operation was not executed. The next equal request is executed."`

	Status    *int     `placeholder:"CODE" help:"Status of the answer, such as 201. Use 200 for work without HTTP."`
	Header    []string `sep:"none" placeholder:"'NAME: VALUE'" help:"Header field of the answer. May be repeated."`
	Body      string   `placeholder:"FILE" help:"File with the body, up to 1 MiB. '-' means standard input, and needs --yes."`
	Tombstone bool     `help:"The answer is unknown. Retries get 409 not-replayable, and the operation is not executed again."`

	Reason   string        `placeholder:"TEXT" help:"The reason, stored with operator and time. Clients do not see it."`
	Operator string        `placeholder:"NAME" help:"The name of the operator. Default: the user who runs this program."`
	TTL      time.Duration `name:"ttl" placeholder:"TIME" help:"${ttl}"`
	Yes      bool          `help:"Do not ask for confirmation. Required if standard input is not a terminal."`
}

// Help returns the text above the flags.
func (*resolveCommand) Help() string {
	return `First find out, for instance from the payment provider, whether the operation has taken effect.

If so, use --happened with --status, and with --header and --body, or --tombstone. If not, use --not-happened.
Both need --reason.

A service that seals its answers (package seal) cannot read an answer of this command. Use --tombstone, or resolve the
operation in the service, with package resolve.`
}

// maxBody bounds the body of an answer. Package resolve has the same default.
const maxBody = 1 << 20

// requestedResolution is the resolution that the flags describe.
type requestedResolution struct {
	response  *idempotency.Response // nil for an operation that has not happened
	signature resolve.By
	ttl       time.Duration // 0 until the record is known
}

func (c *resolveCommand) Run(a *app) error {
	resolution, faults := c.parseFlags(a)
	store, err := a.openStore(append(faults, c.checkFlags(), a.requireTerminal(c.Yes))...)
	if err != nil {
		return err
	}
	defer store.closeClient()
	entry, damage := a.loadEntry(c.keyFlags, store)
	switch {
	case errors.Is(damage, idempotency.ErrNoRecord):
		return a.reportAbsence(inspection{Store: store.description, Story: c.describeMissingKey(), Resolved: new(bool)})
	case errors.Is(damage, idempotency.ErrRecordInvalid):
		return failWith(exitUnknown, "not resolved: %s", describeEntry(entry, damage))
	case damage != nil:
		return damage
	case entry.State != idempotency.StateAbandoned:
		return failWith(exitRefused, "not resolved: %s", describeEntry(entry, nil))
	}
	resolution.ttl = cmp.Or(resolution.ttl, max(24*time.Hour, entry.Remaining))
	story := resolution.describeEffect(entry)
	if !a.flags.JSON {
		fmt.Fprintln(a.out, wrapText(describeEntry(entry, nil)))
		a.showEntry(entry)
		fmt.Fprintf(a.out, "\n%s\n", wrapText(story))
		resolution.showResolution(a)
	}
	if !c.Yes && !a.askToConfirm(entry, story, "resolve") {
		return failWith(exitRefused, "not resolved: you did not type %s", confirmationWord(entry))
	}
	if err := a.applyResolution(store, entry, resolution); err != nil {
		return err
	}
	if !a.flags.JSON {
		_, err = fmt.Fprintln(a.out, "Resolved.")
		return err
	}
	yes := true
	return writeJSON(a.out, inspection{
		Store: store.description, Found: true, Resolved: &yes, Story: story,
		Entry: newJSONEntry(entry, nil, false), Resolution: resolution.newDocument(),
	})
}

// parseFlags returns the requested resolution and all faults of the flags.
func (c *resolveCommand) parseFlags(a *app) (r requestedResolution, faults []error) {
	fault := func(is bool, text string) {
		if is {
			faults = append(faults, errors.New(text))
		}
	}
	named := c.Status != nil || len(c.Header) > 0 || c.Body != "" || c.Tombstone
	fault(c.Happened == c.NotHappened, "has it happened? want --happened or --not-happened")
	fault(c.NotHappened && named, "--status, --header, --body and --tombstone go with --happened")
	fault(c.Happened && c.Status == nil, "--happened: want --status")
	fault(c.Tombstone && (len(c.Header) > 0 || c.Body != ""), "--tombstone: want neither --header nor --body")
	fault(c.Body == "-" && !c.Yes, "--body - reads standard input, so the command cannot ask for confirmation: want --yes")
	fault(c.TTL < 0, "--ttl must be positive")
	r.ttl = c.TTL
	faults = append(faults, c.signResolution(&r))
	header, err := parseHeader(c.Header)
	faults = append(faults, err)
	var body []byte
	if c.Body != "-" || c.Yes {
		body, err = readBody(a, c.Body)
		faults = append(faults, err)
	}
	if !c.Happened || c.Status == nil {
		return r, faults
	}
	r.response = &idempotency.Response{
		Status: *c.Status, Header: idempotency.NewFields(header), Body: body, Omitted: c.Tombstone,
	}
	return r, append(faults, idempotency.Resolution{Response: r.response, TTL: time.Hour}.Validate())
}

// signResolution adds operator and reason.
func (c *resolveCommand) signResolution(r *requestedResolution) (err error) {
	if strings.TrimSpace(c.Reason) == "" {
		return errors.New("want --reason")
	}
	by := resolve.By{Operator: c.Operator, Reason: c.Reason}
	if c.Operator == "" {
		self, err := user.Current()
		if err != nil {
			return fmt.Errorf("want --operator: %w", err)
		}
		by.Operator = self.Username
	}
	r.signature, err = by.Clean()
	return err
}

// parseHeader parses lines of the form "Name: value". Names and values that net/http would reject or change are faults.
func parseHeader(lines []string) (http.Header, error) {
	var faults []error
	header := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsFunc(name, func(c rune) bool { return !isTokenChar(c) }) {
			faults = append(faults, fmt.Errorf("--header %q: want 'Name: value'", line))
			continue
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7F }) {
			faults = append(faults, fmt.Errorf("--header %q: a control character", line))
		}
		header.Add(name, strings.TrimSpace(value))
	}
	return header, errors.Join(faults...)
}

// isTokenChar reports whether the name of a field may contain c (RFC 9110, section 5.6.2).
func isTokenChar(c rune) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

// readBody reads the file called name, or standard input for "-".
func readBody(a *app, name string) ([]byte, error) {
	from := io.Reader(a.stdin)
	switch name {
	case "":
		return []byte{}, nil
	case "-":
	default:
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("--body: %w", err)
		}
		defer file.Close()
		from = file
	}
	body, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--body: %w", err)
	case len(body) > maxBody:
		return nil, fmt.Errorf("--body: more than %d bytes", maxBody)
	}
	return body, nil
}

// describeEffect describes the effect of the resolution on retries.
func (r *requestedResolution) describeEffect(e idempotency.Entry) string {
	kept := fmt.Sprintf(" The record is kept for %s.", formatDuration(r.ttl))
	switch {
	case r.response == nil:
		return fmt.Sprintf("If this is resolved as not happened, the next request like it makes attempt %d at the same "+
			"operation. If the effects of attempt %d took place nevertheless, they happen A SECOND TIME.", e.Attempt+1, e.Attempt) +
			describeSteps(e) + kept
	case r.response.Omitted:
		return "If this is resolved as happened, without its answer, a retry is refused with 409 not-replayable, and nothing " +
			"runs." + kept
	default:
		return "If this is resolved as happened, a retry gets the answer below, and nothing runs. If the operation has not " +
			"taken effect, it never will. If the service seals its answers, it cannot read this one: resolve the operation " +
			"there." + kept
	}
}

// showResolution prints the answer, operator and reason that the store will keep.
func (r *requestedResolution) showResolution(a *app) {
	t := newTable(a.out)
	if r.response != nil {
		t.writeRow("  status", formatStatus(r.response.Status))
		t.writeRows("  header", headerLines(r.response))
	}
	t.writeRow("  operator", visible.Text(r.signature.Operator))
	t.writeRow("  reason", visible.Text(r.signature.Reason))
	t.flush()
	if r.response != nil && len(r.response.Body) > 0 {
		fmt.Fprintf(a.out, "\nThe body has %s:\n\n%s", formatBytes(int64(len(r.response.Body))),
			quoteLines(string(r.response.Body), "  | "))
	}
	fmt.Fprintln(a.out)
}

// newDocument returns the resolution for the JSON document.
func (r *requestedResolution) newDocument() *jsonResolution {
	j := &jsonResolution{Operator: r.signature.Operator, Reason: r.signature.Reason, RemainingMS: r.ttl.Milliseconds()}
	if r.response != nil {
		j.Happened, j.Status, j.Omitted, j.BodySize = true, r.response.Status, r.response.Omitted, len(r.response.Body)
		j.Header = r.response.Header.Header()
	}
	return j
}

// applyResolution resolves the operation of entry, unless the record has changed since the program showed entry.
func (a *app) applyResolution(store *openedStore, entry idempotency.Entry, resolution requestedResolution) error {
	resolver, err := resolve.New(store, resolve.Options{
		TTL: resolution.ttl, MaxResponse: maxBody, Logger: a.newLogger(),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	if resolution.response != nil {
		err = resolver.Happened(ctx, entry, *resolution.response, resolution.signature)
	} else {
		err = resolver.NotHappened(ctx, entry, resolution.signature)
	}
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return failWith(exitNothing, "there is no record any more")
	case errors.Is(err, idempotency.ErrInProgress):
		return failWith(exitRefused, "not resolved: the operation is running by now")
	case errors.Is(err, idempotency.ErrEntryChanged):
		return failWith(exitRefused, "not resolved: the record has changed since it was shown")
	case errors.Is(err, idempotency.ErrStoreFull), errors.Is(err, idempotency.ErrUserQuota):
		return failWith(exitRefused, "not resolved: %w", err)
	}
	return err
}
