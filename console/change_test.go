package console_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
)

// Each way to end an operation does what it says, leaves operator and reason, and leads back to the story.
func TestChanges(t *testing.T) {
	t.Parallel()
	answer := []string{
		"status", "201", "header", "Content-Type: application/json\r\nLocation: /payments/17",
		"body", "{\r\n\"receipt\": \"R-17\"}\r\n",
	}
	for button, want := range map[string]struct {
		fields []string
		done   string
		state  idempotency.State
		status int
		resp   *idempotency.Response
	}{
		"answer": {
			answer, "Resolved: it has happened, and retries get the answer.", idempotency.StateCompleted, 201,
			&idempotency.Response{
				Status: 201, Header: "Content-Type: application/json\nLocation: /payments/17\n",
				Body: []byte("{\n\"receipt\": \"R-17\"}\n"),
			},
		},
		"tombstone": {[]string{"status", "202"}, "Resolved: it has happened, and retries are refused with 409 not-replayable.",
			idempotency.StateCompleted, 202, &idempotency.Response{Status: 202, Omitted: true}},
		"not-happened": {nil, "Resolved: it has not happened, and the next request runs it.", idempotency.StateReleased, 0, nil},
		"forget":       {nil, "", "", 0, nil},
	} {
		t.Run(button, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			owner := abandon(t, store, order, "reserve")
			d := newDesk(t, store)
			d.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			form := d.form(d.get(addressOf(order)).page, button, append(want.fields, "reason", " it is in the list ")...)
			got := d.post("change", form)
			require.Equal(t, http.StatusSeeOther, got.status, got.text())
			require.Equal(t, addressOf(order)+"&done=resolved", got.header.Get("Location"))
			after := d.get(got.header.Get("Location"))
			require.Equal(t, want.done, after.done())
			require.Equal(t, http.StatusConflict, d.post("change", form).status, "once")

			operation := order.OperationID().String()
			if button == "forget" {
				require.Equal(t, http.StatusNotFound, after.status)
				require.Contains(t, d.logged(), `msg="idempotency: forgotten" operation=`+operation+
					` attempt=1 state=abandoned operator=bob reason="it is in the list"`)
				require.Contains(t, after.text(), "No record")
				require.Empty(t, d.events)
				return
			}
			require.Regexp(t, `Resolved it has (not )?happened, attempt 1, .* By bob Reason it is in the list`, after.text())
			entry := inspect(t, store, order)
			require.Equal(t, want.state, entry.State)
			require.Equal(t, want.resp, entry.Response)
			require.Empty(t, entry.Note)
			require.Equal(t, "bob", entry.Resolved.Operator)
			require.Equal(t, "it is in the list", entry.Resolved.Reason)
			require.Equal(t, button != "not-happened", entry.Resolved.Happened)
			require.ErrorIs(t, owner.Complete(t.Context(), receipt, time.Hour), idempotency.ErrClaimLost)
			outcome := idempotency.OutcomeHappened
			if button == "not-happened" {
				outcome = idempotency.OutcomeNotHappened
			}
			require.Contains(t, d.logged(), `msg="idempotency: `+string(outcome)+`" operation=`+operation)
			require.Len(t, d.events, 1)
			require.Equal(t, outcome, d.events[0].Outcome)
			require.Equal(t, want.status, d.events[0].Status)
		})
	}
}

// Records of other states can be forgotten, but for one that is running.
func TestForgetInOtherStates(t *testing.T) {
	t.Parallel()
	store := newStore()
	complete(t, store, numbered(0), receipt)
	claim := begin(t, store, numbered(1), request.Lease)
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: request.TTL}))
	d := newDesk(t, store)
	for i := range 2 {
		form := d.form(d.get(addressOf(numbered(i))).page, "forget", "reason", "because")
		require.Contains(t, d.post("change", form).text(), "No record")
		_, err := store.Inspect(t.Context(), numbered(i))
		require.ErrorIs(t, err, idempotency.ErrNoRecord)
	}
}

