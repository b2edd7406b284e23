package examples_test

import (
	"bytes"
	"context"
	"flag"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/servertest"
)

// "go test -run TestCheckoutPage/mouse -pictures ../docs" writes docs/checkout.png.
var pictures = flag.String("pictures", "", "write pictures of the checkout's page to this directory")

var (
	desktop = chromedp.EmulateViewport(1100, 800)
	phone   = chromedp.EmulateViewport(360, 740, chromedp.EmulateScale(2), chromedp.EmulateMobile, chromedp.EmulateTouch)
)

// A person plays the whole story on the page, in each of these ways.
func TestCheckoutPage(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t)
	program := built(t, "checkout")
	ways := []struct {
		name    string
		picture string
		emulate chromedp.Action[chromedp.Void]
		press   func(v *visitor, button string)
	}{
		{"mouse", "checkout.png", desktop, (*visitor).click},
		{"keyboard", "keyboard.png", desktop, (*visitor).tabTo},
		{"phone", "phone.png", phone, (*visitor).tap},
		{"dark", "dark.png", chromedp.Steps(desktop, prefers("color-scheme", "dark")), (*visitor).click},
		{"dark phone", "dark-phone.png", chromedp.Steps(phone, prefers("color-scheme", "dark")), (*visitor).tap},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			checkout := startCheckout(t, program)
			v := visit(t, browser, checkout.url, way.emulate)
			playOnPage(v, func(button string) { way.press(v, button) }, way.picture)
			require.Empty(t, v.faults())
		})
	}
}

// playOnPage presses the buttons, and looks at what the page shows.
func playOnPage(v *visitor, press func(button string), name string) {
	v.requireAccessible()
	const unknown = "The customer was charged once, and does not know it. "
	const once = "The customer was charged once, and got "
	press("lose")
	v.require("without", side{"1", "42.00", unknown + "Trying again will charge again.", answers{"lost": 1}})
	v.require("with", side{"1", "42.00", unknown + "Trying again is safe.", answers{"lost": 1}})
	require.Equal(v.t, "Try again", v.text("#pay b"))
	press("pay")
	v.require("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"lost": 1, "new": 1}})
	v.require("with", side{"1", "42.00", once + "the receipt.", answers{"lost": 1, "replayed": 1}})
	press("ten")
	v.require("without", side{"12", "504.00", "The customer was charged 12 times for one order.", answers{"lost": 1, "new": 11}})
	v.require("with", side{"1", "42.00", once + "the same receipt 11 times.", answers{"lost": 1, "replayed": 11}})
	v.requireAccessible()
	v.picture(name)

	press("fresh")
	v.require("without", side{"0", "0.00", "Nothing was charged yet.", answers{}})
	require.Equal(v.t, "Pay 42.00", v.text("#pay b"))
	press("stop")
	require.Equal(v.t, "The server is running. It was killed once and started again.", v.text("#server"))
	v.require("with", side{"1", "42.00", unknown + "Trying again is safe.", answers{"lost": 1}})
	press("pay")
	v.require("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"lost": 1, "new": 1}})
	v.require("with", side{"1", "42.00", once + "the receipt.", answers{"lost": 1, "replayed": 1}})

	press("fresh")
	press("ten") // none of them has an answer to be replayed yet
	v.require("without", side{"10", "420.00", "The customer was charged 10 times for one order.", answers{"new": 10}})
	v.require("with", side{"1", "42.00", once + "the same receipt 10 times.", answers{"new": 1, "replayed": 9}})
}

// Those who want no motion get none.
func TestCheckoutPageWithoutMotion(t *testing.T) {
	t.Parallel()
	v := visit(t, startBrowser(t), startCheckout(t, built(t, "checkout")).url, prefers("reduced-motion", "reduce"))
	v.click("pay")
	const animation = `getComputedStyle(document.querySelector('.answers li')).animationName`
	require.Equal(t, "none", ask[string](v, animation))
	v.do(prefers("reduced-motion", "no-preference"))
	require.Equal(t, "arrive", ask[string](v, animation), "others get some")
}

// The page says when the server is down, and what was charged is seen meanwhile.
func TestCheckoutPageShowsTheDeath(t *testing.T) {
	t.Parallel()
	v := visit(t, startBrowser(t), startCheckout(t, built(t, "checkout")).url, desktop)
	v.do(chromedp.Click(chromedp.CSS("#stop")))
	v.await(`document.querySelector('#server').textContent.startsWith('The server was killed.') &&
		document.querySelector('#without .charges').textContent === '1'`)
	v.await(`document.querySelector('#server').textContent.startsWith('The server is running.')`)
}

// visitor is a tab of the browser.
type visitor struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	wrong []string // what the browser has complained of, apart from connections that broke
}

// startBrowser starts a Chromium, see [servertest.Require].
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	servertest.Require(t, err)
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(t.TempDir()), chromedp.Env("TMPDIR="+t.TempDir()))
	for _, name := range []string{
		"disable-gpu", "disable-quic", "disable-background-networking", "disable-component-update", "disable-sync",
		"hide-scrollbars",
	} {
		flags = append(flags, chromedp.Flag(name, true))
	}
	ctx, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), flags...)
	t.Cleanup(end) // waits for its end
	browser, closeBrowser := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(closeBrowser)
	require.NoError(t, chromedp.Do(browser))
	return browser
}

