package examples_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// readOut is what changes on the page.
var readOut = []string{"#server[role=status]", "#with .verdict[aria-live=polite]", "#without .verdict[aria-live=polite]"}

// A person plays the whole story on the page, in each of these ways.
func TestCheckoutPage(t *testing.T) {
	t.Parallel()
	program := built(t, "checkout")
	ways := []struct {
		name    string
		picture string
		emulate chromedp.Action[chromedp.Void]
		press   func(v *visitor, button string)
	}{
		{"mouse", "checkout.png", desktop, (*visitor).click},
		{"keyboard in the dark", "checkout-dark.png", chromedp.Steps(desktop, prefers("color-scheme", "dark")), (*visitor).tabTo},
		{"phone", "phone.png", phone, (*visitor).tap},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			checkout := startCheckout(t, program)
			v := visit(t, checkout.url, way.emulate)
			playOnPage(v, func(button string) { way.press(v, button) }, way.picture)
			require.Empty(t, v.faults())
		})
	}
}

// playOnPage presses the buttons, and looks at what the page shows.
func playOnPage(v *visitor, press func(button string), name string) {
	v.requireAccessible(readOut...)
	const unknown = "The customer was charged once, and does not know it. "
	const once = "The customer was charged once, and got "
	press("lose")
	v.require("without", side{"1", "42.00", unknown + "Trying again will charge again.", answers{"lost": 1}})
	v.require("with", side{"1", "42.00", once + "the receipt.", answers{"lost": 1, "replayed": 1}})
	require.Equal(v.t, "Try again", v.text("#pay b"))
	press("pay")
	v.require("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"lost": 1, "new": 1}})
	v.require("with", side{"1", "42.00", once + "the same receipt twice.", answers{"lost": 1, "replayed": 2}})
	press("ten")
	v.require("without", side{"12", "504.00", "The customer was charged 12 times for one order.", answers{"lost": 1, "new": 11}})
	v.require("with", side{"1", "42.00", once + "the same receipt 12 times.", answers{"lost": 1, "replayed": 12}})
	v.requireAccessible(readOut...)
	v.picture(name)

	press("fresh")
	v.require("without", side{"0", "0.00", "Nothing was charged yet.", answers{}})
	require.Equal(v.t, "Pay 42.00", v.text("#pay b"))
	press("stop")
	require.Equal(v.t, "The server is running. It was killed once and started again.", v.text("#server"))
	v.require("with", side{"1", "42.00", once + "the receipt.", answers{"lost": 1, "replayed": 1}})
	press("pay")
	v.require("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"lost": 1, "new": 1}})
	v.require("with", side{"1", "42.00", once + "the same receipt twice.", answers{"lost": 1, "replayed": 2}})

	press("fresh")
	press("ten") // none of them has an answer to be replayed yet
	v.require("without", side{"10", "420.00", "The customer was charged 10 times for one order.", answers{"new": 10}})
	v.require("with", side{"1", "42.00", once + "the same receipt 10 times.", answers{"new": 1, "replayed": 9}})
}

// The page is loaded again when both sides have charged, and have not answered. The script of the page continues the
// payment: its key is still there.
func TestCheckoutPageLoadedAgain(t *testing.T) {
	t.Parallel()
	checkout := startCheckout(t, built(t, "checkout"))
	v := visit(t, checkout.url, desktop)
	v.do(chromedp.Evaluate[chromedp.Void](`{
		const send = fetch
		window.fetch = (url, init) => send(url, init && { ...init, headers: { ...init.headers, 'Checkout-Fault': 'hold' } })
	}`))
	v.do(chromedp.Click(chromedp.CSS("#pay")))
	for _, name := range []string{"without", "with"} {
		v.await(`document.querySelector('#` + name + ` .charges').textContent === '1'`)
	}
	v.require("with", side{"1", "42.00", "Nothing was charged yet.", answers{}})

	v.do(chromedp.Navigate(checkout.url))
	v.await(`document.body.dataset.done === '1'`)
	v.require("without", side{"1", "42.00", "The customer was charged once, and does not know it. Trying again will charge again.", answers{}})
	v.require("with", side{"1", "42.00", "The customer was charged once, and got the receipt.", answers{"replayed": 1}})
	v.click("pay")
	v.require("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"new": 1}})
	v.require("with", side{"1", "42.00", "The customer was charged once, and got the same receipt twice.", answers{"replayed": 2}})
	v.do(chromedp.Navigate(checkout.url))
	v.await(`document.body.dataset.done === '0'`)
	v.require("with", side{"0", "0.00", "Nothing was charged yet.", answers{}})
	require.Empty(t, v.faults())
}

// Those who want no motion get none.
func TestCheckoutPageWithoutMotion(t *testing.T) {
	t.Parallel()
	v := visit(t, startCheckout(t, built(t, "checkout")).url, prefers("reduced-motion", "reduce"))
	v.click("pay")
	const animation = `getComputedStyle(document.querySelector('.answers li')).animationName`
	require.Equal(t, "none", ask[string](v, animation))
	v.do(prefers("reduced-motion", "no-preference"))
	require.Equal(t, "arrive", ask[string](v, animation), "others get some")
}

// The page says when the server is down, and what was charged is seen meanwhile.
func TestCheckoutPageShowsTheDeath(t *testing.T) {
	t.Parallel()
	v := visit(t, startCheckout(t, built(t, "checkout")).url, desktop)
	v.do(chromedp.Click(chromedp.CSS("#stop")))
	v.await(`document.querySelector('#server').textContent.startsWith('The server was killed.') &&
		document.querySelector('#without .charges').textContent === '1'`)
	v.await(`document.querySelector('#server').textContent.startsWith('The server is running.')`)
}

// visit opens the page of the checkout.
func visit(t *testing.T, url string, emulate chromedp.Action[chromedp.Void]) *visitor {
	t.Helper()
	v := open(t, url, emulate)
	v.await(`document.body.dataset.done === '0'`)
	return v
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

// act does something, and waits until all answers to it are there.
func (v *visitor) act(action chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	done := ask[string](v, `document.body.dataset.done`)
	v.do(action)
	v.await(`document.body.dataset.done !== '` + done + `'`)
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
