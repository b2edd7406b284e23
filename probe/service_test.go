package probe_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/faulty"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// startInstance starts one instance of the payment service in this process.
func startInstance(t *testing.T, fault faulty.Fault) probe.Service {
	t.Helper()
	directory := t.TempDir()
	service := describePayments(directory)
	service.URLs = []string{startServer(t, faulty.New(directory, fault))}
	return service
}

func TestServiceFaultsAreReportedTogether(t *testing.T) {
	_, err := probe.MakeChecks(t.Context(), probe.Service{
		URLs:    []string{"localhost:8080"},
		Kill:    func(context.Context) error { return nil },
		Only:    []string{"replays"},
		Decided: map[string]string{"colour": "blue"},
		Bound:   -time.Second,
	}, nil)
	require.ErrorIs(t, err, probe.ErrInvalidService)
	for _, fault := range []string{"URLs", "Request is nil", "Kill and Start", `"replays"`, `"colour"`, "negative"} {
		assert.ErrorContains(t, err, fault)
	}
}

func TestServiceMustExecuteAValidRequest(t *testing.T) {
	service := startInstance(t, faulty.None)
	service.Request = service.Invalid
	_, err := probe.MakeChecks(t.Context(), service, nil)
	require.ErrorIs(t, err, probe.ErrNotExecuted)
	assert.ErrorContains(t, err, "400 Bad Request")
	assert.ErrorContains(t, err, "curl -i")
}

func TestChecksThatLackAPartAreNotPassed(t *testing.T) {
	payments := startInstance(t, faulty.None)
	service := probe.Service{URLs: payments.URLs, Request: payments.Request, Bound: payments.Bound}
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	statuses := make(map[probe.Status][]string)
	for _, result := range report.Results {
		statuses[result.Status] = append(statuses[result.Status], result.Name)
		if result.Status != probe.Passed {
			assert.NotEmpty(t, result.Detail, result.Name)
		}
	}
	assert.ElementsMatch(t, statuses[probe.NotMade], []string{"replay-elsewhere", "replay-after-restart", "other-content",
		"other-content-at-once", "other-route", "other-user", "invalid-request", "failed-request", "stream", "deaths"})
	assert.ElementsMatch(t, statuses[probe.Passed], []string{"compressed-answer", "told"}, "without Effects, nothing else is complete")
	assert.Empty(t, statuses[probe.Failed])
}

func TestSkippedChecksHaveAReason(t *testing.T) {
	service := startInstance(t, faulty.LosesStatus)
	service.Skip = map[string]string{"replay": "ticket 17"}
	service.Only = []string{"replay", "replay-later"}
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	assert.Equal(t, probe.Skipped, report.Results[0].Status)
	assert.Equal(t, "ticket 17", report.Results[0].Detail)
	assert.Equal(t, probe.Failed, report.Results[1].Status)
	assert.True(t, report.HasFailures())
	assert.Equal(t, len(report.Results)-1, report.Count(probe.Skipped))
}

func TestAnotherDecisionFails(t *testing.T) {
	service := startInstance(t, faulty.None)
	service.Only = []string{"other-content"}
	service.Decided = map[string]string{"other-content": "422"}
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	assert.False(t, report.HasFailures())
	assert.Contains(t, report.Decisions(), probe.Decision{Name: "other-content", Value: "422"})

	service.Decided = map[string]string{"other-content": "409"}
	report, err = probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	assert.True(t, report.HasFailures())
}

// TestRequestsAreBounded also shows that a check which could not send its requests is not passed.
func TestRequestsAreBounded(t *testing.T) {
	service := startInstance(t, faulty.None)
	handler := faulty.New(t.TempDir(), faulty.None)
	var received atomic.Int64
	service.Effects = nil
	service.URLs = []string{startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received.Add(1)
		handler.ServeHTTP(w, r)
	}))}
	service.MaxRequests = 30
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	assert.Equal(t, 30, report.Requests)
	assert.LessOrEqual(t, received.Load(), int64(30))
	for _, result := range report.Results {
		if result.Name == "large-body" {
			assert.Equal(t, probe.NotMade, result.Status)
			assert.Contains(t, result.Detail, "bound on requests")
		}
	}
	assert.Zero(t, report.Count(probe.Failed))
}