// What runs or is completed is never resolved, whatever a form says.
func TestOtherStatesAreNotResolved(t *testing.T) {
	t.Parallel()
	store := newStore()
	complete(t, store, numbered(0), receipt)
	require.NoError(t, begin(t, store, numbered(1), request.Lease).Release(t.Context(), idempotency.Release{TTL: request.TTL}))
	d := newDesk(t, store)
	for i := range 2 {
		before := inspect(t, store, numbered(i))
		for _, button := range []string{"answer", "tombstone", "not-happened"} {
			form := d.form(d.get(addressOf(numbered(i))).page, "forget", "reason", "because")
			form.Set("do", button)
			form.Set("status", "200")
			require.Equal(t, http.StatusConflict, d.post("change", form).status)
		}
		require.Equal(t, before.Response, inspect(t, store, numbered(i)).Response)
	}
	require.Empty(t, d.events)
}

// A form is good for the record that its page has shown, and for no other.
func TestRecordHasChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, store *idempotency.MemoryStore, owner idempotency.Claim){
		"taken over": func(t *testing.T, store *idempotency.MemoryStore, _ idempotency.Claim) {
			begin(t, store, order, time.Hour)
		},
		"abandoned again": func(t *testing.T, store *idempotency.MemoryStore, _ idempotency.Claim) { abandon(t, store, order) },
		"its owner was only slow": func(t *testing.T, _ *idempotency.MemoryStore, owner idempotency.Claim) {
			require.NoError(t, owner.Extend(t.Context(), time.Hour))
		},
		"completed": func(t *testing.T, _ *idempotency.MemoryStore, owner idempotency.Claim) {
			require.NoError(t, owner.Complete(t.Context(), receipt, time.Hour))
		},
		"released": func(t *testing.T, _ *idempotency.MemoryStore, owner idempotency.Claim) {
			require.NoError(t, owner.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		},
		"forgotten": func(t *testing.T, store *idempotency.MemoryStore, _ idempotency.Claim) {
			require.NoError(t, store.Forget(t.Context(), inspect(t, store, order)))
		},
		"forgotten, and abandoned anew": func(t *testing.T, store *idempotency.MemoryStore, _ idempotency.Claim) {
			require.NoError(t, store.Forget(t.Context(), inspect(t, store, order)))
			abandon(t, store, order)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			owner := abandon(t, store, order)
			d := newDesk(t, store)
			page := d.get(addressOf(order)).page
			change(t, store, owner)
			before, _ := store.Inspect(t.Context(), order)
			for _, button := range []string{"answer", "tombstone", "not-happened", "forget"} {
				form := d.form(page, button, "reason", "because")
				form.Set("status", "201")
				got := d.post("change", form)
				require.Equal(t, http.StatusConflict, got.status)
				require.Regexp(t, "has changed since the page was made. Nothing was changed.|There is no record any more.", got.fault())
				require.Equal(t, []string{addressOf(order)}, got.links(`operation[^"]*`))
			}
			after, _ := store.Inspect(t.Context(), order)
			require.Equal(t, version(before), version(after))
			require.Empty(t, d.events)
		})
	}
}

func version(e idempotency.Entry) string { return fmt.Sprint(e.State, e.Attempt, e.Created, e.Note) }

