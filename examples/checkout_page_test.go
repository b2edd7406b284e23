package examples_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// liveRegions are the selectors of the parts of the page that change, and that a screen reader must read out.
var liveRegions = []string{"#server[role=status]", "#with .verdict[aria-live=polite]", "#without .verdict[aria-live=polite]"}

// A user does everything that the page offers, with each of these input devices.
func TestCheckoutPage(t *testing.T) {
	t.Parallel()
	program := buildProgram(t, "checkout")
	ways := []struct {
		name    string
		picture string
		emulate chromedp.Action[chromedp.Void]
		press   func(tab *browserTab, button string)
	}{
		{"mouse", "checkout.png", desktop, (*browserTab).clickButton},
		{"keyboard in the dark", "checkout-dark.png",
			chromedp.Steps(desktop, setPreference("color-scheme", "dark")), (*browserTab).reachButton},
		{"phone", "phone.png", phone, (*browserTab).tapButton},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			checkout := startCheckout(t, program)
			tab := openCheckout(t, checkout.pageURL, way.emulate)
			playOnPage(tab, func(button string) { way.press(tab, button) }, way.picture)
			require.Empty(t, tab.listComplaints())
		})
	}
}

// playOnPage presses the buttons, and compares the page with the expected charges and answers. The screenshot gets the given
// name.
func playOnPage(tab *browserTab, press func(button string), name string) {
	tab.requireAccessible(liveRegions...)
	const unknown = "The customer was charged once, and does not know it. "
	const once = "The customer was charged once, and got "
	press("lose")
	tab.requireSide("without", side{"1", "42.00", unknown + "Trying again will charge again.", answers{"lost": 1}})
	tab.requireSide("with", side{"1", "42.00", once + "the receipt.", answers{"lost": 1, "replayed": 1}})
	require.Equal(tab.t, "Try again", tab.readText("#pay b"))
	press("pay")
	tab.requireSide("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"lost": 1, "new": 1}})
	tab.requireSide("with", side{"1", "42.00", once + "the same receipt twice.", answers{"lost": 1, "replayed": 2}})
	press("ten")
	tab.requireSide("without", side{"12", "504.00", "The customer was charged 12 times for one order.", answers{"lost": 1, "new": 11}})
	tab.requireSide("with", side{"1", "42.00", once + "the same receipt 12 times.", answers{"lost": 1, "replayed": 12}})
	tab.requireAccessible(liveRegions...)
	tab.savePicture(name)

	press("fresh")
	tab.requireSide("without", side{"0", "0.00", "Nothing was charged yet.", answers{}})
	require.Equal(tab.t, "Pay 42.00", tab.readText("#pay b"))
	press("stop")
	require.Equal(tab.t, "The server is running. It was killed once and started again.", tab.readText("#server"))
	tab.requireSide("with", side{"1", "42.00", once + "the receipt.", answers{"lost": 1, "replayed": 1}})
	press("pay")
	tab.requireSide("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"lost": 1, "new": 1}})
	tab.requireSide("with", side{"1", "42.00", once + "the same receipt twice.", answers{"lost": 1, "replayed": 2}})

	press("fresh")
	press("ten") // ten clicks, before the first answer
	tab.requireSide("without", side{"10", "420.00", "The customer was charged 10 times for one order.", answers{"new": 10}})
	tab.requireSide("with", side{"1", "42.00", once + "the same receipt 10 times.", answers{"new": 1, "replayed": 9}})
}

// The user loads the page again after both sides have charged, before the answers. The script of the page continues the
// payment, because the browser has kept the key.
func TestCheckoutPageLoadedAgain(t *testing.T) {
	t.Parallel()
	checkout := startCheckout(t, buildProgram(t, "checkout"))
	tab := openCheckout(t, checkout.pageURL, desktop)
	tab.do(chromedp.Evaluate[chromedp.Void](`{
		const send = fetch
		window.fetch = (url, init) => send(url, init && { ...init, headers: { ...init.headers, 'Checkout-Fault': 'hold' } })
	}`))
	tab.do(chromedp.Click(chromedp.CSS("#pay")))
	for _, name := range []string{"without", "with"} {
		tab.awaitCondition(`document.querySelector('#` + name + ` .charges').textContent === '1'`)
	}
	tab.requireSide("with", side{"1", "42.00", "Nothing was charged yet.", answers{}})

	tab.do(chromedp.Navigate(checkout.pageURL))
	tab.awaitCondition(`document.body.dataset.done === '1'`)
	tab.requireSide("without", side{"1", "42.00",
		"The customer was charged once, and does not know it. Trying again will charge again.", answers{}})
	tab.requireSide("with", side{"1", "42.00", "The customer was charged once, and got the receipt.", answers{"replayed": 1}})
	tab.clickButton("pay")
	tab.requireSide("without", side{"2", "84.00", "The customer was charged twice for one order.", answers{"new": 1}})
	tab.requireSide("with", side{"1", "42.00",
		"The customer was charged once, and got the same receipt twice.", answers{"replayed": 2}})
	tab.do(chromedp.Navigate(checkout.pageURL))
	tab.awaitCondition(`document.body.dataset.done === '0'`)
	tab.requireSide("with", side{"0", "0.00", "Nothing was charged yet.", answers{}})
	require.Empty(t, tab.listComplaints())
}

// The page has no animation for users who prefer reduced motion.
func TestCheckoutPageWithoutMotion(t *testing.T) {
	t.Parallel()
	tab := openCheckout(t, startCheckout(t, buildProgram(t, "checkout")).pageURL, setPreference("reduced-motion", "reduce"))
	tab.clickButton("pay")
	const animation = `getComputedStyle(document.querySelector('.answers li')).animationName`
	require.Equal(t, "none", evaluate[string](tab, animation))
	tab.do(setPreference("reduced-motion", "no-preference"))
	require.Equal(t, "arrive", evaluate[string](tab, animation), "others get some")
}

// While the server is down, the page says so, and shows the charges.
func TestCheckoutPageShowsTheDeath(t *testing.T) {
	t.Parallel()
	tab := openCheckout(t, startCheckout(t, buildProgram(t, "checkout")).pageURL, desktop)
	tab.do(chromedp.Click(chromedp.CSS("#stop")))
	tab.awaitCondition(`document.querySelector('#server').textContent.startsWith('The server was killed.') &&
		document.querySelector('#without .charges').textContent === '1'`)
	tab.awaitCondition(`document.querySelector('#server').textContent.startsWith('The server is running.')`)
}

// openCheckout opens the page of the checkout, and waits until the page is ready.
func openCheckout(t *testing.T, url string, emulate chromedp.Action[chromedp.Void]) *browserTab {
	t.Helper()
	tab := openTab(t, url, emulate)
	tab.awaitCondition(`document.body.dataset.done === '0'`)
	return tab
}

// clickButton clicks on the button with the given ID, and waits for all answers.
func (tab *browserTab) clickButton(button string) {
	tab.t.Helper()
	tab.performAndWait(chromedp.Click(chromedp.CSS("#" + button)))
}

// tapButton taps on the button with the given ID, and waits for all answers.
func (tab *browserTab) tapButton(button string) {
	tab.t.Helper()
	tab.performAndWait(chromedp.Tap(chromedp.CSS("#" + button)))
}

// reachButton moves the focus to a button with the Tab key, and presses Enter. The focus must be visible, and must stay on
// the button.
func (tab *browserTab) reachButton(button string) {
	tab.t.Helper()
	const focus = `document.activeElement.id`
	for range 20 {
		if evaluate[string](tab, focus) == button {
			break
		}
		tab.do(chromedp.KeyEvent(kb.Tab))
	}
	require.Equal(tab.t, button, evaluate[string](tab, focus))
	outline := evaluate[string](tab, `getComputedStyle(document.activeElement).outlineStyle`)
	require.Equal(tab.t, "solid", outline, "the focus is visible")
	tab.performAndWait(chromedp.KeyEvent(kb.Enter))
	require.Equal(tab.t, button, evaluate[string](tab, focus), "the focus stays")
}

// performAndWait performs an action, and waits until the page has all answers.
func (tab *browserTab) performAndWait(action chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	done := evaluate[string](tab, `document.body.dataset.done`)
	tab.do(action)
	tab.awaitCondition(`document.body.dataset.done !== '` + done + `'`)
}

// side is the content of one side of the page: the shop with or without the middleware.
type side struct {
	Charges, Total, Verdict string
	Answers                 answers
}

// answers has the number of answers of each kind.
type answers map[string]int

// requireSide compares the side with the given name with want.
func (tab *browserTab) requireSide(name string, want side) {
	tab.t.Helper()
	const read = `(name => {
		const root = document.getElementById(name), text = (s) => root.querySelector(s).textContent
		const answers = {}
		for (const li of root.querySelectorAll('.answers li')) answers[li.className] = (answers[li.className] ?? 0) + 1
		return {Charges: text('.charges'), Total: text('.total'), Verdict: text('.verdict'), Answers: answers}
	})`
	require.Equal(tab.t, want, evaluate[side](tab, read+`("`+name+`")`), name)
}
