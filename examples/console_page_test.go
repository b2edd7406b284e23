package examples_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/resolve"
)

// narrow is the smallest phone. It is as narrow as a desktop at 400 %.
var narrow = chromedp.EmulateViewport(320, 640, chromedp.EmulateMobile, chromedp.EmulateTouch)

// An operator does everything that the console offers, in each of these ways, and without JavaScript.
func TestConsolePage(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name    string
		picture string
		emulate chromedp.Action[chromedp.Void]
		press   func(o *operator, selector string)
	}{
		{"mouse", "console.png", desktop, (*operator).click},
		{"keyboard in the dark", "dark.png", chromedp.Steps(desktop, prefers("color-scheme", "dark")), (*operator).enter},
		{"phone", "narrow.png", narrow, (*operator).tap},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			for i := range 60 {
				abandon(t, store, paymentKey(i))
			}
			base := serveConsole(t, store)
			o := &operator{open(t, base, way.emulate, withoutJavaScript), store, way.press}
			o.visit(base + "/admin/idempotency/")
			o.play(way.picture)
			require.Empty(t, o.faults())
		})
	}
}

// play ends operations in every way.
func (o *operator) play(picture string) {
	require.Equal(o.t, "Abandoned operations · Idempotency console", o.title())
	require.Equal(o.t, "abandoned 60", o.text("[aria-current=page]"))
	o.requireAccessible()
	o.follow(".next", http.StatusOK)
	require.EqualValues(o.t, 10, ask[int](o.visitor, `document.querySelectorAll('tbody tr').length`))
	o.follow("header a", http.StatusOK)

	o.follow("tbody a", http.StatusOK)
	require.Contains(o.t, o.text("main"), "Nobody knows what it has done.")
	o.fill("#name", "charge")
	o.follow("form[action=operation] button", http.StatusOK)
	key := idempotency.Operation{ID: paymentKey(0).OperationID()}.DownstreamKey("charge")
	require.Contains(o.t, o.text("#ask ~ [role=status]"), key)

	o.press(o, "details:nth-of-type(1) summary")
	o.fill("#answer-status", "201")
	o.fill("#answer-body", `{"receipt": "R-17"}`)
	o.requireAccessible()
	o.picture(picture)
	o.press(o, "button[value=answer]") // without a reason
	require.Equal(o.t, "answer-reason", o.focus(), "the browser asks for the reason, and sends nothing")
	o.fill("#answer-reason", "ch_17 is in the provider's list")
	o.follow("button[value=answer]", http.StatusOK)
	require.Equal(o.t, "Resolved: it has happened, and retries get the answer.", o.text(".done"))
	require.Contains(o.t, o.text("main"), "alice")
	require.Contains(o.t, o.text("main"), "ch_17 is in the provider's list")
	entry := o.entry(0)
	require.Equal(o.t, `201 Content-Type: application/json {"receipt": "R-17"}`,
		fmt.Sprint(entry.Status, " ", strings.TrimSpace(string(entry.Response.Header)), " ", string(entry.Response.Body)))
	o.requireAccessible()

	o.find("order-1")
	o.press(o, "details:nth-of-type(2) summary")
	o.fill("#tombstone-status", "201")
	o.fill("#tombstone-reason", "ch_18, its receipt is lost")
	o.follow("button[value=tombstone]", http.StatusOK)
	require.Contains(o.t, o.text(".done"), "409 not-replayable")
	require.True(o.t, o.entry(1).Response.Omitted)

	o.find("order-2")
	o.press(o, "details:nth-of-type(3) summary")
	o.fill("#not-reason", "not in the list")
	o.follow("button[value=not-happened]", http.StatusOK)
	require.Contains(o.t, o.text(".done"), "it has not happened")
	require.Equal(o.t, idempotency.StateReleased, o.entry(2).State)

	o.press(o, "details summary")
	o.fill("#forget-reason", "a test")
	o.follow("button[value=forget]", http.StatusNotFound)
	require.Contains(o.t, o.text("main"), "was forgotten")
	o.requireAccessible()

	o.visit(o.home())
	o.fill("#operation", paymentKey(3).OperationID().String())
	o.follow("form:has(#operation) button", http.StatusOK)
	require.Contains(o.t, o.text("h1"), paymentKey(3).OperationID().String())
	abandon(o.t, o.store, paymentKey(3)) // by another attempt, meanwhile
	o.press(o, "details:nth-of-type(3) summary")
	o.fill("#not-reason", "not in the list")
	o.follow("button[value=not-happened]", http.StatusConflict)
	require.Contains(o.t, o.text("[role=alert]"), "The operation has changed since the page was made. Nothing was changed.")
	require.Equal(o.t, idempotency.StateAbandoned, o.entry(3).State)
	o.requireAccessible()
	o.follow("main a", http.StatusOK)
	require.Contains(o.t, o.text("dl"), "2", "the attempt")

	o.press(o, "details:nth-of-type(1) summary")
	o.fill("#answer-status", "201")
	o.fill("#answer-header", "No header")
	o.fill("#answer-reason", "in the list")
	o.follow("button[value=answer]", http.StatusUnprocessableEntity)
	require.Contains(o.t, o.title(), "Not changed: ")
	require.Equal(o.t, "No header", ask[string](o.visitor, `document.querySelector('#answer-header').value`))
	o.requireAccessible()
}

