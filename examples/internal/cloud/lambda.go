package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"strconv"
	"time"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// runtimeAPI is the environment variable by which a function finds Lambda.
const runtimeAPI = "AWS_LAMBDA_RUNTIME_API"

// IsFunction reports whether this process was started by an [Instance].
func IsFunction() bool { return os.Getenv(runtimeAPI) != "" }

// Instance is an instance of a function: a process that works on one event at a time. It gets the events from the Runtime API
// of Lambda (https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html), and ends with this process, which is its server.
type Instance struct {
	Timeouts int

	env     []string
	process *process // nil: none
}

// NewInstance returns an instance whose processes have env in their environment.
func NewInstance(env ...string) *Instance { return &Instance{env: env} }

// ErrTimeout says that the process was killed at the deadline.
var ErrTimeout = errors.New("timed out")

// Invoke has the function work on an event, and returns its answer. A process that has none at the deadline is killed. The
// next event gets another.
func (i *Instance) Invoke(event any, timeout time.Duration) ([]byte, error) {
	if i.process == nil {
		i.process = start(i.env)
	}
	payload, err := json.Marshal(event)
	demo.Check(err)
	i.process.events <- invocation{payload, timeout}
	select {
	case answer := <-i.process.answers:
		return answer.body, answer.err
	case <-time.After(timeout):
		i.Timeouts++
		i.Stop()
		return nil, ErrTimeout
	}
}

// Stop kills the process.
func (i *Instance) Stop() {
	if i.process != nil {
		i.process.kill()
		i.process = nil
	}
}

// process is one that runs a function.
type process struct {
	cmd     *exec.Cmd
	api     *httptest.Server
	events  chan invocation
	answers chan answer
}

type invocation struct {
	payload []byte
	timeout time.Duration
}

type answer struct {
	body []byte
	err  error
}

func start(env []string) *process {
	p := &process{events: make(chan invocation), answers: make(chan answer, 1)}
	p.api = httptest.NewServer(p)
	program, err := os.Executable()
	demo.Check(err)
	p.cmd = exec.Command(program)
	p.cmd.Env = append(append(os.Environ(), runtimeAPI+"="+p.api.Listener.Addr().String()), env...)
	p.cmd.Stderr = os.Stderr
	demo.Check(p.cmd.Start())
	return p
}

func (p *process) kill() {
	demo.Check(p.cmd.Process.Kill())
	_ = p.cmd.Wait()
	p.api.CloseClientConnections()
	p.api.Close()
}

// ServeHTTP is the Runtime API.
func (p *process) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path.Base(r.URL.Path) {
	case "next":
		p.next(w, r)
	case "response":
		body, err := io.ReadAll(r.Body)
		p.answers <- answer{body, err}
		w.WriteHeader(http.StatusAccepted)
	case "error":
		body, _ := io.ReadAll(r.Body)
		p.answers <- answer{nil, fmt.Errorf("the function has failed: %s", body)}
		w.WriteHeader(http.StatusAccepted)
	}
}

// next waits for an event.
func (p *process) next(w http.ResponseWriter, r *http.Request) {
	select {
	case event := <-p.events:
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", "id")
		w.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(event.timeout).UnixMilli(), 10))
		_, _ = w.Write(event.payload)
	case <-r.Context().Done(): // it was killed
	}
}
