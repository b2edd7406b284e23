package main_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// bank is a payment service in Perl.
type bank struct {
	t          testing.TB
	ledgerPath string
	port       string
	args       []string
	cmd        *exec.Cmd
	output     *bufio.Scanner
}

// openBank starts the service. With the argument "remember", the service looks for the operation in its ledger before a
// charge.
func openBank(t testing.TB, args ...string) *bank {
	t.Helper()
	b := &bank{t: t, ledgerPath: filepath.Join(t.TempDir(), "ledger"), port: "0", args: args}
	b.start()
	t.Cleanup(b.kill)
	return b
}

func (b *bank) start() {
	b.t.Helper()
	b.cmd = exec.Command("perl", append([]string{"../../examples/proxy/service.pl", b.port, b.ledgerPath}, b.args...)...)
	b.output = startAndReadPort(b.t, b.cmd)
	b.port = b.output.Text()
}

// startAndReadPort starts a service, and returns the scanner of its output. The current line has the port.
func startAndReadPort(t testing.TB, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(output)
	require.True(t, lines.Scan())
	return lines
}

// awaitCharge waits until the service has begun to charge a card.
func (b *bank) awaitCharge() {
	b.t.Helper()
	require.True(b.t, b.output.Scan())
	require.Equal(b.t, "charging", b.output.Text())
}

func (b *bank) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

func (b *bank) url() string { return "http://127.0.0.1:" + b.port }

// countCharges returns the number of charges of user.
func (b *bank) countCharges(user string) int {
	b.t.Helper()
	text, err := os.ReadFile(b.ledgerPath)
	if !os.IsNotExist(err) {
		require.NoError(b.t, err)
	}
	return strings.Count(string(text), " "+user+" ")
}

// paymentBody returns the body of a payment.
func paymentBody(n int) string { return fmt.Sprintf(`{"amount":%d}`, n) }

// sendRetries sends the same request 50 times concurrently, and requires the same answer to each.
func sendRetries(t testing.TB, p *process) answer {
	t.Helper()
	answers := make([]answer, 50)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = p.post("/payments", paymentBody(4200), withUser("alice"), withKey("order-1")) })
	}
	all.Wait()
	for _, a := range answers {
		require.Equal(t, 201, a.status, a)
		require.Equal(t, answers[0].body, a.body)
		require.Equal(t, answers[0].header["Location"], a.header["Location"])
	}
	return answers[0]
}

// durableStores starts stores that outlive the proxy, and returns their URLs in a file.
var durableStores = map[string]func(testing.TB) string{
	"redis":  startRedis,
	"sqlite": func(t testing.TB) string { return writeFile(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db")) },
}

// Alice's phone hangs up while her card is charged, and then sends 50 concurrent retries. The proxy is killed and started
// again. The service behind the proxy is written in Perl.
func TestStory(t *testing.T) {
	t.Parallel()
	for name, store := range durableStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := openBank(t)
			args := append(userHeaderFlags, "-store-file", store(t), "-wait", "20s", "-lease", "2s")
			p := startProxy(t, service.url(), args...)
			phone := p.postUnread("/payments", paymentBody(4200), "order-1")
			service.awaitCharge()
			require.NoError(t, phone.Close()) // before the phone has read a byte
			first := sendRetries(t, p)
			require.Equal(t, 1, service.countCharges("alice"))

			p.kill()
			p = startProxyAt(t, p.address(), service.url(), args...)
			require.Equal(t, first.body, sendRetries(t, p).body)
			reused := p.post("/payments", paymentBody(9900), withUser("alice"), withKey("order-1"))
			require.Equal(t, 409, reused.status)
			require.Equal(t, "key-reused", reused.problemCode())
			require.Equal(t, 201, p.post("/payments", paymentBody(4200), withUser("bob"), withKey("order-1")).status)
			require.Equal(t, 1, service.countCharges("alice"))
			require.Equal(t, 1, service.countCharges("bob"))
		})
	}
}

// The proxy is killed during a charge. With re-execute, the service looks up the outcome of the charge. With refuse, a
// retry gets the answer outcome-unknown.
func TestKilledWithinTheCharge(t *testing.T) {
	t.Parallel()
	for name, store := range durableStores {
		for _, remembers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, remembers=%t", name, remembers), func(t *testing.T) {
				t.Parallel()
				args := append(userHeaderFlags, "-store-file", store(t), "-wait", "20s", "-lease", "2s")
				var service *bank
				if remembers {
					service = openBank(t, "remember")
					args = append(args, "-abandoned", "re-execute")
				} else {
					service = openBank(t)
				}
				p := startProxy(t, service.url(), args...)
				lost := make(chan answer)
				go func() { lost <- p.post("/payments", paymentBody(4200), withUser("alice"), withKey("order-1")) }()
				service.awaitCharge()
				p.kill()
				require.Error(t, (<-lost).err)

				p = startProxyAt(t, p.address(), service.url(), args...)
				if remembers {
					require.Regexp(t, chargedBody, sendRetries(t, p).body)
				} else {
					got := p.post("/payments", paymentBody(4200), withUser("alice"), withKey("order-1"))
					require.Equal(t, "outcome-unknown", got.problemCode(), got)
				}
				require.Equal(t, 1, service.countCharges("alice"))
			})
		}
	}
}

// chargedBody matches the body of a charge.
var chargedBody = regexp.MustCompile(`^{"id":"\d+","status":"charged"}$`)
