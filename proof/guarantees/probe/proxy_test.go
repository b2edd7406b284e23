package probe_test

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// proxyDecisions are the decisions of the proxy with default flags. After the death of a proxy, the proxy refuses because the
// service may have acted.
var proxyDecisions = withDecisions(guardedDecisions, map[string]string{
	"key-missing": "executed",
	"after-death": "unknown",
})

// TestProbeFindsNothingInTheProxy has two proxies on one store, in front of a service that charges for each request. One of the
// proxies is killed.
func TestProbeFindsNothingInTheProxy(t *testing.T) {
	t.Parallel()
	program := buildProgram(t, "cmd/idempotency-proxy")
	for _, row := range []struct {
		name    string
		flags   []string
		decided map[string]string
	}{
		{"default", nil, proxyDecisions},
		{"waits", []string{"-required", "-reuse-status", "422", "-wait", "10s"}, withDecisions(proxyDecisions, map[string]string{
			"key-missing": "400", "other-content": "422", "while-running": "waits",
		})},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			upstream, charges := startUnguarded(t)
			storeFile := filepath.Join(t.TempDir(), "store")
			store := "redis://:" + servertest.RedisPassword() + "@" + servertest.Redis(t).Addr()
			require.NoError(t, os.WriteFile(storeFile, []byte(store), 0o600))
			flags := append([]string{
				"-upstream", upstream, "-store-file", storeFile, "-user-header", "X-User", "-methods", "POST,PUT", "-lease", lease.String(),
			}, row.flags...)
			first, firstURL := startProxy(t, program, flags)
			_, secondURL := startProxy(t, program, flags)
			payments := describePayments()
			payments.URLs = []string{firstURL, secondURL}
			payments.As = func(r *http.Request, user string) {
				r.Header.Set("X-User", user)
				r.Host = "payments.test" // a part of the key
			}
			payments.Effects = func(context.Context) (int, error) { return int(charges.Load()), nil }
			payments.Kill, payments.Start = first.kill, first.start
			requireNothingFound(t, payments, row.decided, nil)
		})
	}
}

// TestProbeFindsNothingInFrontOfForeignServices has a proxy in front of services on Express and in Python that ignore keys.
func TestProbeFindsNothingInFrontOfForeignServices(t *testing.T) {
	t.Parallel()
	program := buildProgram(t, "cmd/idempotency-proxy")
	foreign, err := filepath.Abs(filepath.Join("..", "..", "compat", "foreign"))
	require.NoError(t, err)
	install := t.TempDir()
	require.NoError(t, os.CopyFS(install, os.DirFS(foreign)))
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = install
	output, err := npm.CombinedOutput()
	require.NoError(t, err, "%s", output)
	for name, command := range map[string][]string{
		"Express": {"node", filepath.Join(install, "express.mjs")},
		"Python":  {"python3", filepath.Join(install, "payments.py")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := servertest.PickAddress(t)
			_, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			directory := t.TempDir()
			upstream := &process{newCommand: func() *exec.Cmd {
				return exec.Command(command[0], append(command[1:], port, directory, "no keys")...)
			}}
			upstream.startForTest(t)
			require.Eventually(t, func() bool {
				_, err := testservice.ReadNumber(t.Context(), "http://"+address+"/count")
				return err == nil
			}, 30*time.Second, 10*time.Millisecond)

			storeFile := filepath.Join(t.TempDir(), "store")
			store := "redis://:" + servertest.RedisPassword() + "@" + servertest.Redis(t).Addr()
			require.NoError(t, os.WriteFile(storeFile, []byte(store), 0o600))
			first, url := startProxy(t, program, []string{"-upstream", "http://" + address, "-store-file", storeFile,
				"-user-header", "X-User", "-methods", "POST,PUT", "-lease", lease.String()})
			payments := describePayments()
			payments.URLs, payments.Failing, payments.Stream = []string{url}, nil, nil
			payments.As = func(r *http.Request, user string) { r.Header.Set("X-User", user) }
			payments.Effects = func(ctx context.Context) (int, error) { return testservice.ReadNumber(ctx, "http://"+address+"/count") }
			payments.Kill, payments.Start, payments.Deaths = first.kill, first.start, max(4, effort.Of(50))
			report, err := probe.MakeChecks(t.Context(), payments, nil)
			require.NoError(t, err)
			for _, result := range report.Results {
				assert.NotEqual(t, probe.Failed, result.Status, result.Explain())
			}
			// The services are so fast that few deaths hit a request. Then the check of deaths is partly made.
			for _, name := range []string{"replay", "replay-after-restart", "at-once-100", "other-user", "deaths"} {
				assert.True(t, slices.ContainsFunc(report.Results, func(r probe.Result) bool {
					return r.Name == name && (r.Status == probe.Passed || name == "deaths" && r.Status == probe.PartlyMade)
				}), name)
			}
		})
	}
}

// TestProbeFindsTheServiceWithoutTheProxy shows that the service behind the proxy is not idempotent by itself.
func TestProbeFindsTheServiceWithoutTheProxy(t *testing.T) {
	t.Parallel()
	upstream, charges := startUnguarded(t)
	payments := describePayments()
	payments.URLs = []string{upstream}
	payments.Effects = func(context.Context) (int, error) { return int(charges.Load()), nil }
	report, err := probe.MakeChecks(t.Context(), payments, nil)
	require.NoError(t, err)
	failed := make(map[string]bool)
	for _, result := range report.Results {
		failed[result.Name] = result.Status == probe.Failed
	}
	for _, name := range []string{"replay", "at-once-2", "at-once-100", "cut-after-request", "client-timeout", "stream"} {
		assert.True(t, failed[name], name)
	}
}

// buildProgram builds a program of the workspace, whose directory is given from the root.
func buildProgram(t *testing.T, directory string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), filepath.Base(directory))
	output, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../../../"+directory).CombinedOutput()
	require.NoError(t, err, "%s", output)
	return file
}

// startProxy starts a proxy at an address of its own.
func startProxy(t *testing.T, program string, flags []string) (p *process, url string) {
	t.Helper()
	address := servertest.PickAddress(t)
	p = &process{
		newCommand: func() *exec.Cmd { return exec.Command(program, append([]string{"-listen", address}, flags...)...) },
		isReady:    func(line string) bool { return strings.Contains(line, `"serving"`) },
	}
	p.startForTest(t)
	return p, "http://" + address
}

// startUnguarded starts a service that charges for each request.
func startUnguarded(t *testing.T) (url string, charges *atomic.Int64) {
	t.Helper()
	charges = new(atomic.Int64)
	pay := func(answer func(http.ResponseWriter, string)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			receipt, ok := chargeRequest(w, r, func(context.Context, int) (string, error) {
				charges.Add(1)
				return rand.Text(), nil
			})
			if ok {
				answer(w, receipt)
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", pay(answerPayment))
	mux.HandleFunc("PUT /payments", pay(answerPayment))
	mux.HandleFunc("POST /statements", pay(answerStatement))
	mux.HandleFunc("POST /failures", answerFailure)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, charges
}