func TestChecksEndWithTheContext(t *testing.T) {
	service := startInstance(t, faulty.None)
	ctx, cancel := context.WithCancelCause(t.Context())
	report, err := probe.MakeChecks(ctx, service, func(event probe.Event) {
		if event.Result == nil && event.Check.Name == "at-once-2" {
			cancel(errors.New("interrupted"))
		}
	})
	require.NoError(t, err)
	for _, result := range report.Results[4:] {
		assert.Contains(t, []probe.Status{probe.NotMade, probe.Passed}, result.Status, result.Name)
		if result.Name != "told" {
			assert.Equal(t, probe.NotMade, result.Status, result.Explain())
		}
	}
}

// TestDuplicateThatOvertakesTheRequestIsNoFault delays a request on its way until its duplicate is being executed.
func TestDuplicateThatOvertakesTheRequestIsNoFault(t *testing.T) {
	t.Parallel()
	var mutex sync.Mutex
	answers := make(map[string]string) // by key; empty while the request is being executed
	delayedKey, isOvertaken := "", make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		mutex.Lock()
		const keysBefore = 4 // which the probe learns from
		if len(answers) == keysBefore && delayedKey == "" {
			delayedKey = key
			mutex.Unlock()
			<-isOvertaken
			mutex.Lock()
		}
		answer, isKnown := answers[key]
		if !isKnown {
			answers[key] = ""
			if key == delayedKey {
				close(isOvertaken)
			}
			mutex.Unlock()
			time.Sleep(50 * time.Millisecond) // the execution
			mutex.Lock()
			answer = rand.Text()
			answers[key] = answer
		}
		mutex.Unlock()
		if answer == "" {
			w.WriteHeader(http.StatusConflict)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	result := requireResult(t, probe.Service{
		URLs:    []string{server.URL},
		Request: testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10}`),
		Only:    []string{"while-running"},
		Effects: func(context.Context) (int, error) {
			mutex.Lock()
			defer mutex.Unlock()
			return len(answers), nil
		},
	}, "while-running")
	assert.Equal(t, probe.Passed, result.Status, result.Explain())
	assert.Equal(t, []probe.Decision{{Name: "while-running", Value: "409"}}, result.Decisions)
	assert.NotEmpty(t, delayedKey)
}

// TestCurlCommandsSendTheSameRequest runs the command of a failed check in a shell.
func TestCurlCommandsSendTheSameRequest(t *testing.T) {
	tests := []struct {
		name, check string
		body        string
	}{
		{name: "quotes", check: "replay", body: "{\"amount\": 10, \"memo\": \"it's $HOME `x` \\\\ ü\"}"},
		{name: "padding", check: "large-body", body: `{"amount": 10}`},
		{name: "file name", check: "replay", body: "@/etc/passwd"},
		{name: "binary", check: "compressed-body", body: `{"amount": 10}`},
		{name: "chunked", check: "chunked-body", body: `{"amount": 10}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			received := make(chan receivedRequest, 100)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				received <- receivedRequest{r.Method, r.URL.String(), r.Header, string(body)}
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, time.Now().String()) // no replay has the same body
			}))
			t.Cleanup(server.Close)
			result := requireResult(t, probe.Service{
				URLs: []string{server.URL},
				Request: func(string) *http.Request {
					r, err := http.NewRequest(http.MethodPost, "/payments?a=1&b='2'", strings.NewReader(test.body))
					require.NoError(t, err)
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("X-Empty", "")
					r.Header.Set("Authorization", "Bearer secret")
					return r
				},
				Only: []string{test.check},
			}, test.check)
			require.Equal(t, probe.Failed, result.Status, result.Explain())
			assert.NotContains(t, result.Explain(), "secret")

			shown := result.Exchanges[0].Curl
			command := exec.CommandContext(t.Context(), "sh", "-c", shown)
			command.Env = append(command.Environ(), "AUTHORIZATION=Bearer secret")
			output, err := command.CombinedOutput()
			require.NoError(t, err, "%s\n%s", shown, output)
			close(received)
			var fromProbe []receivedRequest
			for request := range received {
				for _, name := range []string{"User-Agent", "Accept", "Content-Length", "Accept-Encoding", "Expect"} {
					request.header.Del(name)
				}
				fromProbe = append(fromProbe, request)
			}
			fromCurl := fromProbe[len(fromProbe)-1]
			assert.Contains(t, fromProbe[:len(fromProbe)-1], fromCurl)
		})
	}
}

