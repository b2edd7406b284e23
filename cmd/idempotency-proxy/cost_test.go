package main_test

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var seconds = flag.Float64("seconds", 0.2, "how long TestCost sends requests to each proxy")

const (
	workers = 16
	turn    = time.Second // the proxies take turns, so that the load of the machine is the same for both
)

// TestCost reports what the proxy costs beside a bare httputil.ReverseProxy, in processor time and in throughput, for
// 16 workers whose requests are all executed. Only what they answer is checked: times depend on the machine.
//
//	go test -run TestCost -v -seconds 60
func TestCost(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 256)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}))
	defer upstream.Close()

	bare := &loaded{cmd: startBare(t, upstream.URL)}
	bare.url = awaitURL(t, bare.cmd)
	p := start(t, upstream.URL, "-all-callers-are-one-user", "-store", "memory:?max-bytes=8000000000")
	guarded := &loaded{cmd: p.cmd, url: p.url}
	left := time.Duration(*seconds * float64(time.Second))
	for left > 0 {
		length := min(left, turn)
		bare.load(t, length)
		guarded.load(t, length)
		left -= length
	}
	require.NoError(t, bare.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, bare.cmd.Wait())
	p.terminate()
	require.Zero(t, p.wait(), p.logged())

	t.Logf("bare:    %7.0f requests/s, %v of processor time each", bare.rate(), bare.each())
	t.Logf("guarded: %7.0f requests/s, %v of processor time each", guarded.rate(), guarded.each())
	t.Logf("guarded beside bare: %.2f x the processor time, %.2f x the throughput",
		float64(guarded.each())/float64(bare.each()), guarded.rate()/bare.rate())
}

func startBare(t *testing.T, upstream string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), "bare")
	buildProgram("./internal/bare", program)
	return exec.Command(program, upstream)
}

func awaitURL(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(output)
	require.True(t, lines.Scan())
	return lines.Text()
}

// loaded is a proxy under load.
type loaded struct {
	cmd      *exec.Cmd
	url      string
	requests atomic.Int64
	took     time.Duration
}

func (l *loaded) rate() float64 { return float64(l.requests.Load()) / l.took.Seconds() }

func (l *loaded) each() time.Duration {
	used := l.cmd.ProcessState
	return (used.UserTime() + used.SystemTime()) / time.Duration(l.requests.Load())
}

var keys atomic.Int64

// load has the workers send requests for a while. Each request has a key of its own.
func (l *loaded) load(t *testing.T, length time.Duration) {
	t.Helper()
	body := bytes.Repeat([]byte("y"), 256)
	transport := &http.Transport{MaxIdleConnsPerHost: workers}
	defer transport.CloseIdleConnections()
	began := time.Now()
	failures := make(chan string, workers)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for time.Since(began) < length {
				if failure := l.request(transport, body); failure != "" {
					failures <- failure
					return
				}
			}
		})
	}
	all.Wait()
	l.took += time.Since(began)
	require.Empty(t, failures)
}

func (l *loaded) request(transport http.RoundTripper, body []byte) string {
	r, err := http.NewRequest(http.MethodPost, l.url+"/things", bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	r.Header.Set("Idempotency-Key", strconv.FormatInt(keys.Add(1), 10))
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	replayed := resp.Header.Get("Idempotent-Replayed") != ""
	if err != nil || resp.StatusCode != http.StatusCreated || len(answer) != len(body) || replayed {
		return resp.Status + " " + string(answer)
	}
	l.requests.Add(1)
	return ""
}
