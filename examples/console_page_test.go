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

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/resolve"
)

// narrow is the smallest phone. A desktop at a zoom of 400 % is as narrow.
var narrow = chromedp.EmulateViewport(320, 640, chromedp.EmulateMobile, chromedp.EmulateTouch)

// An operator does everything that the console offers, with each of these input devices, and without JavaScript.
func TestConsolePage(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name    string
		picture string
		emulate chromedp.Action[chromedp.Void]
		press   func(tab *browserTab, selector string)
	}{
		{"mouse", "console.png", desktop, (*browserTab).clickElement},
		{"keyboard in the dark", "console-dark.png", chromedp.Steps(desktop, dark), (*browserTab).reachElement},
		{"phone", "console-phone.png", narrow, (*browserTab).tapElement},
		{"phone in the dark", "console-phone-dark.png", chromedp.Steps(narrow, dark), (*browserTab).tapElement},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			for i := range 60 {
				abandonAttempt(t, store, paymentKey(i))
			}
			base := serveConsole(t, store)
			o := &operator{openWithoutScripts(t, base, way.emulate), store, way.press}
			o.loadPage(base + "/admin/idempotency/")
			o.resolveOperations(way.picture)
			require.Empty(t, o.listComplaints())
		})
	}
}

// resolveOperations resolves operations in every way that the console offers. The screenshot gets the name picture.
func (o *operator) resolveOperations(picture string) {
	require.Equal(o.t, "Abandoned operations · Idempotency console", o.pageTitle())
	require.Equal(o.t, "abandoned 60", o.readText("[aria-current=page]"))
	o.requireAccessible()
	o.pressAndLoad(".next", http.StatusOK)
	require.EqualValues(o.t, 10, evaluate[int](o.browserTab, `document.querySelectorAll('tbody tr').length`))
	o.pressAndLoad("header a", http.StatusOK)
	o.pressAndLoad(".filters li:nth-child(2) a", http.StatusOK) // released
	require.Equal(o.t, "No operation is released now.", o.readText(".none b"))
	o.requireAccessible()
	o.press(".none a") // leads to the search
	o.awaitCondition(`document.activeElement.id === 'operation'`)
	o.pressAndLoad(".filters li:last-child a", http.StatusOK) // all
	require.Equal(o.t, "abandoned", o.readText("tbody .state"))
	o.requireAccessible()
	o.pressAndLoad("header a", http.StatusOK)

	o.pressAndLoad("tbody a", http.StatusOK)
	require.Contains(o.t, o.readText("main"), "Nobody knows what it has done.")
	o.fillField("#name", "charge")
	o.pressAndLoad("form[action=operation] button", http.StatusOK)
	key := idempotency.Operation{ID: paymentKey(0).OperationID()}.DownstreamKey("charge")
	require.Contains(o.t, o.readText("#ask ~ [role=status]"), key)

	requireApart(o.browserTab, ".title .state", "h1", "h2")
	o.press("details:nth-of-type(1) summary")
	o.fillField("#answer-status", "201")
	o.fillField("#answer-body", `{"receipt": "R-17"}`)
	o.requireAccessible()
	o.savePicture(picture)
	o.press("button[value=answer]") // without a reason
	require.Equal(o.t, "answer-reason", o.focusedID(), "the browser asks for the reason, and sends nothing")
	o.fillField("#answer-reason", "ch_17 is in the provider's list")
	o.pressAndLoad("button[value=answer]", http.StatusOK)
	require.Equal(o.t, "Resolved: it has happened, and retries get the answer.", o.readText(".done"))
	require.Contains(o.t, o.readText("main"), "alice")
	require.Contains(o.t, o.readText("main"), "ch_17 is in the provider's list")
	entry := o.inspectEntry(0)
	require.Equal(o.t, `201 Content-Type: application/json {"receipt": "R-17"}`,
		fmt.Sprint(entry.Status, " ", strings.TrimSpace(string(entry.Response.Header)), " ", string(entry.Response.Body)))
	o.requireAccessible()

	o.findOperation("order-1")
	o.press("details:nth-of-type(2) summary")
	o.fillField("#tombstone-status", "201")
	o.fillField("#tombstone-reason", "ch_18, its receipt is lost")
	o.pressAndLoad("button[value=tombstone]", http.StatusOK)
	require.Contains(o.t, o.readText(".done"), "409 not-replayable")
	require.True(o.t, o.inspectEntry(1).Response.Omitted)

	o.findOperation("order-2")
	o.press("details:nth-of-type(3) summary")
	o.fillField("#not-reason", "not in the list")
	o.pressAndLoad("button[value=not-happened]", http.StatusOK)
	require.Contains(o.t, o.readText(".done"), "it has not happened")
	require.Equal(o.t, idempotency.StateReleased, o.inspectEntry(2).State)

	o.press("details summary")
	o.fillField("#forget-reason", "a test")
	o.pressAndLoad("button[value=forget]", http.StatusNotFound)
	require.Contains(o.t, o.readText("main"), "was forgotten")
	o.requireAccessible()

	o.loadPage(o.homeURL())
	o.fillField("#operation", paymentKey(3).OperationID().String())
	o.pressAndLoad("form.find button", http.StatusOK)
	require.Contains(o.t, o.readText("h1"), paymentKey(3).OperationID().String())
	abandonAttempt(o.t, o.store, paymentKey(3)) // another attempt, since the page was made
	o.press("details:nth-of-type(3) summary")
	o.fillField("#not-reason", "not in the list")
	o.pressAndLoad("button[value=not-happened]", http.StatusConflict)
	require.Contains(o.t, o.readText("[role=alert]"), "The operation has changed since the page was made. Nothing was changed.")
	require.Equal(o.t, idempotency.StateAbandoned, o.inspectEntry(3).State)
	o.requireAccessible()
	o.pressAndLoad("main a", http.StatusOK)
	require.Contains(o.t, o.readText("dl"), "2", "the attempt")

	o.press("details:nth-of-type(1) summary")
	o.fillField("#answer-status", "201")
	o.fillField("#answer-header", "No header")
	o.fillField("#answer-reason", "in the list")
	o.pressAndLoad("button[value=answer]", http.StatusUnprocessableEntity)
	require.Contains(o.t, o.pageTitle(), "Not changed: ")
	require.Equal(o.t, "No header", evaluate[string](o.browserTab, `document.querySelector('#answer-header').value`))
	o.requireAccessible()
}

