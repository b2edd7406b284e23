package compat_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// foreignService is a payment service in another language, with one seeded fault or none.
type foreignService struct {
	name      string
	fault     string
	command   []string // without the port, the directory and the fault
	foundBy   []string // the checks that find the fault
	decisions map[string]string
}

// TestProbeJudgesServicesInOtherLanguages probes services in JavaScript and Python, whose authors decided differently.
func TestProbeJudgesServicesInOtherLanguages(t *testing.T) {
	t.Parallel()
	express := []string{"node", filepath.Join(installExpress(t), "express.mjs")}
	script, err := filepath.Abs(filepath.Join("foreign", "payments.py"))
	require.NoError(t, err)
	python := []string{"python3", script}
	for _, service := range []foreignService{
		{name: "Express", command: express, decisions: map[string]string{
			"marker": "none", "while-running": "425", "other-content": "409", "other-user": "executed", "key-missing": "400",
			"key-quoted": "another", "invalid-request": "kept", "after-death": "answered"}},
		{name: "Express", fault: "records in memory", command: express, foundBy: []string{"replay-after-restart", "deaths"}},
		{name: "Express", fault: "no user", command: express, foundBy: []string{"other-user"}},
		{name: "Express", fault: "no keys", command: express, foundBy: []string{"replay", "at-once-2", "client-timeout"}},
		{name: "Python", command: python, decisions: map[string]string{
			"marker": "none", "other-content": "422", "other-user": "executed", "key-missing": "400", "key-quoted": "another",
			"invalid-request": "free", "after-death": "answered"}},
		{name: "Python", fault: "two transactions", command: python,
			foundBy: []string{"at-once-2", "at-once-20", "at-once-100"}},
		{name: "Python", fault: "no keys", command: python, foundBy: []string{"replay", "at-once-2", "client-timeout"}},
	} {
		t.Run(service.name+"/"+service.fault, func(t *testing.T) {
			t.Parallel()
			service.judge(t)
		})
	}
}

// installExpress installs the packages of the service in a directory of the test.
func installExpress(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "express.mjs"} {
		content, err := os.ReadFile(filepath.Join("foreign", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), content, 0o600))
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = directory
	output, err := install.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return directory
}

// judge starts the service, probes it, and compares the results.
func (s foreignService) judge(t *testing.T) {
	t.Helper()
	directory := t.TempDir()
	address := servertest.PickAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	var running *exec.Cmd
	start := func(context.Context) error {
		running = exec.Command(s.command[0], append(s.command[1:len(s.command):len(s.command)], port, directory, s.fault)...)
		running.Stderr = t.Output()
		return running.Start()
	}
	kill := func(context.Context) error {
		_ = running.Process.Kill()
		_ = running.Wait() // reports the signal
		return nil
	}
	require.NoError(t, start(t.Context()))
	t.Cleanup(func() { _ = kill(context.Background()) })
	require.Eventually(t, func() bool {
		connection, err := net.Dial("tcp", address)
		return err == nil && connection.Close() == nil
	}, 30*time.Second, 10*time.Millisecond)

	report, err := probe.MakeChecks(t.Context(), probe.Service{
		URLs:       []string{"http://" + address},
		Request:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10}`),
		Other:      testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 20}`),
		OtherRoute: testservice.BuildJSON(http.MethodPut, "/payments", `{"amount": 10}`),
		Invalid:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 0}`),
		As:         func(r *http.Request, user string) { r.Header.Set("Authorization", user) },
		Effects: func(ctx context.Context) (int, error) {
			return testservice.ReadNumber(ctx, "http://"+address+"/count")
		},
		Start: start, Kill: kill, Deaths: 8, Bound: 5 * time.Second,
		Skip: map[string]string{"compressed-body": "the services do not know gzip"},
	}, nil)
	require.NoError(t, err)
	var foundBy []string
	for _, result := range report.Results {
		if result.Status == probe.Failed {
			foundBy = append(foundBy, result.Name)
			if s.fault == "" {
				t.Error(result.Explain())
			}
		}
	}
	assert.Subset(t, foundBy, s.foundBy)
	for name, value := range s.decisions {
		assert.Contains(t, report.Decisions(), probe.Decision{Name: name, Value: value})
	}
}
