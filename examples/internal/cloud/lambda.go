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

// runtimeAPI is the environment variable with the address of the Runtime API.
const runtimeAPI = "AWS_LAMBDA_RUNTIME_API"

// IsFunction reports whether an [Instance] has started this process.
func IsFunction() bool { return os.Getenv(runtimeAPI) != "" }

// Instance is an instance of a function: a child process that works on one event at a time. The child gets the events from the
// Runtime API of Lambda (https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html), whose server is the parent process. So
// the child ends with its parent.
type Instance struct {
	Timeouts int // how many events have exceeded their timeout

	extraEnv     []string
	childProcess *functionProcess // nil: none runs
}

// NewInstance returns an instance whose child processes have env in their environment.
func NewInstance(env ...string) *Instance { return &Instance{extraEnv: env} }

// ErrTimeout means that the child process exceeded the timeout, and was killed.
var ErrTimeout = errors.New("timed out")

// Invoke passes event to the function, and returns the function's answer. Errors:
//   - [ErrTimeout]: the answer did not arrive within timeout. Invoke has killed the child process, and the next call of Invoke
//     starts a new one.
//   - Any other error: the function has reported a failure, or its answer could not be read.
func (i *Instance) Invoke(event any, timeout time.Duration) ([]byte, error) {
	if i.childProcess == nil {
		i.childProcess = startProcess(i.extraEnv)
	}
	payload, err := json.Marshal(event)
	demo.Check(err)
	i.childProcess.events <- invocation{payload, timeout}
	select {
	case answer := <-i.childProcess.answers:
		return answer.body, answer.err
	case <-time.After(timeout):
		i.Timeouts++
		i.Stop()
		return nil, ErrTimeout
	}
}

// Stop kills the child process.
func (i *Instance) Stop() {
	if i.childProcess != nil {
		i.childProcess.killProcess()
		i.childProcess = nil
	}
}

// functionProcess is a child process that runs the function, together with the server of its Runtime API.
type functionProcess struct {
	cmd       *exec.Cmd
	apiServer *httptest.Server
	events    chan invocation
	answers   chan answer
}

type invocation struct {
	payload []byte
	timeout time.Duration
}

type answer struct {
	body []byte
	err  error
}

func startProcess(env []string) *functionProcess {
	p := &functionProcess{events: make(chan invocation), answers: make(chan answer, 1)}
	p.apiServer = httptest.NewServer(p)
	program, err := os.Executable()
	demo.Check(err)
	p.cmd = exec.Command(program)
	p.cmd.Env = append(append(os.Environ(), runtimeAPI+"="+p.apiServer.Listener.Addr().String()), env...)
	p.cmd.Stderr = os.Stderr
	demo.Check(p.cmd.Start())
	return p
}

func (p *functionProcess) killProcess() {
	demo.Check(p.cmd.Process.Kill())
	_ = p.cmd.Wait()
	p.apiServer.CloseClientConnections()
	p.apiServer.Close()
}

// ServeHTTP serves the Runtime API.
func (p *functionProcess) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path.Base(r.URL.Path) {
	case "next":
		p.serveNextEvent(w, r)
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

// serveNextEvent answers with the next event of the channel events.
func (p *functionProcess) serveNextEvent(w http.ResponseWriter, r *http.Request) {
	select {
	case event := <-p.events:
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", "id")
		w.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(event.timeout).UnixMilli(), 10))
		_, _ = w.Write(event.payload)
	case <-r.Context().Done(): // the child process was killed
	}
}
