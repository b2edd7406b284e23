package examples_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The server is killed during a charge. The page repeats the request, and is refused, because the outcome is unknown. The page
// links to the provider, and to the operation in the console. An operator looks up the receipt at the provider, and enters the receipt in the
// console. Then the customer's phone gets the receipt. The customer was charged once.
func TestCheckoutConsole(t *testing.T) {
	t.Parallel()
	c := startCheckout(t, buildProgram(t, "checkout"), "-console", "127.0.0.1:0")
	console := c.readAfter("The console is at ")
	customer := openCheckout(t, c.pageURL, phone)
	customer.pressButton((*browserTab).tapElement, "stop")
	const unknown = "The customer was charged once, but the shop has died and cannot know it. An operator has to look."
	customer.requireSide("with", side{"1", "€42.00", unknown, presses{"unknown": 1}})
	require.Regexp(t, "^Outcome of the earlier attempt is unknown, sent ", customer.readText("#with .unknown .what"))
	customer.requireAccessible(liveRegions...)
	require.Equal(t, chargesURL(console), evaluate[string](customer, `document.querySelector('.charges-link').href`))
	link := evaluate[string](customer, `document.querySelector('.console-link').href`)
	require.True(t, strings.HasPrefix(link, console), link)

	o := &operator{browserTab: openWithoutScripts(t, link, desktop), pressElement: (*browserTab).clickElement}
	receipt := findReceipt(t, console, o.readText("h1 code"))
	o.clickElement("details:nth-of-type(1) summary")
	o.fillField("#answer-status", "201")
	o.fillField("#answer-body", fmt.Sprintf(`{"receipt": %q}`, receipt))
	o.fillField("#answer-reason", "the provider has charged it: "+receipt)
	o.pressAndLoad("button[value=answer]", http.StatusOK)
	require.Contains(t, o.readText(".done"), "Resolved: it has happened")

	customer.pressButton((*browserTab).tapElement, "pay")
	customer.requireSide("with", side{"1", "€42.00", "The customer was charged once, and got the receipt.",
		presses{"unknown": 1, "replayed": 1}})
	require.Equal(t, receipt, customer.readText("#with .replayed .receipt"))
	require.Empty(t, customer.readText(".operator"))
	customer.requireSide("without", side{"2", "€84.00", "The customer was charged twice for one order: €42.00 too much.",
		presses{"lost": 1, "new": 1}})
	customer.requireConsistent()
	require.Empty(t, customer.listComplaints())
}

// findReceipt asks the provider for the receipt of the operation.
func findReceipt(t *testing.T, console, operation string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, chargesURL(console), nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	list, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	_, receipt, ok := strings.Cut(string(list), operation+" ")
	require.True(t, ok, string(list))
	receipt, _, _ = strings.Cut(receipt, "\n")
	return receipt
}

// chargesURL returns the URL of the provider's list of charges.
func chargesURL(console string) string {
	return strings.Replace(console, "/idempotency/", "/charges", 1)
}
