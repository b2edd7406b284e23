package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// scriptedServer answers the first request for each path with a handler of the test, and further requests with 201.
type scriptedServer struct {
	firstHandlers map[string]http.HandlerFunc // by path
	baseURL       string

	mu         sync.Mutex
	keysByPath map[string][]string // of all requests, by path
}

func newScriptedServer(t *testing.T, firstHandlers map[string]http.HandlerFunc) *scriptedServer {
	t.Helper()
	s := &scriptedServer{firstHandlers: firstHandlers, keysByPath: make(map[string][]string)}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.baseURL = server.URL
	return s
}

func (s *scriptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.keysByPath[r.URL.Path] = append(s.keysByPath[r.URL.Path], r.Header.Get("Idempotency-Key"))
	n := len(s.keysByPath[r.URL.Path])
	s.mu.Unlock()
	if n == 1 {
		s.firstHandlers[r.URL.Path](w, r)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// requireOneKey requires the given number of requests for path, all with the same key.
func (s *scriptedServer) requireOneKey(t *testing.T, path string, requests int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.keysByPath[path], requests)
	for _, key := range s.keysByPath[path] {
		require.NotEmpty(t, key)
		require.Equal(t, s.keysByPath[path][0], key)
	}
}

// programReport is the output of a program for one order.
type programReport struct {
	Status int
	Pauses []float64 // in seconds
	Bounds []float64 // timeouts of the attempts, in seconds
}

// clientPrograms has the commands that send orders by the module of package js, and by the Python program that readers copy. The
// arguments are the seconds that an attempt may take, and a URL for each order.
var clientPrograms = map[string]func(t *testing.T) []string{
	"JavaScript": func(t *testing.T) []string {
		t.Helper()
		node, err := exec.LookPath("node")
		servertest.Require(t, err)
		return []string{node, "testdata/send.mjs", "../client/js/index.js"}
	},
	"Python": func(t *testing.T) []string {
		t.Helper()
		python, err := exec.LookPath("python3")
		servertest.Require(t, err)
		if exec.CommandContext(t.Context(), python, "-c", "import requests").Run() != nil {
			servertest.Require(t, fmt.Errorf("requests: %w", exec.ErrNotFound))
		}
		return []string{python, "testdata/send.py", "client/send.py"}
	},
}

// maxPauseSeconds is the longest pause of a program before the next attempt.
const maxPauseSeconds = 60

// stallAnswer sends a part of an answer, and waits until the client closes the connection.
func stallAnswer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // so that net/http sees when the client closes the connection
	w.Header().Set("Content-Length", "100")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"retry":`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// firstAnswer is the first answer that a program gets to an order.
type firstAnswer struct {
	name        string
	handle      http.HandlerFunc
	leastPause  float64 // seconds that the answer asks the program to wait
	finalStatus int     // the status of the answer if the program must not repeat the order, and 0 otherwise
}

// stalledAnswers returns answers that end when the program's time for an attempt is over.
func stalledAnswers() []firstAnswer {
	return []firstAnswer{
		{name: "body that stalls", handle: stallAnswer},
		{name: "problem that stalls", handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			stallAnswer(w, r)
		}},
		{name: "header that stalls", handle: func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}},
	}
}

// promptAnswers returns answers that end, or break off, at once.
func promptAnswers() []firstAnswer {
	all := []firstAnswer{
		{name: "no Retry-After", handle: answerWith(503, "")},
		{name: "refused", handle: answerWith(402, ""), finalStatus: 402},
		{name: "conflict", handle: answerWith(409, ""), finalStatus: 409},
		{name: "invalid", handle: answerWith(422, `{"retry":"same-key"}`), finalStatus: 422},
		{name: "never", handle: answerProblem(503, `{"retry":"never"}`), finalStatus: 503},
		{name: "new key", handle: answerProblem(429, `{"retry":"new-key"}`), finalStatus: 429},
		{name: "same key", handle: answerProblem(409, `{"retry":"same-key"}`)},
		{name: "body that breaks off", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
	}
	for _, body := range []string{"", "[null]", "null", `{"retry":5}`, `{"type":7}`, `{"retry":"same-key","type":7}`} {
		all = append(all, firstAnswer{name: "problem " + body, handle: answerProblem(503, body)})
	}
	for value, least := range map[string]float64{
		"2": 2, "0": 0, "": 0, "-5": 0, "soon": 0, "1.5": 0, "1e3": 0, "Infinity": 0, "NaN": 0, "0x10": 0,
		"61": maxPauseSeconds, "2147484": maxPauseSeconds, "2592000": maxPauseSeconds, "99999999999999999999": maxPauseSeconds,
		strings.Repeat("9", 5000): 0, "Fri, 31 Dec 2199 23:59:59 GMT": 0, "Fri, 31 Dec 1999 23:59:59 GMT": 0,
	} {
		for _, status := range []int{409, 503} {
			name := fmt.Sprintf("%d, Retry-After %.20q", status, value)
			all = append(all, firstAnswer{name: name, handle: askForPause(status, value), leastPause: least})
		}
	}
	return all
}

func answerWith(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func answerProblem(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		answerWith(status, body)(w, r)
	}
}

// askForPause answers with status and the header Retry-After.
func askForPause(status int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(status)
	}
}

// The programs repeat an order with the same key, even if the answer stalls or breaks off. Before each repetition, the programs
// pause for at least a tenth of a second and at most maxPauseSeconds, whatever Retry-After says. Only a final answer ends the
// attempts.
func TestClientPrograms(t *testing.T) {
	t.Parallel()
	for program, command := range clientPrograms {
		for attemptSeconds, answers := range map[string][]firstAnswer{"20": promptAnswers(), "1": stalledAnswers()} {
			t.Run(fmt.Sprintf("%s, %d answers", program, len(answers)), func(t *testing.T) {
				t.Parallel()
				first := make(map[string]http.HandlerFunc)
				for i, answer := range answers {
					first[fmt.Sprint("/", i)] = answer.handle
				}
				server := newScriptedServer(t, first)
				args := append(command(t), attemptSeconds)
				for i := range answers {
					args = append(args, fmt.Sprint(server.baseURL, "/", i))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, args[0], args[1:]...)
				cmd.Stderr = t.Output()
				output, err := cmd.Output()
				work := json.NewDecoder(bytes.NewReader(output))
				for i, answer := range answers {
					var report programReport
					require.NoError(t, work.Decode(&report), "%s: %v", answer.name, err)
					report.requireExpected(t, answer)
					server.requireOneKey(t, fmt.Sprint("/", i), len(report.Bounds))
				}
				require.NoError(t, err)
			})
		}
	}
}

// requireExpected compares the report with the expected reaction to the first answer.
func (report programReport) requireExpected(t *testing.T, answer firstAnswer) {
	t.Helper()
	if answer.finalStatus != 0 {
		require.Equal(t, programReport{Status: answer.finalStatus, Pauses: []float64{}, Bounds: []float64{60}}, report, answer.name)
		return
	}
	require.Equal(t, http.StatusCreated, report.Status, answer.name)
	require.Equal(t, []float64{60, 60}, report.Bounds, answer.name)
	require.Len(t, report.Pauses, 1, answer.name)
	require.GreaterOrEqual(t, report.Pauses[0], max(answer.leastPause, 0.1), answer.name)
	require.LessOrEqual(t, report.Pauses[0], float64(maxPauseSeconds), answer.name)
}

// The command of docs/clients.md gives up attempts and pauses that take too long. Readers can run the command again, because
// each attempt sends the same key.
func TestCommandThatReadersCopy(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	servertest.Require(t, err)
	page, err := os.ReadFile("../docs/clients.md")
	require.NoError(t, err)
	command := regexp.MustCompile("(?s)\n(curl .*?)\n```").FindStringSubmatch(string(page))
	require.NotNil(t, command)
	for name, test := range map[string]struct {
		firstHandler http.HandlerFunc
		wantRequests int
		wantOutput   string
	}{
		"malformed": {askForPause(503, "soon"), 2, "201"},
		"negative":  {askForPause(503, "-5"), 2, "201"},
		"missing":   {answerWith(503, ""), 2, "201"},
		"very long": {askForPause(503, "2592000"), 1, "503"},
		"stalling":  {stallAnswer, 2, "201"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newScriptedServer(t, map[string]http.HandlerFunc{"/payments": test.firstHandler})
			script := strings.NewReplacer(
				"https://payments.example.com", server.baseURL, "curl ", curl+" --silent --write-out '%{http_code}' ")
			text := script.Replace(command[1])
			if name == "stalling" {
				text = strings.Replace(text, "--max-time 60", "--max-time 2", 1)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", text)
			cmd.WaitDelay = time.Second // because sh may leave curl behind
			cmd.Env = append(os.Environ(), "key=order-1")
			output, err := cmd.Output()
			require.NoError(t, err)
			require.Contains(t, string(output), test.wantOutput)
			server.requireOneKey(t, "/payments", test.wantRequests)
		})
	}
}
