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

// clerk answers the first request for each path as it is told, and further ones with 201.
type clerk struct {
	first map[string]http.HandlerFunc // by path
	url   string

	mu   sync.Mutex
	keys map[string][]string // of the requests, by path
}

func newClerk(t *testing.T, first map[string]http.HandlerFunc) *clerk {
	t.Helper()
	c := &clerk{first: first, keys: make(map[string][]string)}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *clerk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.keys[r.URL.Path] = append(c.keys[r.URL.Path], r.Header.Get("Idempotency-Key"))
	n := len(c.keys[r.URL.Path])
	c.mu.Unlock()
	if n == 1 {
		c.first[r.URL.Path](w, r)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// requireOneKey compares how many requests came for a path. All of them had one key.
func (c *clerk) requireOneKey(t *testing.T, path string, requests int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.keys[path], requests)
	for _, key := range c.keys[path] {
		require.NotEmpty(t, key)
		require.Equal(t, c.keys[path][0], key)
	}
}

// told is what a program prints of its work.
type told struct {
	Status int
	Pauses []float64 // in seconds
	Bounds []float64 // of its attempts, in seconds
}

// copied are the programs that readers copy, as commands. They take how many seconds an attempt may take, and URLs.
var copied = map[string]func(t *testing.T) []string{
	"pay.js": func(t *testing.T) []string {
		t.Helper()
		node, err := exec.LookPath("node")
		servertest.Require(t, err)
		return []string{node, "testdata/pay.mjs", "browser/pay.js"}
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

// longestPause is how long a program may wait before it sends an order again, in seconds.
const longestPause = 60

// stalling sends a part of an answer, and no more until the client leaves.
func stalling(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else net/http does not see that the client leaves
	w.Header().Set("Content-Length", "100")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"retry":`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// incident is the first answer that a program gets.
type incident struct {
	name  string
	meet  http.HandlerFunc
	least float64 // pause that it asks for, in seconds
	final int     // its status, if the program must not send the order again
}

// stalls are incidents that end with the patience of a program.
func stalls() []incident {
	return []incident{
		{name: "body that stalls", meet: stalling},
		{name: "problem that stalls", meet: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			stalling(w, r)
		}},
		{name: "header that stalls", meet: func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}},
	}
}

// incidents are those that a program notices at once.
func incidents() []incident {
	all := []incident{
		{name: "no Retry-After", meet: answering(503, "")},
		{name: "refused", meet: answering(402, ""), final: 402},
		{name: "conflict", meet: answering(409, ""), final: 409},
		{name: "invalid", meet: answering(422, `{"retry":"same-key"}`), final: 422},
		{name: "never", meet: answeringProblem(503, `{"retry":"never"}`), final: 503},
		{name: "new key", meet: answeringProblem(429, `{"retry":"new-key"}`), final: 429},
		{name: "same key", meet: answeringProblem(409, `{"retry":"same-key"}`)},
		{name: "body that breaks off", meet: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
	}
	for _, body := range []string{"", "[null]", "null", `{"retry":5}`, `{"type":7}`, `{"retry":"same-key","type":7}`} {
		all = append(all, incident{name: "problem " + body, meet: answeringProblem(503, body)})
	}
	for value, least := range map[string]float64{
		"2": 2, "0": 0, "": 0, "-5": 0, "soon": 0, "1.5": 0, "1e3": 0, "Infinity": 0, "NaN": 0, "0x10": 0,
		"61": longestPause, "2147484": longestPause, "2592000": longestPause, "99999999999999999999": longestPause,
		strings.Repeat("9", 5000): 0, "Fri, 31 Dec 2199 23:59:59 GMT": 0, "Fri, 31 Dec 1999 23:59:59 GMT": 0,
	} {
		for _, status := range []int{409, 503} {
			all = append(all, incident{name: fmt.Sprintf("%d, Retry-After %.20q", status, value), meet: asking(status, value), least: least})
		}
	}
	return all
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func answeringProblem(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		answering(status, body)(w, r)
	}
}

func asking(status int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(status)
	}
}

// Whatever an answer asks for, and even if it does not come to its end, the order is sent again: with its key, and after a
// pause that is neither left out nor endless. Only a final answer ends that.
func TestProgramsThatReadersCopy(t *testing.T) {
	t.Parallel()
	for program, command := range copied {
		for patience, incidents := range map[string][]incident{"20": incidents(), "1": stalls()} {
			t.Run(fmt.Sprintf("%s, %d incidents", program, len(incidents)), func(t *testing.T) {
				t.Parallel()
				first := make(map[string]http.HandlerFunc)
				for i, incident := range incidents {
					first[fmt.Sprint("/", i)] = incident.meet
				}
				desk := newClerk(t, first)
				args := append(command(t), patience)
				for i := range incidents {
					args = append(args, fmt.Sprint(desk.url, "/", i))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, args[0], args[1:]...)
				cmd.Stderr = t.Output()
				output, err := cmd.Output()
				work := json.NewDecoder(bytes.NewReader(output))
				for i, incident := range incidents {
					var of told
					require.NoError(t, work.Decode(&of), "%s: %v", incident.name, err)
					of.require(t, incident)
					desk.requireOneKey(t, fmt.Sprint("/", i), len(of.Bounds))
				}
				require.NoError(t, err)
			})
		}
	}
}

// require compares what a program has done with what it should have done.
func (of told) require(t *testing.T, incident incident) {
	t.Helper()
	if incident.final != 0 {
		require.Equal(t, told{Status: incident.final, Pauses: []float64{}, Bounds: []float64{60}}, of, incident.name)
		return
	}
	require.Equal(t, http.StatusCreated, of.Status, incident.name)
	require.Equal(t, []float64{60, 60}, of.Bounds, incident.name)
	require.Len(t, of.Pauses, 1, incident.name)
	require.GreaterOrEqual(t, of.Pauses[0], max(incident.least, 0.1), incident.name)
	require.LessOrEqual(t, of.Pauses[0], float64(longestPause), incident.name)
}

// The command of docs/clients.md gives up what would take too long. It can be run again.
func TestCommandThatReadersCopy(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	servertest.Require(t, err)
	page, err := os.ReadFile("../docs/clients.md")
	require.NoError(t, err)
	command := regexp.MustCompile("(?s)\n(curl .*?)\n```").FindStringSubmatch(string(page))
	require.NotNil(t, command)
	for name, test := range map[string]struct {
		first    http.HandlerFunc
		requests int
		printed  string
	}{
		"malformed": {asking(503, "soon"), 2, "201"},
		"negative":  {asking(503, "-5"), 2, "201"},
		"missing":   {answering(503, ""), 2, "201"},
		"very long": {asking(503, "2592000"), 1, "503"},
		"stalling":  {stalling, 2, "201"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			desk := newClerk(t, map[string]http.HandlerFunc{"/payments": test.first})
			script := strings.NewReplacer("https://payments.example.com", desk.url, "curl ", curl+" --silent --write-out '%{http_code}' ")
			text := script.Replace(command[1])
			if name == "stalling" {
				text = strings.Replace(text, "--max-time 60", "--max-time 2", 1)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", text)
			cmd.WaitDelay = time.Second // for curl, which sh leaves behind
			cmd.Env = append(os.Environ(), "key=order-1")
			output, err := cmd.Output()
			require.NoError(t, err)
			require.Contains(t, string(output), test.printed)
			desk.requireOneKey(t, "/payments", test.requests)
		})
	}
}
