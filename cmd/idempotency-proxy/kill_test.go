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

// The proxy between clients and a service in Python is killed at random, and started again. No order is charged twice. By
// default one whose proxy died may end in an outcome that nobody knows; behind a service that looks for the operation, each
// is charged and answered. An answer stays what it was.
func TestProxyIsKilled(t *testing.T) {
	t.Parallel()
	for name, store := range durable {
		for _, remembers := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, remembers=%t", name, remembers), func(t *testing.T) {
				t.Parallel()
				args := append(asHeader, "-store-file", store(t), "-lease", "1s")
				ledger := filepath.Join(t.TempDir(), "ledger")
				url := pythonService(t, ledger, remembers)
				if remembers {
					args = append(args, "-abandoned", "re-execute")
				}
				first := start(t, url, args...)
				o := &orders{proxy: first, acknowledged: make(map[string]bool)}
				stop := o.send(t)
				defer stop()
				p, kills := first, *deaths/4
				for range kills {
					o.await(t, 5)
					time.Sleep(rand.N(20 * time.Millisecond)) // a point in time
					p.kill()
					p = startAt(t, first.address(), url, args...)
				}
				stop()
				charges := chargesIn(t, ledger)
				for order, n := range charges {
					require.Equal(t, 1, n, order)
				}
				for order := range o.acknowledged {
					require.Equal(t, 1, charges[order], order)
				}
				if remembers {
					require.Zero(t, o.unknown)
				} else if kills >= 25 {
					require.Positive(t, o.unknown, "no request was struck")
				}
				for name, n := range map[string]int{"deaths": kills, "operations-acknowledged": len(o.acknowledged),
					"operations-with-an-unknown-outcome": o.unknown, "charges": len(charges)} {
					t.Attr(name, strconv.Itoa(n))
				}
			})
		}
	}
}

// pythonService starts the service, and returns its URL.
func pythonService(t *testing.T, ledger string, remembers bool) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	servertest.Require(t, err)
	args := []string{"testdata/service.py", ledger}
	if remembers {
		args = append(args, "remember")
	}
	cmd := exec.Command(python, args...)
	port := tellingPort(t, cmd).Text()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return "http://127.0.0.1:" + port
}

// chargesIn returns how often each order was charged.
func chargesIn(t *testing.T, ledger string) map[string]int {
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

// orders are what clients send, each until it knows what came of it.
type orders struct {
	proxy *process

	mu           sync.Mutex
	unknown      int
	acknowledged map[string]bool
}

// send lets clients send orders until it is told to stop. Then each ends with the order that it has begun.
func (o *orders) send(t *testing.T) (stop func()) {
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
					o.one(t, fmt.Sprintf("order-%d-%d", client, n))
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(stopping)
		clients.Wait()
	})
}

// one sends an order until its outcome is known, or is said to be unknown, and then once more.
func (o *orders) one(t *testing.T, order string) {
	got := o.ask(t, order)
	again := o.ask(t, order)
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
	o.unknown++
}

// ask sends an order until it is answered, which a refusal to wait is not.
func (o *orders) ask(t *testing.T, order string) answer {
	for until := time.Now().Add(3 * patience); ; time.Sleep(20 * time.Millisecond) {
		got := o.proxy.post("/orders", order, as("alice"), keyed(order))
		if got.err == nil && (got.status == 201 || got.code() == "outcome-unknown") {
			return got
		}
		if time.Now().After(until) {
			t.Errorf("no answer to %s: %s", order, got)
			return got
		}
	}
}

// await waits for some more orders to be acknowledged.
func (o *orders) await(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.acknowledged)
	}
	before := count()
	eventually(t, "acknowledged orders", func() bool { return count() >= before+more })
}