// A form of the console counts over plain http, too, where browsers say less about where it comes from.
func TestConsoleWithoutTLS(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	abandon(t, store, paymentKey(0))
	_, port, err := net.SplitHostPort(strings.TrimPrefix(serveConsole(t, store), "http://"))
	require.NoError(t, err)
	base := "http://admin.example:" + port // which the browser does not take for this machine
	o := &operator{open(t, base+"/admin/idempotency/", desktop, withoutJavaScript), store, (*operator).click}
	o.follow("tbody a", http.StatusOK)
	o.click("details:nth-of-type(3) summary")
	o.fill("#not-reason", "not in the list")
	o.follow("button[value=not-happened]", http.StatusOK)
	require.Contains(t, o.text(".done"), "it has not happened")
}

// Another site makes the browser of an operator send a form, and shows the console in a frame. Both fail.
func TestConsoleIsAttacked(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	abandon(t, store, paymentKey(0))
	base := serveConsole(t, store)
	entry, err := store.Inspect(t.Context(), paymentKey(0))
	require.NoError(t, err)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><html lang="en"><link rel="icon" href="data:,">
			<iframe src="%[1]s/admin/idempotency/"></iframe>
			<form method="post" action="%[1]s/admin/idempotency/change">
			<input name="digest" value="%[2]x"><input name="reason" value="because">
			<input name="seen" value="%[3]s"><button name="do" value="forget">Win a prize</button></form>`,
			base, entry.Digest, fmt.Sprintf("%s %d %s", entry.State, entry.Attempt, entry.Created.UTC().Format(time.RFC3339Nano)))
	}))
	t.Cleanup(evil.Close)
	o := &operator{open(t, evil.URL, desktop), store, (*operator).click}
	require.Contains(t, strings.Join(o.faults(), "\n"), "frame-ancestors 'none'")
	o.follow("button", http.StatusForbidden)
	require.Contains(t, o.text("[role=alert]"), "The form was not sent by this console.")
	require.Equal(t, idempotency.StateAbandoned, o.entry(0).State)
}

// serveConsole serves the console of a store under a path, for alice.
func serveConsole(t *testing.T, store idempotency.Inspector) string {
	t.Helper()
	pages, err := console.New(store, console.Options{
		Operator: func(*http.Request) (string, error) { return "alice", nil },
		Show:     func(*http.Request) bool { return true },
		Resolve:  resolve.Options{Logger: slog.New(slog.DiscardHandler)},
	})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/admin/idempotency/", http.StripPrefix("/admin/idempotency", pages))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func paymentKey(i int) idempotency.Key {
	return idempotency.Key{User: "acct_4711", Endpoint: "POST /payments", ID: fmt.Sprintf("order-%d", i)}
}

// abandon makes an attempt that ends in the middle of a charge.
func abandon(t *testing.T, store *idempotency.MemoryStore, key idempotency.Key) {
	t.Helper()
	request := idempotency.ClaimRequest{Lease: time.Hour, TTL: 24 * time.Hour, TakeOver: true}
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	steps := claim.(idempotency.Checkpointer)
	for name, result := range map[string]string{"reserve": `{"stock":7}`, "charge?": "attempt1"} {
		_, err = steps.Checkpoint(t.Context(), name, []byte(result))
		require.NoError(t, err)
	}
	require.NoError(t, claim.Extend(t.Context(), 1))
	require.Eventually(t, func() bool {
		entry, err := store.Inspect(t.Context(), key)
		return err == nil && entry.State == idempotency.StateAbandoned
	}, time.Minute, time.Millisecond)
}

// withoutJavaScript keeps the page from running any. The test still can.
var withoutJavaScript = chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
	_, err := cdp.Call(ctx, tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	return err
})

// operator is a person with a window of the browser, who presses what is to be pressed in some way.
type operator struct {
	*visitor
	store *idempotency.MemoryStore
	press func(o *operator, selector string)
}

func (o *operator) click(selector string) {
	o.t.Helper()
	o.do(chromedp.Click(chromedp.CSS(selector)))
}

func (o *operator) tap(selector string) {
	o.t.Helper()
	o.do(chromedp.Tap(chromedp.CSS(selector)))
}

// enter goes to an element by the Tab key, sees where it is, and presses Enter.
func (o *operator) enter(selector string) {
	o.t.Helper()
	there := fmt.Sprintf(`document.activeElement === document.querySelector(%q)`, selector)
	for range 200 {
		if ask[bool](o.visitor, there) {
			break
		}
		o.do(chromedp.KeyEvent(kb.Tab))
	}
	require.True(o.t, ask[bool](o.visitor, there), "Tab does not lead to %s", selector)
	outline := ask[string](o.visitor, `getComputedStyle(document.activeElement).outlineStyle`)
	require.Equal(o.t, "solid", outline, "the focus is visible")
	o.do(chromedp.KeyEvent(kb.Enter))
}

// follow presses what leads to another page, and waits for that.
func (o *operator) follow(selector string, status int64) {
	o.t.Helper()
	resp, err := chromedp.RunResponse(o.ctx, chromedp.Func(func(context.Context, *chromedp.Target) error {
		o.press(o, selector)
		return nil
	}))
	require.NoError(o.t, err)
	require.Equal(o.t, status, resp.Status, o.text("main"))
}

func (o *operator) visit(url string) {
	o.t.Helper()
	o.do(chromedp.Navigate(url))
}

// fill types into a field, in the place of what is there.
func (o *operator) fill(selector, text string) {
	o.t.Helper()
	o.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`void (document.querySelector(%q).value = '')`, selector)),
		chromedp.SendKeys(chromedp.CSS(selector), text))
}

// find searches for an operation by its key.
func (o *operator) find(key string) {
	o.t.Helper()
	o.visit(o.home())
	o.fill("#user", "acct_4711")
	o.fill("#endpoint", "POST /payments")
	o.fill("#key", key)
	o.follow("form:has(#user) button", http.StatusOK)
	require.NotContains(o.t, ask[string](o.visitor, `location.href`), key)
}

func (o *operator) home() string {
	return ask[string](o.visitor, `new URL('./', location.href).href`)
}

func (o *operator) title() string { return ask[string](o.visitor, `document.title`) }

func (o *operator) focus() string { return ask[string](o.visitor, `document.activeElement.id`) }

func (o *operator) entry(i int) idempotency.Entry {
	o.t.Helper()
	entry, err := o.store.Inspect(o.t.Context(), paymentKey(i))
	require.NoError(o.t, err)
	return entry
}