// The Tab key reaches everything that can be pressed or filled in, in the order of the page. The first stop skips the header.
func TestConsoleFocusOrder(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	abandonAttempt(t, store, paymentKey(0))
	base := serveConsole(t, store)
	o := &operator{openWithoutScripts(t, base+"/admin/idempotency/", desktop), store, (*browserTab).reachElement}
	const find = `var stops = [...document.querySelectorAll('a[href], button, input:not([type=hidden]), textarea, summary')]
		.filter((e) => e.checkVisibility()); stops.length`
	for _, leave := range []string{"tbody a", ""} {
		count := evaluate[int](o.browserTab, find)
		require.Greater(t, count, 5)
		for i := range count {
			o.do(chromedp.KeyEvent(kb.Tab))
			require.Equal(t, i, evaluate[int](o.browserTab, `stops.indexOf(document.activeElement)`))
		}
		if leave != "" {
			o.pressAndLoad(leave, http.StatusOK)
		}
	}

	o.loadPage(base + "/admin/idempotency/")
	o.do(chromedp.KeyEvent(kb.Tab))
	require.Zero(t, evaluate[int](o.browserTab, `document.querySelector('.skip').getBoundingClientRect().left`), "it is shown")
	o.do(pressEnter)
	o.awaitCondition(`location.hash === '#main'`)
	o.do(chromedp.KeyEvent(kb.Tab))
	require.Equal(t, "operation", o.focusedID(), "behind the header")
}

// The console accepts forms over plain HTTP, too, although browsers then send fewer headers about the origin of a form.
func TestConsoleWithoutTLS(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	abandonAttempt(t, store, paymentKey(0))
	_, port, err := net.SplitHostPort(strings.TrimPrefix(serveConsole(t, store), "http://"))
	require.NoError(t, err)
	base := "http://admin.example:" + port // a name that the browser does not recognize as the local machine
	o := &operator{openWithoutScripts(t, base+"/admin/idempotency/", desktop), store, (*browserTab).clickElement}
	o.pressAndLoad("tbody a", http.StatusOK)
	o.clickElement("details:nth-of-type(3) summary")
	o.fillField("#not-reason", "not in the list")
	o.pressAndLoad("button[value=not-happened]", http.StatusOK)
	require.Contains(t, o.readText(".done"), "it has not happened")
}