// The store has the last word: what it refuses was not changed, and the page says why.
func TestStoreRefusesAChange(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	for err, status := range map[error]int{
		idempotency.ErrEntryChanged: http.StatusConflict, idempotency.ErrInProgress: http.StatusConflict,
		idempotency.ErrNoRecord: http.StatusConflict, idempotency.ErrRecordInvalid: http.StatusConflict,
		idempotency.ErrStoreFull: http.StatusConflict, idempotency.ErrUserQuota: http.StatusConflict,
		errors.ErrUnsupported: http.StatusNotImplemented, errDown: http.StatusServiceUnavailable,
	} {
		d := newDesk(t, &troubled{MemoryStore: store, change: fmt.Errorf("store: %w", err)})
		page := d.get(addressOf(order)).page
		for _, button := range []string{"not-happened", "forget"} {
			got := d.post("change", d.form(page, button, "reason", "because"))
			require.Equal(t, status, got.status, err)
			require.NotEmpty(t, got.fault())
			require.Empty(t, got.done())
		}
		require.Empty(t, d.events)
		require.NotContains(t, d.logged(), "forgotten")
	}
}

// Of operators who decide at the same time, one does. The others are told that the operation has changed.
func TestOperatorsAtTheSameTime(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	d := newDesk(t, store)
	page := d.get(addressOf(order)).page
	statuses := make([]int, 12)
	buttons := []string{"answer", "tombstone", "not-happened", "forget"}
	d.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	var all sync.WaitGroup
	for i := range statuses {
		form := d.form(page, buttons[i%len(buttons)], "reason", fmt.Sprint("operator ", i))
		form.Set("status", "201")
		r := d.request("change", form)
		all.Go(func() {
			resp, err := d.client.Do(r)
			if err == nil {
				statuses[i] = resp.StatusCode
				_ = resp.Body.Close()
			}
		})
	}
	all.Wait()
	count := map[int]int{}
	for _, status := range statuses {
		count[status]++
	}
	require.Equal(t, map[int]int{http.StatusSeeOther: 1, http.StatusConflict: 11}, count)
}

// A form with a fault changes nothing. It comes back as it was filled in.
func TestFaultyForms(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	small := func(o *console.Options) { o.Resolve.MaxResponse = 1000 }
	header := func(text string) []string { return []string{"status", "201", "header", text, "reason", "because"} }
	for name, form := range map[string]struct {
		button string
		fields []string
		says   string
	}{
		"no reason":             {"not-happened", nil, "a reason is needed"},
		"no reason to forget":   {"forget", []string{"reason", " \t"}, "a reason is needed"},
		"long reason":           {"not-happened", []string{"reason", strings.Repeat("a", 1001)}, "of at most 1000 bytes"},
		"no status":             {"tombstone", []string{"reason", "because"}, "the status is a number from 200 to 599"},
		"small status":          {"tombstone", []string{"reason", "because", "status", "199"}, "the status is a number"},
		"large status":          {"answer", []string{"reason", "because", "status", "600"}, "the status is a number"},
		"no header":             {"answer", header("Content-Type"), `"Content-Type" is no line of a header`},
		"space in a name":       {"answer", header("Content Type: text/plain"), "is no line of a header"},
		"space behind a name":   {"answer", header("Content-Type : text/plain"), "is no line of a header"},
		"no name":               {"answer", header(": text/plain"), "is no line of a header"},
		"lone CR":               {"answer", header("X-A: 1\rSet-Cookie: a=b"), `"X-A: 1\rSet-Cookie: a=b" is no line`},
		"NUL":                   {"answer", header("X-A: \x00"), "is no line of a header"},
		"not ASCII":             {"answer", header("X-A: é"), "is no line of a header"},
		"of the connection":     {"answer", header("Transfer-Encoding: chunked"), "this answer cannot be repeated"},
		"mark of a replay":      {"answer", header("Idempotent-Replayed: true"), "this answer cannot be repeated"},
		"another length":        {"answer", header("Content-Length: 7"), "this answer cannot be repeated"},
		"large header":          {"answer", header("X-A: " + strings.Repeat("a", 65<<10)), "this answer cannot be repeated"},
		"body without its type": {"answer", append(header("X-A: 1"), "body", "<b>"), "a body needs a Content-Type"},
		"large body":            {"answer", append(header("X-A: 1"), "body", strings.Repeat("a", 1001)), "more than 1000"},
		"body of no content": {
			"answer", []string{"status", "204", "header", "X-A: 1", "body", "a", "reason", "because"}, "has no body",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, store, small)
			got := d.post("change", d.form(d.get(addressOf(order)).page, form.button, form.fields...))
			require.Equal(t, http.StatusUnprocessableEntity, got.status)
			require.Contains(t, got.fault(), "Nothing was changed: ")
			require.Contains(t, got.fault(), form.says)
			require.Contains(t, got.page, "<title>Not changed: ")
			require.Equal(t, 1, strings.Count(got.page, " open>"))
			again := got.page[strings.Index(got.page, " open>"):]
			again = again[:strings.Index(again, "</details>")]
			for i := 0; i < len(form.fields); i += 2 {
				typed := strings.TrimSpace(escape(form.fields[i+1]))
				require.Contains(t, strings.ReplaceAll(again, "&#34;", `"`), typed, "what was typed in is kept")
			}
		})
	}
	d := newDesk(t, store)
	form := d.form(d.get(addressOf(order)).page, "forget", "reason", "because")
	for _, button := range []string{"", "explode"} {
		form.Set("do", button)
		require.Contains(t, d.post("change", form).fault(), "the form does not say what to do")
	}
	require.Equal(t, idempotency.StateAbandoned, inspect(t, store, order).State)
}

