package examples_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// liveRegions are the selectors of the parts of the page that change, and that a screen reader must announce.
var liveRegions = []string{
	"#scene[role=status]", "#server[role=status]", ".operator[role=status]",
	"#with .verdict[aria-live=polite]", "#without .verdict[aria-live=polite]",
}

// pressElement is how a user presses an element of a page: with a mouse, a finger or the keyboard.
type pressElement func(tab *browserTab, selector string)

// A user does everything that the page offers, with each of these input devices, and in both color schemes. Meanwhile, no
// sentence contradicts a number.
func TestCheckoutPage(t *testing.T) {
	t.Parallel()
	program := buildProgram(t, "checkout")
	ways := []struct {
		name    string
		picture string
		emulate chromedp.Action[chromedp.Void]
		press   pressElement
	}{
		{"mouse", "checkout.png", desktop, (*browserTab).clickElement},
		{"keyboard in the dark", "checkout-dark.png", chromedp.Steps(desktop, dark), (*browserTab).reachElement},
		{"phone", "checkout-phone.png", phone, (*browserTab).tapElement},
		{"phone in the dark", "checkout-phone-dark.png", chromedp.Steps(phone, dark), (*browserTab).tapElement},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			checkout := startCheckout(t, program)
			tab := openCheckout(t, checkout.pageURL, way.emulate)
			playOnPage(tab, way.press, way.picture)
			requireExchange(tab, way.press)
			playStory(tab, way.press)
			tab.requireConsistent()
			require.Empty(t, tab.listComplaints())
		})
	}
}

// playOnPage presses the buttons, and compares the page with the expected charges and answers. The screenshot gets the given
// name.
func playOnPage(tab *browserTab, by pressElement, name string) {
	tab.requireAccessible(liveRegions...)
	const unknown = "The customer was charged once, and does not know it. "
	const once = "The customer was charged once, and got "
	const twice = "The customer was charged twice for one order: €42.00 too much."
	tab.pressButton(by, "lose")
	tab.requireSide("without", side{"1", "€42.00", unknown + "Trying again will charge again.", presses{"lost": 1}})
	tab.requireSide("with", side{"1", "€42.00", once + "the receipt.", presses{"replayed": 1}})
	require.Equal(tab.t, "Try again", tab.readText("#pay b"))
	tab.pressButton(by, "pay")
	tab.requireSide("without", side{"2", "€84.00", twice, presses{"lost": 1, "new": 1}})
	tab.requireSide("with", side{"1", "€42.00", once + "the same receipt twice.", presses{"replayed": 2}})
	tab.pressButton(by, "ten")
	tab.requireSide("without", side{"12", "€504.00", "The customer was charged 12 times for one order: €462.00 too much.",
		presses{"lost": 1, "new": 11}})
	tab.requireSide("with", side{"1", "€42.00", once + "the same receipt 12 times.", presses{"replayed": 12}})
	tab.requireAccessible(liveRegions...)
	tab.savePicture(name)

	tab.pressButton(by, "fresh")
	tab.requireSide("without", side{"0", "€0.00", "Nothing was charged yet.", presses{}})
	require.Equal(tab.t, "Pay €42.00", tab.readText("#pay b"))
	tab.pressButton(by, "stop")
	require.Equal(tab.t, "The server is running. It was killed once and started again.", tab.readText("#server"))
	tab.requireSide("with", side{"1", "€42.00", once + "the receipt.", presses{"replayed": 1}})
	tab.pressButton(by, "pay")
	tab.requireSide("without", side{"2", "€84.00", twice, presses{"lost": 1, "new": 1}})
	tab.requireSide("with", side{"1", "€42.00", once + "the same receipt twice.", presses{"replayed": 2}})

	tab.pressButton(by, "fresh")
	tab.pressButton(by, "ten") // ten clicks, before the first answer
	tab.requireSide("without", side{"10", "€420.00", "The customer was charged 10 times for one order: €378.00 too much.",
		presses{"new": 10}})
	tab.requireSide("with", side{"1", "€42.00", once + "the same receipt 10 times.", presses{"new": 1, "replayed": 9}})
}

// requireExchange loses an answer, opens the press, and requires that the page shows both requests, with the key of the order,
// and the answer.
func requireExchange(tab *browserTab, by pressElement) {
	tab.pressButton(by, "fresh")
	key := tab.readText("#key")
	tab.pressButton(by, "lose")
	const row = "#with .presses li"
	require.False(tab.t, evaluate[bool](tab, `document.querySelector('`+row+` .request').checkVisibility()`), "it is folded")
	by(tab, row+" summary")
	tab.awaitCondition(`document.querySelector('` + row + ` .request').checkVisibility()`)
	shown := evaluate[[]string](tab, `Array.from(document.querySelectorAll('`+row+` pre'), (e) => e.textContent)`)
	require.Len(tab.t, shown, 4)
	body := `{"purchase":"` + key + `","amount":4200,"currency":"EUR"}`
	const start = "POST /shop/with/payments\nContent-Type: application/json\nIdempotency-Key: "
	require.Equal(tab.t, start+key+"\nCheckout-Fault: lose\n\n"+body, shown[0])
	require.Equal(tab.t, "None: the connection broke.", shown[1])
	require.Equal(tab.t, start+key+"\n\n"+body, shown[2])
	require.Regexp(tab.t, `^201 Created\n(?s:.*)\nIdempotent-Replayed: true\n\n\{"receipt":"`+tab.readText(row+" .receipt")+
		`","operation":"[0-9a-f-]{36}"\}$`, shown[3])
	require.Equal(tab.t, "replayed, sent twice", tab.readText(row+" .what"))
	tab.requireAccessible(liveRegions...)
	by(tab, row+" summary")
}

