package examples_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The server is killed in the middle of a charge. The page tries again, and is refused. An operator asks the provider, and
// tells the console. Then the phone gets its receipt. The customer was charged once.
func TestCheckoutConsole(t *testing.T) {
	t.Parallel()
	c := startCheckout(t, built(t, "checkout"), "-console", "127.0.0.1:0")
	console := c.next("The console is at ")
	customer := visit(t, c.url, phone)
	customer.tap("stop")
	const unknown = "The customer was charged once, and does not know it. Trying again is safe."
	customer.require("with", side{"1", "42.00", unknown, answers{"lost": 1, "refused": 1}})
	require.Equal(t, "Outcome of the earlier attempt is unknown", customer.text("#with .refused .what"))

	o := &operator{visitor: open(t, console, desktop, withoutJavaScript), press: (*operator).click}
	o.follow("tbody a", http.StatusOK)
	receipt := charged(t, console, o.text("h1 code"))
	o.click("details:nth-of-type(1) summary")
	o.fill("#answer-status", "201")
	o.fill("#answer-body", fmt.Sprintf(`{"receipt": %q}`, receipt))
	o.fill("#answer-reason", "the provider has charged it: "+receipt)
	o.follow("button[value=answer]", http.StatusOK)
	require.Contains(t, o.text(".done"), "Resolved: it has happened")

	customer.tap("pay")
	customer.require("with", side{"1", "42.00", "The customer was charged once, and got the receipt.",
		answers{"lost": 1, "refused": 1, "replayed": 1}})
	require.Equal(t, "receipt "+receipt, customer.text("#with .replayed .detail"))
	customer.require("without", side{"2", "84.00", "The customer was charged twice for one order.",
		answers{"lost": 1, "new": 1}})
	require.Empty(t, customer.faults())
}

// charged asks the provider for the receipt of an operation.
func charged(t *testing.T, console, operation string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(console, "/idempotency/", "/charges", 1), nil)
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
