//go:build unix

package servertest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

// patience is how long a server may take to start or to end.
const patience = 2 * time.Minute

// isReady finds what both Redis and PostgreSQL say, and what a sentinel, a PgBouncer, MariaDB, Prometheus and etcd do.
var isReady = regexp.MustCompile("eady to accept |Sentinel ID is |process up: PgBouncer |: ready for connections|" +
	"ready to receive web requests|ready to serve client requests")

// process is a running server program. It is reaped when it ends, whether somebody waits for that or not.
type process struct {
	cmd   *exec.Cmd
	said  bytes.Buffer  // its output until it was ready
	ready chan struct{} // closed when it accepts connections
	done  chan struct{} // closed when it has ended, and so have all its children
}

// launch starts a server and waits until it accepts connections. The server gets the signal orphaned if this process
// dies before it.
func launch(cmd *exec.Cmd, orphaned syscall.Signal) (*process, error) {
	p := &process{cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	signalOrphan(cmd.SysProcAttr, orphaned)

	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, err
	}
	defer p.killAfter(patience).Stop()
	select {
	case <-p.ready:
		return p, nil
	case <-p.done:
		return nil, fmt.Errorf("%s: %s\n%s", cmd, cmd.ProcessState, &p.said)
	}
}

// run starts the process and reaps it, all on one thread: Linux takes the end of the thread that started a process
// for the death of its parent.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // returns when the output is closed, which the children share; ProcessState has the result
	}
	close(p.done)
}

// Write receives the output of the process. It knows from it when the server is ready: unlike an answer from its port,
// the output cannot come from another server.
func (p *process) Write(b []byte) (int, error) {
	select {
	case <-p.ready:
		return len(b), nil
	default:
	}
	p.said.Write(b)
	if isReady.Match(p.said.Bytes()) {
		close(p.ready)
	}
	return len(b), nil
}

// end sends the signal, and waits until the process has ended and its children have.
func (p *process) end(sig os.Signal) {
	_ = p.cmd.Process.Signal(sig) // fails if it has ended already
	defer p.killAfter(patience).Stop()
	<-p.done
}

func (p *process) killAfter(d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() { _ = p.cmd.Process.Kill() })
}

// afterwards runs a command when now is called, or else when this process has ended, in whatever way.
func afterwards(command ...string) (now func(), err error) {
	// Nobody writes to the standard input of this shell: it ends when we close it, or the kernel does after our death.
	cmd := exec.Command("sh", append([]string{"-c", `read _; "$@"`, "sh"}, command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is not meant for it
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}, nil
}
