//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/faulty"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// probedVariable is the environment variable with the address, the directory and the fault of a payment service. The
// variable makes the test binary run this service.
const probedVariable = "IDEMPOTENCY_TEST_PROBED"

// serveProbed serves payments until the process is killed.
func serveProbed(setting string) {
	words := strings.SplitN(setting, "|", 3)
	fmt.Println(http.ListenAndServe(words[0], faulty.New(words[1], faulty.Fault(words[2]))))
	os.Exit(1)
}

// probedService is a payment service that the command starts.
type probedService struct {
	address   string
	directory string
	args      []string // of the command
}

// newProbedService returns a service with the given fault, and the arguments of a command that probes the service.
func newProbedService(t *testing.T, fault faulty.Fault, args ...string) probedService {
	t.Helper()
	s := probedService{address: servertest.PickAddress(t), directory: t.TempDir()}
	start := fmt.Sprintf("%s='%s|%s|%s' exec '%s'", probedVariable, s.address, s.directory, fault, programPath)
	s.args = append([]string{"probe", "http://" + s.address + "/payments", "--start", start,
		"--effects", "cat '" + filepath.Join(s.directory, "charges") + "' 2>/dev/null | wc -l",
		"--data", `{"amount": 10, "takes": "40ms"}`, "--other-data", `{"amount": 20}`, "--other-route", "PUT /payments",
		"--invalid-data", `{"amount": 0}`, "--header", "Authorization: alice", "--stranger-header", "Authorization: bob",
		"--bound", "5s", "--deaths", "4"}, args...)
	return s
}

// requireEnded requires that no process listens at the address of the service.
func (s probedService) requireEnded(t *testing.T) {
	t.Helper()
	connection, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", s.address)
	if err == nil {
		_ = connection.Close()
	}
	assert.Error(t, err, "the service is still running")
}

func TestProbePassesACorrectService(t *testing.T) {
	t.Parallel()
	service := newProbedService(t, faulty.None)
	got := runProcess(t, nil, service.args...)
	assert.Zero(t, got.status, got.stdout+got.stderr)
	assert.Regexp(t, `(?m)^deaths +passed +the process was killed 4 times, in`, got.stdout)
	assert.Regexp(t, `(?m)^failed-request +not made +--failing-data is not set`, got.stdout)
	assert.Regexp(t, `(?m)^  other-content +422`, got.stdout)
	assert.Contains(t, got.stdout, " 0 failed, ")
	assert.Empty(t, got.stderr, "standard error is no terminal, so there is no progress")
	service.requireEnded(t)
}

func TestProbeFindsAFault(t *testing.T) {
	t.Parallel()
	service := newProbedService(t, faulty.LosesStatus, "--only", "replay,replay-later", "--skip", "replay-later=ticket 17, soon")
	got := runProcess(t, nil, service.args...)
	assert.Equal(t, 1, got.status, got.stdout+got.stderr)
	assert.Regexp(t, `(?m)^replay +failed +the retry got 200 OK, and the first request 201 Created`, got.stdout)
	assert.Regexp(t, `(?m)^replay-later +skipped +ticket 17, soon`, got.stdout)
	assert.Contains(t, got.stdout, "curl -i 'http://"+service.address+"/payments'")
	service.requireEnded(t)
}

func TestProbeWritesReports(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "probe.xml")
	service := newProbedService(t, faulty.LosesStatus, "--only", "replay,key-case,failed-request", "--json", "--junit", file)
	got := runProcess(t, nil, service.args...)
	assert.Equal(t, 1, got.status, got.stderr)
	var report probe.Report
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &report))
	assert.Equal(t, 1, report.Count(probe.Failed))
	assert.Equal(t, 1, report.Count(probe.Passed))

	written, err := os.ReadFile(file)
	require.NoError(t, err)
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Name    string `xml:"name,attr"`
			Failure string `xml:"failure"`
		} `xml:"testcase"`
	}
	require.NoError(t, xml.Unmarshal(written, &suite))
	assert.Equal(t, len(probe.Checks()), suite.Tests)
	assert.Equal(t, 1, suite.Failures)
	assert.Equal(t, suite.Tests-2, suite.Skipped)
	assert.Equal(t, "replay", suite.Cases[0].Name)
	assert.Contains(t, suite.Cases[0].Failure, "curl -i")
}

func TestProbeRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		args       []string
		wantStatus int
		wantError  string
	}{
		{"public address", []string{"http://192.0.2.1/payments"}, 4, "neither loopback nor private: use --remote"},
		{"no address", []string{"localhost:8080"}, 2, "want an address like"},
		{"unknown check", []string{"http://127.0.0.1:9/", "--only", "replays"}, 2, `there is no check "replays"`},
		{"unknown decision", []string{"http://127.0.0.1:9/", "--decided", "colour=blue"}, 2, `there is no decision "colour"`},
		{"header", []string{"http://127.0.0.1:9/", "--header", "Authorization"}, 2, "--header: want 'Name: value'"},
		{"file", []string{"http://127.0.0.1:9/", "--data", "@/nonexistent"}, 2, "--data: open /nonexistent"},
		{"password", []string{"http://alice:s3cret@127.0.0.1:9/"}, 2, "want --header 'Authorization: ...' instead"},
		{"blank body", []string{"http://127.0.0.1:9/", "--data", " "}, 3, "must execute a valid request"},
		{"ended start", []string{"http://127.0.0.1:9/", "--start", "echo done"}, 3, "the service has ended: exit status 0: done"},
		{"route", []string{"http://127.0.0.1:9/", "--other-route", "/payments"}, 2, "--other-route: want a method and a path"},
		{"no service", []string{"http://127.0.0.1:9/"}, 3, "must execute a valid request"},
		{"failing start", []string{"http://127.0.0.1:9/", "--start", "echo broken; exit 3"}, 3,
			"the service has ended: exit status 3: broken"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := runProcess(t, nil, append([]string{"probe"}, test.args...)...)
			assert.Equal(t, test.wantStatus, got.status, got.stdout+got.stderr)
			assert.Contains(t, got.stderr, test.wantError)
		})
	}
}

func TestEffectsThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, effects string
		status        int
		says          string
	}{
		{"no number", "echo none", 2, `the probe cannot begin: --effects: want a number, and not "none"`},
		{"error", "echo no database >&2; exit 1", 2, "--effects: exit status 1: no database"},
		{"other effects", "echo 7", 3, "exactly once; after the answer 201 Created to the first request, --effects counts 0 more"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			service := newProbedService(t, faulty.None, "--effects", test.effects, "--bound", "1s", "--only", "replay")
			got := runProcess(t, nil, service.args...)
			assert.Equal(t, test.status, got.status, got.stdout)
			assert.Contains(t, got.stderr, test.says)
		})
	}
}

// TestIncompleteChecksAreNoSuccess shows that CI cannot take a probe for passed that made no check.
func TestIncompleteChecksAreNoSuccess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "probe.xml")
	service := newProbedService(t, faulty.None, "--max-requests", "6", "--only", "replay,replay-later", "--junit", file)
	got := runProcess(t, nil, service.args...)
	assert.Equal(t, 3, got.status, got.stdout)
	assert.Contains(t, got.stderr, "the checks are not complete")
	assert.Regexp(t, `(?m)^replay-later +not made +the bound on requests is reached`, got.stdout)
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(written), `errors="2"`)

	service = newProbedService(t, faulty.None, "--only", "replay", "--junit", t.TempDir())
	got = runProcess(t, nil, service.args...)
	assert.Equal(t, 3, got.status, got.stdout)
	assert.Contains(t, got.stderr, "--junit: open")
	assert.Regexp(t, `(?m)^replay +passed`, got.stdout, "the report is printed nevertheless")
}

// TestAnotherServiceIsNotProbed has an old process on the port of the service.
func TestAnotherServiceIsNotProbed(t *testing.T) {
	t.Parallel()
	service := newProbedService(t, faulty.None, "--only", "replay")
	old, err := net.Listen("tcp", service.address)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, old.Close()) })
	got := runProcess(t, nil, service.args...)
	assert.Equal(t, 3, got.status, got.stdout)
	assert.Regexp(t, "the service has ended: exit status 1: .* address already in use", got.stderr)
}