func escape(text string) string {
	return strings.NewReplacer("<", "&lt;", ">", "&gt;", "\x00", "\ufffd", "+", "&#43;").Replace(text)
}

// Forms that the console has not made change nothing.
func TestForgedForms(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	d := newDesk(t, store)
	good := func() url.Values { return d.form(d.get(addressOf(order)).page, "forget", "reason", "because") }
	for name, forge := range map[string]func(url.Values, *http.Request) int{
		"no version": func(f url.Values, _ *http.Request) int { f.Del("seen"); return 409 },
		"another attempt": func(f url.Values, _ *http.Request) int {
			f.Set("seen", strings.Replace(f.Get("seen"), " 1 ", " 2 ", 1))
			return 409
		},
		"two versions":   func(f url.Values, _ *http.Request) int { f["seen"] = []string{"x", f.Get("seen")}; return 409 },
		"another ID":     func(f url.Values, _ *http.Request) int { f.Set("operation", uuid.NewString()); return 409 },
		"malformed ID":   func(f url.Values, _ *http.Request) int { f.Set("operation", "x"); return 400 },
		"in the address": func(f url.Values, r *http.Request) int { r.URL.RawQuery = f.Encode(); clear(f); return 400 },
		"as JSON":        func(_ url.Values, r *http.Request) int { r.Header.Set("Content-Type", "application/json"); return 400 },
		"as plain text":  func(_ url.Values, r *http.Request) int { r.Header.Set("Content-Type", "text/plain"); return 400 },
		"malformed":      func(_ url.Values, r *http.Request) int { r.Header.Set("Content-Type", "a/b;;"); return 400 },
		"oversized":      func(f url.Values, _ *http.Request) int { f.Set("body", strings.Repeat("a", 4<<20)); return 413 },
	} {
		t.Run(name, func(t *testing.T) {
			form, r := good(), d.request("change", nil)
			want := forge(form, r)
			sent := d.request("change", form)
			sent.URL.RawQuery = r.URL.RawQuery
			sent.Header.Set("Content-Type", r.Header.Get("Content-Type"))
			require.Equal(t, want, d.do(sent).status)
			require.Equal(t, idempotency.StateAbandoned, inspect(t, store, order).State)
		})
	}
}

// Nobody can make the page say that an operation was resolved if the record does not say so.
func TestForgedConfirmation(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	complete(t, store, numbered(0), receipt)
	require.NoError(t, begin(t, store, numbered(1), request.Lease).Release(t.Context(), idempotency.Release{TTL: request.TTL}))
	d := newDesk(t, store)
	for _, key := range []idempotency.Key{order, numbered(0), numbered(1), numbered(2)} {
		for _, done := range []string{"resolved", "answer", "tombstone", "not-happened", "forget", "<b>"} {
			require.Empty(t, d.get(addressOf(key)+"&done="+url.QueryEscape(done)).done())
		}
	}
}