// Another site shows the console in a frame, and makes the browser of an operator send a form to the console. Both fail.
func TestConsoleIsAttacked(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	abandonAttempt(t, store, paymentKey(0))
	base := serveConsole(t, store)
	entry, err := store.Inspect(t.Context(), paymentKey(0))
	require.NoError(t, err)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><html lang="en"><link rel="icon" href="data:,">
			<iframe src="%[1]s/admin/idempotency/"></iframe>
			<form method="post" action="%[1]s/admin/idempotency/change">
			<input name="operation" value="%[2]s"><input name="reason" value="because">
			<input name="seen" value="%[3]s"><button name="do" value="forget">Win a prize</button></form>`,
			base, entry.Operation, fmt.Sprintf("%s %d %s", entry.State, entry.Attempt, entry.Created.UTC().Format(time.RFC3339Nano)))
	}))
	t.Cleanup(evil.Close)
	o := &operator{openTab(t, evil.URL, desktop), store, (*browserTab).clickElement}
	require.Contains(t, strings.Join(o.listComplaints(), "\n"), "frame-ancestors 'none'")
	o.pressAndLoad("button", http.StatusForbidden)
	require.Contains(t, o.readText("[role=alert]"), "The form was not sent by this console.")
	require.Equal(t, idempotency.StateAbandoned, o.inspectEntry(0).State)
}

// serveConsole serves the console of the store at /admin/idempotency/ for the operator alice, and returns the URL of the
// server.
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

// abandonAttempt makes an attempt for key that stops during a charge, and waits until the operation is abandoned.
func abandonAttempt(t *testing.T, store *idempotency.MemoryStore, key idempotency.Key) {
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

// operator is a user of the console, who presses elements with pressElement.
type operator struct {
	*browserTab
	store        *idempotency.MemoryStore
	pressElement func(tab *browserTab, selector string)
}

// press presses the element that selector matches.
func (o *operator) press(selector string) {
	o.t.Helper()
	o.pressElement(o.browserTab, selector)
}

// pressAndLoad presses an element that leads to another page, waits for that page, and requires the given status.
func (o *operator) pressAndLoad(selector string, status int64) {
	o.t.Helper()
	resp, err := chromedp.RunResponse(o.ctx, chromedp.Func(func(context.Context, *chromedp.Target) error {
		o.press(selector)
		return nil
	}))
	require.NoError(o.t, err)
	require.Equal(o.t, status, resp.Status, o.readText("main"))
}

func (o *operator) loadPage(url string) {
	o.t.Helper()
	o.do(chromedp.Navigate(url))
}

// fillField replaces the content of a field with text.
func (o *operator) fillField(selector, text string) {
	o.t.Helper()
	o.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`void (document.querySelector(%q).value = '')`, selector)),
		chromedp.SendKeys(chromedp.CSS(selector), text))
}

// requireApart fails if the element that selector matches touches one of others, as a badge that runs into a heading does.
func requireApart(tab *browserTab, selector string, others ...string) {
	tab.t.Helper()
	const touches = `((a, b) => a.left < b.right + 8 && b.left < a.right + 8 && a.top < b.bottom + 4 && b.top < a.bottom + 4)`
	for _, other := range others {
		const box = `document.querySelector(%q).getBoundingClientRect()`
		require.False(tab.t, evaluate[bool](tab, fmt.Sprintf(touches+"("+box+", "+box+")", selector, other)), other)
	}
}

// findOperation searches for an operation by key. The key must not appear in the URL.
func (o *operator) findOperation(key string) {
	o.t.Helper()
	o.loadPage(o.homeURL())
	o.press("form.find summary")
	o.fillField("#user", "acct_4711")
	o.fillField("#endpoint", "POST /payments")
	o.fillField("#key", key)
	o.pressAndLoad("form.find details button", http.StatusOK)
	require.NotContains(o.t, evaluate[string](o.browserTab, `location.href`), key)
}

// homeURL returns the URL of the list of operations.
func (o *operator) homeURL() string {
	return evaluate[string](o.browserTab, `new URL('./', location.href).href`)
}

func (o *operator) pageTitle() string { return evaluate[string](o.browserTab, `document.title`) }

// focusedID returns the ID of the focused element.
func (o *operator) focusedID() string {
	return evaluate[string](o.browserTab, `document.activeElement.id`)
}

// inspectEntry returns the entry of paymentKey(i) in the store.
func (o *operator) inspectEntry(i int) idempotency.Entry {
	o.t.Helper()
	entry, err := o.store.Inspect(o.t.Context(), paymentKey(i))
	require.NoError(o.t, err)
	return entry
}