// TestDetachedServiceIsEnded has a shell that ends before its service listens.
func TestDetachedServiceIsEnded(t *testing.T) {
	t.Parallel()
	service := newProbedService(t, faulty.None)
	file := filepath.Join(t.TempDir(), "process")
	service.args[3] = "sleep 600 & echo $! > '" + file + "'; exit 0"
	got := runProcess(t, nil, service.args...)
	assert.Equal(t, 3, got.status, got.stdout)
	assert.Contains(t, got.stderr, "the service has ended: exit status 0")
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	id, err := strconv.Atoi(strings.TrimSpace(string(written)))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id)) // Z is a process that nobody has waited for
		return err != nil || strings.Contains(string(state), ") Z ")
	}, waitLimit, 10*time.Millisecond)
}

func TestInterruptedProbeEndsTheService(t *testing.T) {
	t.Parallel()
	service := newProbedService(t, faulty.None, "--deaths", "10000", "--only", "deaths")
	interrupted := newCommand(t.Context(), nil, service.args...)
	require.NoError(t, interrupted.Start())
	require.Eventually(t, func() bool {
		charges, err := faulty.CountCharges(service.directory)
		return err == nil && charges > 6
	}, waitLimit, 10*time.Millisecond)
	require.NoError(t, interrupted.Process.Signal(syscall.SIGINT))
	var ended *exec.ExitError
	require.ErrorAs(t, interrupted.Wait(), &ended)
	assert.Equal(t, 3, ended.ExitCode())
	service.requireEnded(t)
}

func TestProbeComparesADescription(t *testing.T) {
	t.Parallel()
	description := filepath.Join("..", "..", "probe", "contract", "testdata", "openapi.yaml")
	got := runProcess(t, nil, "probe", "--openapi", description)
	assert.Equal(t, 1, got.status, got.stderr)
	assert.Regexp(t, `(?m)^POST /payments +key required +ok`, got.stdout)
	assert.Regexp(t, `(?m)^POST /search +key none +differs +declares no Idempotency-Key, and is no exception`, got.stdout)

	exceptions := filepath.Join(t.TempDir(), "exceptions")
	require.NoError(t, os.WriteFile(exceptions, []byte("POST /search: only reads\nPOST /gone: removed\n"), 0o600))
	got = runProcess(t, nil, "probe", "--openapi", description, "--exceptions", exceptions, "--json")
	assert.Equal(t, 1, got.status, got.stderr)
	assert.Contains(t, got.stdout, "names no operation")
	assert.Contains(t, got.stdout, `"exception": "only reads"`)

	service := newProbedService(t, faulty.LosesStatus)
	running := exec.CommandContext(t.Context(), "sh", "-c", service.args[3])
	require.NoError(t, running.Start())
	t.Cleanup(func() {
		_ = running.Process.Kill()
		_ = running.Wait()
	})
	require.Eventually(t, func() bool {
		connection, err := net.Dial("tcp", service.address)
		return err == nil && connection.Close() == nil
	}, waitLimit, 10*time.Millisecond)
	got = runProcess(t, nil, "probe", "http://"+service.address, "--openapi", description)
	assert.Equal(t, 1, got.status, got.stderr)
	assert.Regexp(t, `(?m)^POST /payments +key required +differs +replay: failed: the retry got 200 OK`, got.stdout)
	assert.Contains(t, got.stdout, "curl -i 'http://"+service.address+"/payments?currency=EUR'")

	got = runProcess(t, nil, "probe", "--openapi", filepath.Join(t.TempDir(), "none"))
	assert.Equal(t, 2, got.status)
	got = runProcess(t, nil, "probe", "--openapi", description, "--exceptions", description)
	assert.Equal(t, 2, got.status)
	assert.Contains(t, got.stderr, "line 3 of the exceptions has no reason")
}
