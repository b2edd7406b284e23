package probe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// checkoutDecisions are the decisions of the checkout in the examples.
var checkoutDecisions = map[string]string{
	"marker":             "Idempotent-Replayed",
	"other-content":      "409",
	"key-too-long":       "400",
	"key-not-ascii":      "400",
	"incomplete-request": "ignored",
	"invalid-request":    "kept",
	"large-body":         "413",
	"chunked-body":       "executed",
	"compressed-body":    "400",
	"after-death":        "answered",
}

// checkoutNotMade has the checks that cannot be made of the checkout.
var checkoutNotMade = map[string]string{
	"other-route":    "the checkout has one route",
	"other-user":     "the checkout has one user",
	"key-missing":    "the form has the key, too",
	"key-empty":      "the form has the key, too",
	"key-twice":      "the form has the key, too",
	"key-quoted":     "the form has the key, too",
	"failed-request": "no request makes the checkout fail",
	"http2":          "the checkout speaks HTTP/1.1",
	"stream":         "no answer is streamed",
	"while-running":  "a payment takes so short that duplicates come after it",
}

// TestProbeFindsNothingInTheCheckout kills a shop of the checkout. The shop cannot be started by a command line, because it
// inherits its socket and finds the ledger that the supervisor has made. So the test starts the page with its supervisor, which
// is the second instance and tells what was charged, and beside it a shop on the same ledger, as the supervisor starts one.
func TestProbeFindsNothingInTheCheckout(t *testing.T) {
	t.Parallel()
	program := buildProgram(t, "examples/checkout")
	page, ledgerFile := startCheckout(t, program)
	shop, shopURL := startShop(t, program, ledgerFile)
	service := probe.Service{
		URLs:    []string{shopURL, page + "/shop"},
		Request: newPurchase(4200), Other: newPurchase(8400), Invalid: newPurchase(0),
		Effects: func(ctx context.Context) (int, error) { return countCheckoutCharges(ctx, page) },
		Kill:    shop.kill,
		Start:   func(ctx context.Context) error { return startAndAwaitShop(ctx, shop, shopURL) },
		Bound:   10 * time.Second,
		Skip:    map[string]string{"while-running": checkoutNotMade["while-running"]},
	}
	requireNothingFound(t, service, checkoutDecisions, checkoutNotMade)
}

// startCheckout starts the page of the checkout, and returns its URL and the file of the ledger.
func startCheckout(t *testing.T, program string) (url, ledgerFile string) {
	t.Helper()
	directory := t.TempDir()
	address := servertest.PickAddress(t)
	p := &process{
		newCommand: func() *exec.Cmd {
			command := exec.Command(program, "-listen", address)
			command.Env = append(os.Environ(), "TMPDIR="+directory, "DATABASE_URL=", "REDIS_URL=")
			return command
		},
		isReady: func(line string) bool { return strings.HasPrefix(line, "Open ") },
	}
	require.NoError(t, p.start(t.Context()))
	t.Cleanup(func() {
		assert.NoError(t, p.running.Process.Signal(os.Interrupt)) // removes the ledger
		assert.NoError(t, p.running.Wait())
	})
	files, err := filepath.Glob(filepath.Join(directory, "*", "checkout.db"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	return "http://" + address, files[0]
}

// startShop starts a further shop on the ledger of the checkout. All processes of the shop inherit one socket.
func startShop(t *testing.T, program, ledgerFile string) (p *process, url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url = "http://" + listener.Addr().String()
	socket, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	require.NoError(t, listener.Close()) // socket is a copy, and stays open
	t.Cleanup(func() { _ = socket.Close() })
	p = &process{newCommand: func() *exec.Cmd {
		command := exec.Command(program)
		command.Env = append(os.Environ(), "EXAMPLE_SERVICE=yes", "CHECKOUT_FILE="+ledgerFile, "DATABASE_URL=", "REDIS_URL=")
		command.ExtraFiles = []*os.File{socket}
		return command
	}}
	require.NoError(t, startAndAwaitShop(t.Context(), p, url))
	t.Cleanup(func() { _ = p.kill(context.Background()) })
	return p, url
}

// startAndAwaitShop starts a shop, and waits until the shop answers, because it prints nothing.
func startAndAwaitShop(ctx context.Context, shop *process, url string) error {
	if err := shop.start(ctx); err != nil {
		return err
	}
	_, err := getFromCheckout(ctx, url+"/held")
	return err
}

// countCheckoutCharges returns how often the checkout has charged with the middleware.
func countCheckoutCharges(ctx context.Context, page string) (int, error) {
	text, err := getFromCheckout(ctx, page+"/ledger")
	if err != nil {
		return 0, err
	}
	var books struct{ With struct{ Charges int } }
	err = json.Unmarshal(text, &books)
	return books.With.Charges, err
}

func getFromCheckout(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, text)
	}
	return text, err
}

// newPurchase returns a function for the fields of [probe.Service]. The key is the purchase, too, as on the page.
func newPurchase(amount int) func(key string) *http.Request {
	return func(key string) *http.Request {
		body := fmt.Sprintf(`{"purchase": %q, "amount": %d, "currency": "EUR"}`, key, amount)
		return testservice.BuildJSON(http.MethodPost, "/with/payments", body)(key)
	}
}
