package examples_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// With -run and with -load, the program succeeds on each kind of store. The program itself compares charges and orders.
func TestCheckoutOnEachStore(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) string{
		"file":     func(*testing.T) string { return "" },
		"postgres": func(t *testing.T) string { return "DATABASE_URL=" + servertest.Postgres(t).URL() },
		"redis": func(t *testing.T) string {
			return fmt.Sprintf("REDIS_URL=redis://:%s@%s", servertest.RedisPassword(), servertest.Redis(t).Addr())
		},
	}
	program := buildProgram(t, "checkout")
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append(environWithoutStores(), store(t))
			said := runCheckout(t, program, env, "-run")
			require.Contains(t, said, "2 orders, 15 presses: 15 charges without the middleware, 2 with it\n")
			said = runCheckout(t, program, env, "-load", "60")
			require.Regexp(t, `servers killed: 1\n`, said)
			require.Regexp(t, `60 orders: \d{2,} charges without the middleware, 60 with it\n$`, said)
			require.NotContains(t, said, "60 orders: 60 charges", "on the other side, retries are charged")
		})
	}
}

// After Redis has lost the record of a payment, the service finds the charge by the ID of the operation, and repeats the
// receipt. A request with the same key and another amount is refused.
func TestCheckoutComparesAfterALoss(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	records := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	t.Cleanup(func() { assert.NoError(t, records.Close()) })
	store := fmt.Sprintf("REDIS_URL=redis://:%s@%s", servertest.RedisPassword(), server.Addr())
	c := startCheckoutOn(t, store, buildProgram(t, "checkout"))
	pay := func(amount int) (status int, receipt string) {
		body := strings.NewReader(fmt.Sprintf(`{"purchase":"p","amount":%d,"currency":"EUR"}`, amount))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.pageURL+"/shop/with/payments", body)
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", "k")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(answer)
	}
	status, receipt := pay(100)
	require.Equal(t, http.StatusCreated, status, receipt)
	require.NoError(t, records.FlushAll(t.Context()).Err())
	status, answer := pay(500)
	require.Equal(t, http.StatusUnprocessableEntity, status, answer)
	require.NoError(t, records.FlushAll(t.Context()).Err())
	status, again := pay(100)
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, receipt, again)
}

// After an interrupt, the program exits cleanly, and ends the processes that it has started.
func TestCheckoutEndsWithItsShop(t *testing.T) {
	t.Parallel()
	checkout := startCheckout(t, buildProgram(t, "checkout"))
	shops := listChildren(t, checkout.cmd.Process.Pid)
	require.Len(t, shops, 1)
	checkout.interrupt()
	require.NoDirExists(t, filepath.Join("/proc", shops[0]))
}

// listChildren returns the IDs of the processes that the threads of the process pid have started.
func listChildren(t *testing.T, pid int) (pids []string) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	if lists == nil {
		t.Skip("only Linux lists the children of a process")
	}
	for _, list := range lists {
		some, err := os.ReadFile(list)
		require.NoError(t, err)
		pids = append(pids, strings.Fields(string(some))...)
	}
	return pids
}

// A page of another site cannot kill the shop.
func TestCheckoutRefusesOtherSites(t *testing.T) {
	t.Parallel()
	checkout := startCheckout(t, buildProgram(t, "checkout"))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, checkout.pageURL+"/kill?held=0", nil)
	require.NoError(t, err)
	req.Header.Set("Origin", "https://example.com")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
}

// checkout is a running checkout program.
type checkout struct {
	t         *testing.T
	cmd       *exec.Cmd
	output    *bufio.Reader
	pageURL   string
	interrupt func() // interrupts the program, and waits until the process ends
}

// environWithoutStores returns the environment without the variables that choose a store.
func environWithoutStores() (env []string) {
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "DATABASE_URL=") && !strings.HasPrefix(variable, "REDIS_URL=") {
			env = append(env, variable)
		}
	}
	return env
}

// runCheckout runs the program until the process ends, and returns the output.
func runCheckout(t *testing.T, program string, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	var complaints strings.Builder
	cmd.Stderr = &complaints
	output, err := cmd.Output()
	require.NoError(t, err, "%s%s", output, &complaints)
	return string(output)
}

// startCheckout starts the program, and waits until the program serves the page. At the end of the test, startCheckout
// interrupts the program and the processes that the program has started, as Ctrl-C in a terminal does.
func startCheckout(t *testing.T, program string, args ...string) *checkout {
	t.Helper()
	return startCheckoutOn(t, "", program, args...)
}

// startCheckoutOn is startCheckout with the store that the variable store ("NAME=value") of the environment chooses.
func startCheckoutOn(t *testing.T, store, program string, args ...string) *checkout {
	t.Helper()
	args = append([]string{"-listen", "127.0.0.1:0"}, args...)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Env = append(environWithoutStores(), store)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stop := sync.OnceFunc(func() {
		assert.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
		assert.NoError(t, cmd.Wait())
	})
	t.Cleanup(stop)
	c := &checkout{t: t, cmd: cmd, output: bufio.NewReader(output), interrupt: stop}
	c.pageURL = c.readAfter("Open ")
	return c
}

// readAfter reads the next line of the output, requires the given prefix, and returns the rest of the line.
func (c *checkout) readAfter(prefix string) string {
	c.t.Helper()
	line, err := c.output.ReadString('\n')
	require.NoError(c.t, err)
	rest, ok := strings.CutPrefix(line, prefix)
	require.True(c.t, ok, line)
	return strings.TrimSpace(rest)
}
