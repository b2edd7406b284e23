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

// resolveCommand ends an abandoned operation.
type resolveCommand struct {
	keyFlags
	Happened    bool `help:"The operation has happened: retries get this answer."`
	NotHappened bool `help:"It has not happened: the next request like it is executed."`

	Status    *int     `placeholder:"CODE" help:"Status of the answer, such as 201. For work without HTTP it is 200."`
	Header    []string `sep:"none" placeholder:"'NAME: VALUE'" help:"A field of the answer. May be repeated."`
	Body      string   `placeholder:"FILE" help:"The body of the answer, up to 1 MiB. '-' is standard input, and needs --yes."`
	Tombstone bool     `help:"The answer is not known: retries get 409 not-replayable, and nothing runs."`

	Reason   string        `placeholder:"TEXT" help:"Why. It stays in the record, with operator and time, and no client sees it."`
	Operator string        `placeholder:"NAME" help:"Who resolves it. Default: the user who runs this program."`
	TTL      time.Duration `name:"ttl" placeholder:"TIME" help:"${ttl}"`
	Yes      bool          `help:"Do not ask. Needed where nobody can be asked."`
}

// Help is printed above the flags.
func (*resolveCommand) Help() string {
	return `First find out, for instance from the payment provider, whether the operation has taken effect.

If it has: --happened with --status, and --header and --body or --tombstone. If it has not: --not-happened.
Both need --reason.

If the service seals its answers (package seal), it cannot read an answer of this command: give it a tombstone, or resolve
the operation in the service, by package resolve.`
}

// mostBody bounds the body of an answer, as package resolve does.
const mostBody = 1 << 20

// resolution is what the flags ask for.
type resolution struct {
	resp *idempotency.Response // nil: not happened
	by   resolve.By
	ttl  time.Duration // 0: as the record says
}

func (c *resolveCommand) Run(a *app) error {
	r, faults := c.parse(a)
	s, err := a.open(append(faults, c.check(), a.mayAsk(c.Yes))...)
	if err != nil {
		return err
	}
	defer s.close()
	entry, damage := a.ask(c.keyFlags, s)
	switch {
	case errors.Is(damage, idempotency.ErrNoRecord):
		return a.tellAbsent(inspection{Store: s.name, Story: c.absent(), Resolved: new(bool)})
	case errors.Is(damage, idempotency.ErrRecordInvalid):
		return fail(exitUnknown, "not resolved: %s", tell(entry, damage))
	case damage != nil:
		return damage
	case entry.State != idempotency.StateAbandoned:
		return fail(exitRefused, "not resolved: %s", tell(entry, nil))
	}
	r.ttl = cmp.Or(r.ttl, max(24*time.Hour, entry.Remaining))
	story := r.story(entry)
	if !a.line.JSON {
		fmt.Fprintln(a.out, paragraph(tell(entry, nil)))
		a.show(entry)
		fmt.Fprintf(a.out, "\n%s\n", paragraph(story))
		r.show(a)
	}
	if !c.Yes && !a.confirm(entry, story, "resolve") {
		return fail(exitRefused, "not resolved: you did not type %s", wordOf(entry))
	}
	if err := a.resolve(s, entry, r); err != nil {
		return err
	}
	if !a.line.JSON {
		_, err = fmt.Fprintln(a.out, "Resolved.")
		return err
	}
	yes := true
	return writeJSON(a.out, inspection{
		Store: s.name, Found: true, Resolved: &yes, Story: story, Entry: jsonOf(entry, nil, false), Resolution: r.json(),
	})
}

// parse returns what the flags ask for, and every fault of them.
func (c *resolveCommand) parse(a *app) (r resolution, faults []error) {
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
	fault(c.Body == "-" && !c.Yes, "--body - reads standard input, so nobody can be asked: want --yes")
	fault(c.TTL < 0, "--ttl must be positive")
	r.ttl = c.TTL
	faults = append(faults, c.sign(&r))
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
	r.resp = &idempotency.Response{
		Status: *c.Status, Header: idempotency.NewFields(header), Body: body, Omitted: c.Tombstone,
	}
	return r, append(faults, idempotency.Resolution{Response: r.resp, TTL: time.Hour}.Validate())
}

