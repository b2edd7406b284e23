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
	t      testing.TB
	ledger string
	port   string
	args   []string
	cmd    *exec.Cmd
	output *bufio.Scanner
}

// open starts the service. With "remember" it looks for the operation in its ledger before it charges.
func open(t testing.TB, args ...string) *bank {
	t.Helper()
	b := &bank{t: t, ledger: filepath.Join(t.TempDir(), "ledger"), port: "0", args: args}
	b.start()
	t.Cleanup(b.kill)
	return b
}

func (b *bank) start() {
	b.t.Helper()
	b.cmd = exec.Command("perl", append([]string{"../../examples/proxy/service.pl", b.port, b.ledger}, b.args...)...)
	b.output = tellingPort(b.t, b.cmd)
	b.port = b.output.Text()
}

// tellingPort starts a service, and returns what it prints: its port is in the first line, which is read.
func tellingPort(t testing.TB, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(output)
	require.True(t, lines.Scan())
	return lines
}

// awaitCharge returns when the service has begun to charge a card.
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

// charges returns how often a user was charged.
func (b *bank) charges(user string) int {
	b.t.Helper()
	text, err := os.ReadFile(b.ledger)
	if !os.IsNotExist(err) {
		require.NoError(b.t, err)
	}
	return strings.Count(string(text), " "+user+" ")
}

func amount(n int) string { return fmt.Sprintf(`{"amount":%d}`, n) }

// retries sends the same request 50 times at once. All are the same answer.
func retries(t testing.TB, p *process) answer {
	t.Helper()
	answers := make([]answer, 50)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = p.post("/payments", amount(4200), as("alice"), keyed("order-1")) })
	}
	all.Wait()
	for _, a := range answers {
		require.Equal(t, 201, a.status, a)
		require.Equal(t, answers[0].body, a.body)
		require.Equal(t, answers[0].header["Location"], a.header["Location"])
	}
	return answers[0]
}

// durable stores outlive the proxy.
var durable = map[string]func(testing.TB) string{
	"redis":  newRedis,
	"sqlite": func(t testing.TB) string { return inFile(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db")) },
}

// Alice's phone hangs up while her card is charged, and tries again, 50 times at once. The proxy in front of the
// service, which is not written in Go, is killed and started again.
func TestStory(t *testing.T) {
	t.Parallel()
	for name, store := range durable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := open(t)
			args := append(asHeader, "-store-file", store(t), "-wait", "20s", "-lease", "2s")
			p := start(t, service.url(), args...)
			phone := p.order("/payments", amount(4200), "order-1")
			service.awaitCharge()
			require.NoError(t, phone.Close()) // without having read a byte
			first := retries(t, p)
			require.Equal(t, 1, service.charges("alice"))

			p.kill()
			p = startAt(t, p.address(), service.url(), args...)
			require.Equal(t, first.body, retries(t, p).body)
			reused := p.post("/payments", amount(9900), as("alice"), keyed("order-1"))
			require.Equal(t, 409, reused.status)
			require.Equal(t, "key-reused", reused.code())
			require.Equal(t, 201, p.post("/payments", amount(4200), as("bob"), keyed("order-1")).status)
			require.Equal(t, 1, service.charges("alice"))
			require.Equal(t, 1, service.charges("bob"))
		})
	}
}

// The proxy is killed while the card is being charged. With re-execute the service finds out what came of the charge;
// with refuse a retry is told that nobody knows.
func TestKilledWithinTheCharge(t *testing.T) {
	t.Parallel()
	for name, store := range durable {
		for _, remembers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, remembers=%t", name, remembers), func(t *testing.T) {
				t.Parallel()
				args := append(asHeader, "-store-file", store(t), "-wait", "20s", "-lease", "2s")
				var service *bank
				if remembers {
					service = open(t, "remember")
					args = append(args, "-abandoned", "re-execute")
				} else {
					service = open(t)
				}
				p := start(t, service.url(), args...)
				lost := make(chan answer)
				go func() { lost <- p.post("/payments", amount(4200), as("alice"), keyed("order-1")) }()
				service.awaitCharge()
				p.kill()
				require.Error(t, (<-lost).err)

				p = startAt(t, p.address(), service.url(), args...)
				if remembers {
					require.Regexp(t, charged, retries(t, p).body)
				} else {
					got := p.post("/payments", amount(4200), as("alice"), keyed("order-1"))
					require.Equal(t, "outcome-unknown", got.code(), got)
				}
				require.Equal(t, 1, service.charges("alice"))
			})
		}
	}
}

var charged = regexp.MustCompile(`^{"id":"\d+","status":"charged"}$`)
