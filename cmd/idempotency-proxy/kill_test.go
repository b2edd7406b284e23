package main_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

var deaths = flag.Int("deaths", 16, "how often the proxy is killed in TestProxyIsKilled")

// The proxy between clients and a service in Python is killed at random times, and started again. No order is charged
// twice, and no answer changes. With the default of -abandoned, an order may end with an unknown outcome. If the service
// looks up operations, every order is charged and answered.
func TestProxyIsKilled(t *testing.T) {
	t.Parallel()
	for name, store := range durableStores {
		for _, remembers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, remembers=%t", name, remembers), func(t *testing.T) {
				t.Parallel()
				args := append(userHeaderFlags, "-store-file", store(t), "-lease", "1s")
				ledger := filepath.Join(t.TempDir(), "ledger")
				url := startPythonService(t, ledger, remembers)
				if remembers {
					args = append(args, "-abandoned", "re-execute")
				}
				first := startProxy(t, url, args...)
				o := &orderClients{proxy: first, acknowledged: make(map[string]bool)}
				stop := o.startClients(t)
				defer stop()
				p, kills := first, *deaths/4
				for range kills {
					o.awaitAcknowledged(t, 5)
					time.Sleep(rand.N(20 * time.Millisecond)) // the kill happens at a random time
					p.kill()
					p = startProxyAt(t, first.address(), url, args...)
				}
				stop()
				charges := countCharges(t, ledger)
				for order, n := range charges {
					require.Equal(t, 1, n, order)
				}
				for order := range o.acknowledged {
					require.Equal(t, 1, charges[order], order)
				}
				if remembers {
					require.Zero(t, o.unknownCount)
				} else if kills >= 25 {
					require.Positive(t, o.unknownCount, "no kill has hit a request")
				}
				for name, n := range map[string]int{"deaths": kills, "operations-acknowledged": len(o.acknowledged),
					"operations-with-an-unknown-outcome": o.unknownCount, "charges": len(charges)} {
					t.Attr(name, strconv.Itoa(n))
				}
			})
		}
	}
}

// startPythonService starts the service, and returns the URL.
func startPythonService(t *testing.T, ledger string, remembers bool) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	servertest.Require(t, err)
	args := []string{"testdata/service.py", ledger}
	if remembers {
		args = append(args, "remember")
	}
	cmd := exec.Command(python, args...)
	port := startAndReadPort(t, cmd).Text()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return "http://127.0.0.1:" + port
}

// countCharges returns the number of charges by order.
func countCharges(t *testing.T, ledger string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(ledger)
	require.NoError(t, err)
	charges := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		_, order, _ := strings.Cut(strings.TrimSpace(line), " ")
		charges[order]++
	}
	return charges
}

// orderClients are clients that send orders, each order until the outcome is known.
type orderClients struct {
	proxy *process

	mu           sync.Mutex
	unknownCount int             // orders with an unknown outcome
	acknowledged map[string]bool // orders with a success
}

// startClients starts clients that send orders until stop is called. stop returns after the last orders of all clients.
func (o *orderClients) startClients(t *testing.T) (stop func()) {
	t.Helper()
	stopping := make(chan struct{})
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stopping:
					return
				default:
					o.sendOrder(t, fmt.Sprintf("order-%d-%d", client, n))
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(stopping)
		clients.Wait()
	})
}

// sendOrder sends an order until the answer is a success or outcome-unknown, and then once more.
func (o *orderClients) sendOrder(t *testing.T, order string) {
	got := o.awaitOutcome(t, order)
	again := o.awaitOutcome(t, order)
	assert.Equal(t, got.status, again.status, order)
	if got.status == 201 {
		assert.Equal(t, got.body, again.body, order)
		assert.True(t, again.replayed, order)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if got.status == 201 {
		o.acknowledged[order] = true
		return
	}
	o.unknownCount++
}

// awaitOutcome repeats an order until the answer is a success or outcome-unknown.
func (o *orderClients) awaitOutcome(t *testing.T, order string) answer {
	for until := time.Now().Add(3 * waitLimit); ; time.Sleep(20 * time.Millisecond) {
		got := o.proxy.post("/orders", order, withUser("alice"), withKey(order))
		if got.err == nil && (got.status == 201 || got.problemCode() == "outcome-unknown") {
			return got
		}
		if time.Now().After(until) {
			t.Errorf("no answer to %s: %s", order, got)
			return got
		}
	}
}

// awaitAcknowledged waits until more further orders are acknowledged.
func (o *orderClients) awaitAcknowledged(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.acknowledged)
	}
	before := count()
	requireEventually(t, "acknowledged orders", func() bool { return count() >= before+more })
}