// sign adds who resolves the operation, and why.
func (c *resolveCommand) sign(r *resolution) (err error) {
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
	r.by, err = by.Clean()
	return err
}

// parseHeader reads fields as they stand in a message. What net/http would not send as it stands is a fault.
func parseHeader(lines []string) (http.Header, error) {
	var faults []error
	header := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsFunc(name, func(c rune) bool { return !isToken(c) }) {
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

// isToken reports whether the name of a field may have a character (RFC 9110, section 5.6.2).
func isToken(c rune) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

// readBody reads a file, or standard input.
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
	body, err := io.ReadAll(io.LimitReader(from, mostBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--body: %w", err)
	case len(body) > mostBody:
		return nil, fmt.Errorf("--body: more than %d bytes", mostBody)
	}
	return body, nil
}

// story says what the resolution does.
func (r *resolution) story(e idempotency.Entry) string {
	kept := fmt.Sprintf(" The record is kept for %s.", duration(r.ttl))
	switch {
	case r.resp == nil:
		return fmt.Sprintf("If this is resolved as not happened, the next request like it makes attempt %d at the same "+
			"operation. If the effects of attempt %d took place nevertheless, they happen A SECOND TIME.", e.Attempt+1, e.Attempt) +
			tellSteps(e) + kept
	case r.resp.Omitted:
		return "If this is resolved as happened, without its answer, a retry is refused with 409 not-replayable, and nothing " +
			"runs." + kept
	default:
		return "If this is resolved as happened, a retry gets the answer below, and nothing runs. If the operation has not " +
			"taken effect, it never will. If the service seals its answers, it cannot read this one: resolve the operation " +
			"there." + kept
	}
}

// show writes what is stored.
func (r *resolution) show(a *app) {
	t := newTable(a.out)
	if r.resp != nil {
		t.row("  status", statusOf(r.resp.Status))
		t.rows("  header", headerOf(r.resp))
	}
	t.row("  operator", visible.Text(r.by.Operator))
	t.row("  reason", visible.Text(r.by.Reason))
	t.flush()
	if r.resp != nil && len(r.resp.Body) > 0 {
		fmt.Fprintf(a.out, "\nThe body has %s:\n\n%s", bytesOf(int64(len(r.resp.Body))),
			visibleLines(string(r.resp.Body), "  | "))
	}
	fmt.Fprintln(a.out)
}

// json is the resolution in a document.
func (r *resolution) json() *jsonResolution {
	j := &jsonResolution{Operator: r.by.Operator, Reason: r.by.Reason, RemainingMS: r.ttl.Milliseconds()}
	if r.resp != nil {
		j.Happened, j.Status, j.Omitted, j.BodySize = true, r.resp.Status, r.resp.Omitted, len(r.resp.Body)
		j.Header = r.resp.Header.Header()
	}
	return j
}

// resolve ends an operation that has not changed since it was shown.
func (a *app) resolve(s *opened, entry idempotency.Entry, r resolution) error {
	resolver, err := resolve.New(s, resolve.Options{
		TTL: r.ttl, MaxResponse: mostBody, Logger: a.logger(),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	if r.resp != nil {
		err = resolver.Happened(ctx, entry, *r.resp, r.by)
	} else {
		err = resolver.NotHappened(ctx, entry, r.by)
	}
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return fail(exitNothing, "there is no record any more")
	case errors.Is(err, idempotency.ErrInProgress):
		return fail(exitRefused, "not resolved: the operation is running by now")
	case errors.Is(err, idempotency.ErrEntryChanged):
		return fail(exitRefused, "not resolved: the record has changed since it was shown")
	case errors.Is(err, idempotency.ErrStoreFull), errors.Is(err, idempotency.ErrUserQuota):
		return fail(exitRefused, "not resolved: %w", err)
	}
	return err
}