// visit opens the page in a tab of its own.
func visit(t *testing.T, browser context.Context, url string, emulate chromedp.Action[chromedp.Void]) *visitor {
	t.Helper()
	tab, closeTab := chromedp.NewContext(browser)
	t.Cleanup(closeTab)
	ctx, cancel := context.WithTimeout(tab, 2*time.Minute)
	t.Cleanup(cancel)
	v := &visitor{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, func(event any) { v.hear(url, event) }))
	v.do(emulate, chromedp.Navigate(url))
	v.await(`document.body.dataset.done === '0'`)
	return v
}

func prefers(what, value string) chromedp.Action[chromedp.Void] {
	feature := &emulation.MediaFeature{Name: "prefers-" + what, Value: value}
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{feature}})
		return err
	})
}

// hear takes note of errors in the program of the page, of what its policy forbids, and of requests to anybody else.
func (v *visitor) hear(url string, event any) {
	complaint := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		complaint = e.ExceptionDetails.Text
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork {
			complaint = e.Entry.Text
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, url+"/") {
			complaint = "a request to " + e.Request.URL
		}
	}
	if complaint != "" {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.wrong = append(v.wrong, complaint)
	}
}

func (v *visitor) faults() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.wrong
}

func (v *visitor) do(actions ...chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	require.NoError(v.t, chromedp.Do(v.ctx, actions...))
}

// ask evaluates an expression in the page.
func ask[T any](v *visitor, expression string) T {
	v.t.Helper()
	value, err := chromedp.Run(v.ctx, chromedp.Evaluate[T](expression))
	require.NoError(v.t, err)
	return value
}

func (v *visitor) click(button string) {
	v.t.Helper()
	v.act(chromedp.Click(chromedp.CSS("#" + button)))
}

func (v *visitor) tap(button string) {
	v.t.Helper()
	v.act(chromedp.Tap(chromedp.CSS("#" + button)))
}

// tabTo goes to a button by the Tab key, sees where it is, and presses Enter. The focus is still there afterwards.
func (v *visitor) tabTo(button string) {
	v.t.Helper()
	const focus = `document.activeElement.id`
	for range 20 {
		if ask[string](v, focus) == button {
			break
		}
		v.do(chromedp.KeyEvent(kb.Tab))
	}
	require.Equal(v.t, button, ask[string](v, focus))
	outline := ask[string](v, `getComputedStyle(document.activeElement).outlineStyle`)
	require.Equal(v.t, "solid", outline, "the focus is visible")
	v.act(chromedp.KeyEvent(kb.Enter))
	require.Equal(v.t, button, ask[string](v, focus), "the focus stays")
}

// await waits until a condition holds in the page.
func (v *visitor) await(condition string) {
	v.t.Helper()
	v.do(chromedp.Poll[chromedp.Void](condition, chromedp.WithPollingInterval(20*time.Millisecond)))
}

// act does something, and waits until all answers to it are there.
func (v *visitor) act(action chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	done := ask[string](v, `document.body.dataset.done`)
	v.do(action)
	v.await(`document.body.dataset.done !== '` + done + `'`)
}

func (v *visitor) text(selector string) string {
	v.t.Helper()
	return ask[string](v, `document.querySelector('`+selector+`').textContent`)
}

// side is what the page shows of a side.
type side struct {
	Charges, Total, Verdict string
	Answers                 answers
}

// answers are how many answers of each kind there are.
type answers map[string]int

func (v *visitor) require(name string, want side) {
	v.t.Helper()
	const read = `(name => {
		const root = document.getElementById(name), text = (s) => root.querySelector(s).textContent
		const answers = {}
		for (const li of root.querySelectorAll('.answers li')) answers[li.className] = (answers[li.className] ?? 0) + 1
		return {Charges: text('.charges'), Total: text('.total'), Verdict: text('.verdict'), Answers: answers}
	})`
	require.Equal(v.t, want, ask[side](v, read+`("`+name+`")`), name)
}

// requireAccessible looks for what keeps people from using the page: text with little contrast, small buttons, buttons
// without a name, what changes and is not read out, and a page that is wider than the screen.
func (v *visitor) requireAccessible() {
	v.t.Helper()
	script, err := os.ReadFile(filepath.Join("testdata", "accessible.js"))
	require.NoError(v.t, err)
	require.Empty(v.t, ask[[]string](v, string(script)))
}

// picture writes what the page looks like, if it is asked for.
func (v *visitor) picture(name string) {
	v.t.Helper()
	if *pictures == "" {
		return
	}
	v.await(`scrollTo(0, 0), document.getAnimations().length === 0`)
	shot, err := chromedp.Run(v.ctx, chromedp.CaptureScreenshot())
	require.NoError(v.t, err)
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(v.t, err)
	file, err := os.Create(filepath.Join(*pictures, name))
	require.NoError(v.t, err)
	defer file.Close()
	small := png.Encoder{CompressionLevel: png.BestCompression}
	require.NoError(v.t, small.Encode(file, picture))
}