func TestReportsHaveNoSecrets(t *testing.T) {
	var count atomic.Int64
	service := probe.Service{
		URLs: []string{startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "session=s3cret")
			w.Header().Set("X-Auth-Token", "s3cret")
			w.Header().Set("Etag", `"v1"`)
			w.Header().Set("X-Terminal", "\u009b31m")
			_, _ = fmt.Fprintf(w, "payment %d\r\n", count.Add(1))
		}))},
		Request: func(string) *http.Request {
			r, err := http.NewRequest(http.MethodPost, "/payments?api_key=s3cret&currency=EUR", strings.NewReader("amount=10"))
			require.NoError(t, err)
			r.Header.Set("X-Api-Key", "s3cret")
			r.Header.Set("Cookie", "session=s3cret")
			return r
		},
		Only: []string{"replay"},
	}
	result := requireResult(t, service, "replay")
	require.Equal(t, probe.Failed, result.Status)
	text := result.Explain()
	assert.NotContains(t, text, "s3cret")
	assert.NotContains(t, text, "\u009b")
	assert.Contains(t, text, "/payments?api_key=...&currency=EUR'")
	assert.Contains(t, text, "Etag: \"v1\"\n")
	assert.Contains(t, text, "payment 5")

	service.URLs[0] = strings.Replace(service.URLs[0], "//", "//alice:s3cret@", 1)
	_, err := probe.MakeChecks(t.Context(), service, nil)
	require.ErrorIs(t, err, probe.ErrInvalidService)
	assert.ErrorContains(t, err, "set the header Authorization instead")
	assert.NotContains(t, err.Error(), "s3cret")
}

// TestAnswersDoNotChangeTheTerminal has bodies that overwrite their line, or change the colour.
func TestAnswersDoNotChangeTheTerminal(t *testing.T) {
	for _, body := range []string{"%d\rpassed", "%d\x1b[31m", "%d\u202e"} {
		var count atomic.Int64
		service := probe.Service{
			URLs: []string{startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprintf(w, body, count.Add(1))
			}))},
			Request: testservice.BuildJSON(http.MethodPost, "/payments", "{}"),
			Only:    []string{"replay"},
		}
		result := requireResult(t, service, "replay")
		require.Equal(t, probe.Failed, result.Status)
		assert.Contains(t, result.Explain(), "bytes, not a text)")
		assert.NotContains(t, result.Explain(), body[2:])
	}
}

// TestInterruptedChecksAreReported has a Kill that fails during a request.
func TestInterruptedChecksAreReported(t *testing.T) {
	service := startInstance(t, faulty.None)
	service.Kill = func(context.Context) error { return errors.New("no permission") }
	service.Start = func(context.Context) error { return nil }
	service.Only = []string{"deaths"}
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	assert.True(t, report.IsInterrupted())
	assert.False(t, report.HasFailures())
	goroutines := make([]byte, 1<<20)
	goroutines = goroutines[:runtime.Stack(goroutines, true)]
	assert.NotContains(t, string(goroutines), "probe.(*client).send")
}

// TestDecisionsThatNobodySaw shows that Decided is not taken for fulfilled without a check.
func TestDecisionsThatNobodySaw(t *testing.T) {
	service := startInstance(t, faulty.None)
	service.Only = []string{"told"}
	service.Decided = map[string]string{"after-death": "answered"}
	result := requireResult(t, service, "told")
	assert.Equal(t, probe.PartlyMade, result.Status)
	assert.Contains(t, result.Detail, "after-death")
}

func TestOtherMustDiffer(t *testing.T) {
	service := startInstance(t, faulty.None)
	service.Other, service.Only = service.Request, []string{"other-content"}
	result := requireResult(t, service, "other-content")
	assert.Equal(t, probe.NotMade, result.Status)
	assert.Contains(t, result.Detail, "the same as Service.Request")
}

// receivedRequest is a request as a server received it.
type receivedRequest struct {
	method, address string
	header          http.Header
	body            string
}