// playStory has the page play the whole story, which ends as the program does with -run.
func playStory(tab *browserTab, by pressElement) {
	tab.pressButton(by, "story")
	require.Equal(tab.t, "The end. 2 orders, 15 presses. Without the middleware: 15 charges, €630.00. With it: 2 charges, €84.00.",
		tab.readText("#scene"))
	tab.requireSide("without", side{"3", "€126.00", "The customer was charged 3 times for one order: €84.00 too much.",
		presses{"lost": 1, "new": 2}})
	tab.requireSide("with", side{"1", "€42.00", "The customer was charged once, and got the same receipt 3 times.",
		presses{"replayed": 3}})
	require.Equal(tab.t, "The server is running. It was killed twice and started again.", tab.readText("#server"))
	tab.requireAccessible(liveRegions...)
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
	tab.clickElement("#pay")
	for _, name := range []string{"without", "with"} {
		tab.awaitCondition(`document.querySelector('#` + name + ` .charges').textContent === '1'`)
	}
	tab.requireSide("with", side{"1", "€42.00", "The customer was charged once, and waits for the receipt.", presses{"waiting": 1}})
	tab.requireConsistent()

	tab.do(chromedp.Navigate(checkout.pageURL))
	tab.awaitCondition(`document.body.dataset.done === '1'`)
	tab.requireSide("without", side{"1", "€42.00",
		"The customer was charged once, and does not know it. Trying again will charge again.", presses{}})
	tab.requireSide("with", side{"1", "€42.00", "The customer was charged once, and got the receipt.", presses{"replayed": 1}})
	tab.pressButton((*browserTab).clickElement, "pay")
	tab.requireSide("without", side{"2", "€84.00",
		"The customer was charged twice for one order: €42.00 too much.", presses{"new": 1}})
	tab.requireSide("with", side{"1", "€42.00",
		"The customer was charged once, and got the same receipt twice.", presses{"replayed": 2}})
	tab.requireConsistent()
	tab.do(chromedp.Navigate(checkout.pageURL))
	tab.awaitCondition(`document.body.dataset.done === '0'`)
	tab.requireSide("with", side{"0", "€0.00", "Nothing was charged yet.", presses{}})
	require.Empty(t, tab.listComplaints())
}

// The page has no animation for users who prefer reduced motion.
func TestCheckoutPageWithoutMotion(t *testing.T) {
	t.Parallel()
	tab := openCheckout(t, startCheckout(t, buildProgram(t, "checkout")).pageURL, setPreference("reduced-motion", "reduce"))
	tab.pressButton((*browserTab).clickElement, "pay")
	const animation = `getComputedStyle(document.querySelector('.presses li')).animationName`
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

// openCheckout opens the page of the checkout, has testdata/consistent.js watch the page, and waits until the page is ready.
func openCheckout(t *testing.T, url string, emulate chromedp.Action[chromedp.Void]) *browserTab {
	t.Helper()
	watch, err := os.ReadFile(filepath.Join("testdata", "consistent.js"))
	require.NoError(t, err)
	tab := openTab(t, url, emulate, runFirst(string(watch)))
	tab.awaitCondition(`document.body.dataset.done === '0'`)
	return tab
}

// requireConsistent fails if a sentence has contradicted a number since the page was loaded.
func (tab *browserTab) requireConsistent() {
	tab.t.Helper()
	require.Empty(tab.t, evaluate[[]string](tab, `window.contradictions`))
	require.Positive(tab.t, evaluate[int](tab, `window.looks`))
}

// pressButton presses the button with the given ID, and waits for all answers. The focus must stay on a button that was reached
// with the keyboard.
func (tab *browserTab) pressButton(by pressElement, button string) {
	tab.t.Helper()
	done := evaluate[string](tab, `document.body.dataset.done`)
	by(tab, "#"+button)
	focused := evaluate[string](tab, `document.activeElement.id`)
	tab.awaitCondition(`document.body.dataset.done !== '` + done + `'`)
	require.Equal(tab.t, focused, evaluate[string](tab, `document.activeElement.id`), "the focus stays")
}

// side is the content of one side of the page: the shop with or without the middleware.
type side struct {
	Charges, Total, Verdict string
	Presses                 presses
}

// presses has the number of presses of each kind.
type presses map[string]int

// requireSide compares the side with the given name with want.
func (tab *browserTab) requireSide(name string, want side) {
	tab.t.Helper()
	const read = `(name => {
		const root = document.getElementById(name), text = (s) => root.querySelector(s).textContent
		const presses = {}
		for (const li of root.querySelectorAll('.presses li')) presses[li.className] = (presses[li.className] ?? 0) + 1
		return {Charges: text('.charges'), Total: text('.total'), Verdict: text('.verdict'), Presses: presses}
	})`
	require.Equal(tab.t, want, evaluate[side](tab, read+`("`+name+`")`), name)
}