// A change is not broken off because the browser leaves: then nobody would know whether it was made.
func TestBrowserLeavesDuringAChange(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	ctx, leave := context.WithCancel(t.Context())
	served := make(chan context.Context, 1)
	var d *desk
	trouble := &troubled{MemoryStore: store}
	d = newDesk(t, trouble, func(o *console.Options) {
		o.Operator = func(r *http.Request) (string, error) {
			if r.Method == http.MethodPost {
				served <- r.Context()
			}
			return "bob", nil
		}
	})
	trouble.before = func() {
		leave()
		<-(<-served).Done() // the server has noticed
	}
	r := d.request("change", d.form(d.get(addressOf(order)).page, "not-happened", "reason", "because"))
	_, err := d.client.Do(r.WithContext(ctx)) //nolint:bodyclose // there is no answer
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return inspect(t, store, order).State == idempotency.StateReleased },
		time.Minute, time.Millisecond)
}

// shop is a service that refuses abandoned operations. Its handler dies at the first attempt.
func shop(t *testing.T, store idempotency.Store) (pay func() *http.Response, runs *atomic.Int32) {
	t.Helper()
	opts := idempotency.Options{Abandoned: idempotency.Refuse, Lease: time.Second, Logger: slog.New(slog.DiscardHandler)}
	guard, err := idempotency.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	runs = new(atomic.Int32)
	server := httptest.NewServer(guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) == 1 {
			idempotency.Decide(r.Context(), idempotency.Unknown)
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})))
	t.Cleanup(server.Close)
	return func() *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments", strings.NewReader("42"))
		require.NoError(t, err)
		r.Header.Set("Idempotency-Key", "order-1")
		resp, err := server.Client().Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		resp.Body = io.NopCloser(bytes.NewReader(body))
		return resp
	}, runs
}

// What an operator has decided is what retries get, by the middleware and over the wire.
func TestRetriesGetWhatWasDecided(t *testing.T) {
	t.Parallel()
	for button, want := range map[string]struct {
		status, runs int
		body         string
	}{
		"answer": {201, 1, "{\n\"receipt\": \"R-17\"}"}, "tombstone": {409, 1, "not-replayable"},
		"not-happened": {202, 2, ""}, "forget": {202, 2, ""},
	} {
		t.Run(button, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			pay, runs := shop(t, store)
			require.Equal(t, http.StatusBadGateway, pay().StatusCode)
			require.Eventually(t, func() bool { return pay().Header.Get("Retry-After") == "" }, // the lease has lapsed
				time.Minute, 50*time.Millisecond)
			d := newDesk(t, store)
			links := d.get("").links(`operation[^"]*`)
			require.Len(t, links, 1)
			form := d.form(d.get(links[0]).page, button, "reason", "because")
			form.Set("status", "201")
			form.Set("header", "content-type: application/json\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2; Path=/\r\n")
			form.Set("body", "{\r\n\"receipt\": \"R-17\"}")
			changed := d.post("change", form)
			require.True(t, changed.done() != "" || strings.Contains(changed.text(), "No record"), changed.text())
			for range 2 {
				got := pay()
				require.Equal(t, want.status, got.StatusCode)
				body, err := io.ReadAll(got.Body)
				require.NoError(t, err)
				require.Contains(t, string(body), want.body)
				if button == "answer" {
					require.Equal(t, "application/json", got.Header.Get("Content-Type"))
					require.Equal(t, []string{"a=1", "b=2; Path=/"}, got.Header.Values("Set-Cookie"))
					require.Equal(t, want.body, string(body))
				}
			}
			require.EqualValues(t, want.runs, runs.Load())
		})
	}
}
