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

// patience bounds what is waited for. Nothing waits that long unless it is broken.
const patience = 20 * time.Second

// binary is the program, built once; with the race detector if the test has it.
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
	t     testing.TB
	cmd   *exec.Cmd
	url   string
	admin string
	ended chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
	out bytes.Buffer // what it prints
}

// asHeader are the flags of a proxy that is told the user by the proxy in front, which is the test.
var asHeader = slices.Clip([]string{"-user-header", "X-User"})

// start runs the proxy in front of a service, until the test ends.
func start(t testing.TB, upstream string, args ...string) *process {
	t.Helper()
	return startAt(t, "127.0.0.1:0", upstream, args...)
}

func startAt(t testing.TB, listen, upstream string, args ...string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan struct{})}
	all := append([]string{"-listen", listen, "-admin", "127.0.0.1:0", "-upstream", upstream}, args...)
	p.cmd = exec.Command(binary, all...)
	p.cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=1"), awsVariables...)
	p.cmd.Stdout = printer{p}
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	lines := make(chan string)
	go p.follow(stderr, lines)
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
			p.admin = "http://" + told.Address
		case "serving":
			p.url = "http://" + told.Address
		}
		if p.url != "" {
			break
		}
	}
	go func() {
		for range lines { // are in the log
		}
	}()
	require.NotEmpty(t, p.url, "the proxy does not serve: %s", p.logged())
	return p
}

func (p *process) follow(stderr io.Reader, lines chan<- string) {
	defer close(p.ended)
	defer close(lines)
	scanner := bufio.NewScanner(stderr)
	for scanner.Scan() {
		p.mu.Lock()
		p.log.WriteString(scanner.Text() + "\n")
		p.mu.Unlock()
		lines <- scanner.Text()
	}
}

// printer keeps what a process prints.
type printer struct{ *process }

func (p printer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// printed returns the lines that are whole.
func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.out.String()
	return text[:strings.LastIndex(text, "\n")+1]
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// kill ends the proxy as a crash does.
func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
	<-p.ended
	_ = p.cmd.Wait()
}

// terminate asks the proxy to end.
func (p *process) terminate() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
}

// wait returns with which status the proxy has ended.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatal("the proxy does not end:\n" + p.logged())
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// address returns where the proxy listens, for the next one.
func (p *process) address() string { return strings.TrimPrefix(p.url, "http://") }

// answer is what came back.
type answer struct {
	status   int
	header   http.Header
	body     string
	trailer  http.Header
	replayed bool
	err      error
}

// code returns the code of a refusal by the middleware, or the title of another problem.
func (a answer) code() string {
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

// request changes a request before it is sent.
type request func(*http.Request)

func as(user string) request   { return with("X-User", user) }
func keyed(key string) request { return with("Idempotency-Key", key) }
func with(name, v string) request {
	return func(r *http.Request) { r.Header[name] = append(r.Header[name], v) }
}
func toHost(name string) request   { return func(r *http.Request) { r.Host = name } }
func method(method string) request { return func(r *http.Request) { r.Method = method } }

// post sends a request that is not sent again by net/http, on a connection of its own.
func (p *process) post(path, body string, changes ...request) answer {
	p.t.Helper()
	r, err := http.NewRequest(http.MethodPost, p.url+path, strings.NewReader(body))
	require.NoError(p.t, err)
	for _, change := range changes {
		change(r)
	}
	return send(r)
}

func send(r *http.Request) (a answer) {
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

// order sends a request of Alice's, and leaves the answer unread.
func (p *process) order(path, body, key string) net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.address())
	require.NoError(p.t, err)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nX-User: alice\r\nIdempotency-Key: %s\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, p.address(), key, len(body), body)
	require.NoError(p.t, err)
	return conn
}

// service is an upstream that keeps the requests that it got.
type service struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

func serve(t testing.TB, handler http.HandlerFunc) *service {
	t.Helper()
	s := newService(t, handler)
	s.Start()
	return s
}

// newService returns a service that is not started yet.
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

func created(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Location", "/things/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "made for "+r.Header.Get("X-User"))
}

func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// last returns the request that came last.
func (s *service) last(t testing.TB) *http.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotEmpty(t, s.requests)
	return s.requests[len(s.requests)-1]
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, 10*time.Millisecond, what)
}

// get asks the admin listener, or another URL.
func get(t testing.TB, url string) answer {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	return send(r)
}
