package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// waitLimit bounds the wait for events that are certain to happen.
const waitLimit = 20 * time.Second

// binary is the path of the program. TestMain builds the program once, with the race detector if the tests have the
// detector.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "idempotency-proxy")
	build := exec.Command("go", slices.Concat([]string{"build"}, buildFlags, []string{"-o", binary, "."})...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// process is a running proxy.
type process struct {
	t        testing.TB
	cmd      *exec.Cmd
	url      string
	adminURL string
	ended    chan struct{}

	mu             sync.Mutex
	logOutput      bytes.Buffer // standard error
	standardOutput bytes.Buffer
}

// userHeaderFlags makes the proxy read the user from a header, which a proxy in front sets. The test plays this proxy.
var userHeaderFlags = slices.Clip([]string{"-user-header", "X-User"})

// startProxy starts the proxy in front of a service, and kills the proxy at the end of the test.
func startProxy(t testing.TB, upstream string, args ...string) *process {
	t.Helper()
	return startProxyAt(t, "127.0.0.1:0", upstream, args...)
}

// startProxyAt is startProxy with an address to listen at.
func startProxyAt(t testing.TB, listen, upstream string, args ...string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan struct{})}
	all := append([]string{"-listen", listen, "-admin", "127.0.0.1:0", "-upstream", upstream}, args...)
	p.cmd = exec.Command(binary, all...)
	p.cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=1"), awsVariables...)
	p.cmd.Stdout = outputWriter{p}
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	lines := make(chan string)
	go p.readLog(stderr, lines)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = p.cmd.Wait()
	})
	for line := range lines {
		var told struct{ Msg, Address string }
		_ = json.Unmarshal([]byte(line), &told)
		switch told.Msg {
		case "admin":
			p.adminURL = "http://" + told.Address
		case "serving":
			p.url = "http://" + told.Address
		}
		if p.url != "" {
			break
		}
	}
	go func() {
		for range lines { // readLog has stored the lines
		}
	}()
	require.NotEmpty(t, p.url, "the proxy does not serve: %s", p.loggedLines())
	return p
}

// readLog stores the lines of stderr, and sends the lines to lines, until the process ends.
func (p *process) readLog(stderr io.Reader, lines chan<- string) {
	defer close(p.ended)
	defer close(lines)
	scanner := bufio.NewScanner(stderr)
	for scanner.Scan() {
		p.mu.Lock()
		p.logOutput.WriteString(scanner.Text() + "\n")
		p.mu.Unlock()
		lines <- scanner.Text()
	}
}

// outputWriter stores the standard output of a process.
type outputWriter struct{ *process }

func (p outputWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.standardOutput.Write(b)
}

// printedLines returns the complete lines of the standard output.
func (p *process) printedLines() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.standardOutput.String()
	return text[:strings.LastIndex(text, "\n")+1]
}

// loggedLines returns the log.
func (p *process) loggedLines() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logOutput.String()
}

// kill ends the proxy by SIGKILL, as a crash does.
func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
	<-p.ended
	_ = p.cmd.Wait()
}

// terminate sends SIGTERM to the proxy.
func (p *process) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
}

// awaitExit waits until the proxy has ended, and returns the exit status.
func (p *process) awaitExit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(waitLimit):
		p.t.Fatal("the proxy does not end:\n" + p.loggedLines())
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// address returns the address at which the proxy listens, for example to start the next proxy there.
func (p *process) address() string { return strings.TrimPrefix(p.url, "http://") }

// answer is everything that a client receives for a request.
type answer struct {
	status   int
	header   http.Header
	body     string
	trailer  http.Header
	replayed bool
	err      error
}

// problemCode returns the code of a refusal by the middleware, or the title of any other problem.
func (a answer) problemCode() string {
	var problem struct{ Type, Title string }
	if json.Unmarshal([]byte(a.body), &problem) != nil {
		return ""
	}
	if _, code, ok := strings.Cut(problem.Type, "#"); ok {
		return code
	}
	return problem.Title
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

// requestOption changes a request before the request is sent.
type requestOption func(*http.Request)

func withUser(user string) requestOption { return withField("X-User", user) }
func withKey(key string) requestOption   { return withField("Idempotency-Key", key) }

// withField adds a field, whose name is sent as given.
func withField(name, value string) requestOption {
	return func(r *http.Request) { r.Header[name] = append(r.Header[name], value) }
}

func withHost(name string) requestOption     { return func(r *http.Request) { r.Host = name } }
func withMethod(method string) requestOption { return func(r *http.Request) { r.Method = method } }

// post sends a POST request on a new connection, so that net/http does not repeat the request.
func (p *process) post(path, body string, changes ...requestOption) answer {
	p.t.Helper()
	r, err := http.NewRequest(http.MethodPost, p.url+path, strings.NewReader(body))
	require.NoError(p.t, err)
	for _, change := range changes {
		change(r)
	}
	return sendRequest(r)
}

// sendRequest sends r on a new connection.
func sendRequest(r *http.Request) (a answer) {
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{
		status: resp.StatusCode, header: resp.Header, body: string(body), trailer: resp.Trailer, err: err,
		replayed: resp.Header.Get("Idempotent-Replayed") == "true",
	}
}

// postUnread sends a request of the user alice, and returns the connection with the answer unread.
func (p *process) postUnread(path, body, key string) net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.address())
	require.NoError(p.t, err)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nX-User: alice\r\nIdempotency-Key: %s\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, p.address(), key, len(body), body)
	require.NoError(p.t, err)
	return conn
}

// service is an upstream service that stores the received requests.
type service struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

// startService starts an upstream service, and stops the service at the end of the test.
func startService(t testing.TB, handler http.HandlerFunc) *service {
	t.Helper()
	s := newService(t, handler)
	s.Start()
	return s
}

// newService returns a service that the caller must start.
func newService(t testing.TB, handler http.HandlerFunc) *service {
	t.Helper()
	s := new(service)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		s.mu.Unlock()
		handler(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// answerCreated is a handler that answers 201 with the user.
func answerCreated(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Location", "/things/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "made for "+r.Header.Get("X-User"))
}

func (s *service) requestCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// lastRequest returns the last received request.
func (s *service) lastRequest(t testing.TB) *http.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotEmpty(t, s.requests)
	return s.requests[len(s.requests)-1]
}

// requireEventually waits until hasHappened returns true, and fails the test after waitLimit.
func requireEventually(t testing.TB, event string, hasHappened func() bool) {
	t.Helper()
	require.Eventually(t, hasHappened, waitLimit, 10*time.Millisecond, event)
}

// getURL sends a GET request to url, for example to the admin listener.
func getURL(t testing.TB, url string) answer {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	return sendRequest(r)
}
