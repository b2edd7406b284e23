package console_test

import (
	"context"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
)

// hostile is what people and services have stored, and what an operator types in.
type hostile struct {
	user, endpoint, key, note, header, body, step, name string
}

func all(text string) hostile { return hostile{text, text, text, text, text, text, text, text} }

// Whatever is stored, the pages have the same marks as for harmless text, and no character that is not seen.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	harmless := pagesOf(t, all("a"))
	for name, text := range map[string]string{
		"script":     `</code></pre></textarea></title><script>alert(1)</script>`,
		"attribute":  `" autofocus onfocus="alert(1)" x='`,
		"unquoted":   "x onfocus=alert(1)",
		"address":    "javascript:alert(1)//&lt;&#60;",
		"comment":    "<!--[if IE]><!--",
		"template":   "{{.Operator}} {{template \"find\"}}",
		"directions": "\u202egnp.exe\u2066\u2069\u200b\u00ad",
		"controls":   "\x00\x07\x1b[2J\x7f\u0085\u2028\r\n\t",
		"not UTF-8":  "\xff\xfe<\xc0\xbc",
		"entities":   "&quot;&gt;&lt;/a&gt;",
		"long":       strings.Repeat("<i>", 20_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireHarmless(t, harmless, all(text))
		})
	}
}

func FuzzHostileRecords(f *testing.F) {
	for _, text := range []string{"a", "<script>", `"'`, "&lt;", "\u202e\x00\xff\r\n", "{{.}}"} {
		f.Add(text, text, text, text, text, text, text, text)
	}
	harmless := pagesOf(f, all("a"))
	f.Fuzz(func(t *testing.T, user, endpoint, key, note, header, body, step, name string) {
		requireHarmless(t, harmless, hostile{user, endpoint, key, note, header, body, step, name})
	})
}

// requireHarmless holds the pages to those with harmless text.
func requireHarmless(t *testing.T, harmless []string, h hostile) {
	t.Helper()
	for i, page := range pagesOf(t, h) {
		require.Equal(t, skeleton(harmless[i]), skeleton(page), "page %d", i)
		for at, c := range page {
			if c != '\n' && c != '\t' && (!unicode.IsPrint(c) || c == unicode.ReplacementChar) && !typed(page, at) {
				require.Fail(t, "not visible", "%q", page[max(0, at-100):min(at+10, len(page))])
			}
		}
	}
}

// typed reports whether a place is within a field of a form, which has what its operator has typed in, as it is.
func typed(page string, at int) bool {
	before := page[:at]
	return strings.Count(before, "<textarea") > strings.Count(before, "</textarea>") ||
		strings.LastIndex(before, `value="`) > strings.LastIndex(before, `>`)
}

// skeleton returns the marks of a page, without the values of attributes that differ from page to page.
func skeleton(page string) string {
	var b strings.Builder
	for page != "" {
		text, rest, _ := strings.Cut(page, "<")
		mark, after, _ := strings.Cut(rest, ">")
		b.WriteString(strings.Repeat(">", strings.Count(text, ">")) + "<" + values.ReplaceAllString(mark, "$1") + ">\n")
		page = after
	}
	return b.String()
}

var values = regexp.MustCompile(`(value|maxlength|href|datetime)="[^"<>]*"`)

// inert is a store that keeps anything, as the store of somebody who can write to it does.
type inert struct {
	*idempotency.MemoryStore
	entries []idempotency.Entry
}

func (s *inert) InspectOperation(_ context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	for _, e := range s.entries {
		if e.Operation == operation {
			return e, nil
		}
	}
	return idempotency.Entry{}, idempotency.ErrNoRecord
}

func (s *inert) List(context.Context, idempotency.ListRequest) (idempotency.Listing, error) {
	return idempotency.Listing{Entries: s.entries, Totals: map[idempotency.State]idempotency.Total{}}, nil
}

// pagesOf returns all pages on which such text may stand.
func pagesOf(t testing.TB, h hostile) []string {
	t.Helper()
	began := time.Now().Add(-time.Hour)
	text := func(s string) string { return "a" + s } // there is always some
	key := idempotency.Key{User: text(h.user), Endpoint: text(h.endpoint), ID: text(h.key)}
	abandoned := idempotency.Entry{
		Key: key, Operation: key.OperationID(), State: idempotency.StateAbandoned, Attempt: 1, Created: began, Remaining: time.Hour,
		Note: text(h.note), Steps: []idempotency.StepSize{{Name: text(h.step) + "-", Bytes: 2}},
	}
	completed := idempotency.Entry{
		Key: key, Operation: uuid.UUID{2}, State: idempotency.StateCompleted, Attempt: 1, Created: began, Remaining: time.Hour,
		Note: text(h.note), Completed: began, Status: 200, Response: &idempotency.Response{
			Status: 200, Body: []byte(text(h.body)),
			Header: idempotency.Fields(text(h.header)), Trailer: idempotency.Fields(text(h.header)),
		},
	}
	reused := idempotency.Event{Outcome: idempotency.OutcomeKeyReused, Key: key}
	d := newDirectDesk(t, &inert{newStore(), []idempotency.Entry{abandoned, completed}}, func(o *console.Options) {
		o.Differences = func(idempotency.Event) []string { return []string{text(h.name), text(h.step)} }
	})
	d.console.Observe(t.Context(), reused)
	address := addressOf(key)
	story := d.get(address + "&name=" + url.QueryEscape(text(h.name)))
	form := d.form(story.page, "answer", "status", text(h.name), "header", text(h.name), "body", text(h.name), "reason", "a")
	return []string{
		d.get("").page, d.get("?state=all&user=" + url.QueryEscape(key.User)).page, story.page,
		d.get("operation?id=" + uuid.UUID{2}.String()).page, d.post("change", form).page,
		d.post("search", url.Values{"key": {key.ID}, "endpoint": {key.Endpoint}}).page,
		d.post("search", url.Values{"operation": {text(h.name)}}).page,
	}
}
