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

// patience is the time limit for the start and the end of a server.
const patience = 2 * time.Minute

// readyPattern matches the messages of servers that are ready. "eady to accept" is the message of Redis and
// PostgreSQL. The rest is for sentinels, PgBouncer, MariaDB, Prometheus and etcd.
var readyPattern = regexp.MustCompile("eady to accept |Sentinel ID is |process up: PgBouncer |: ready for connections|" +
	"ready to receive web requests|ready to serve client requests")

// process is a running server program. A goroutine reaps the process when the process ends.
type process struct {
	cmd    *exec.Cmd
	output bytes.Buffer  // output until the process was ready
	ready  chan struct{} // closed when the process accepts connections
	done   chan struct{} // closed when the process and all its children have ended
}

// startProcess starts a server, and waits until the server accepts connections. If this process dies first, the
// server gets the signal orphaned.
func startProcess(cmd *exec.Cmd, orphaned syscall.Signal) (*process, error) {
	p := &process{cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	signalOrphan(cmd.SysProcAttr, orphaned)

	started := make(chan error)
	go p.startAndReap(started)
	if err := <-started; err != nil {
		return nil, err
	}
	defer p.killAfter(patience).Stop()
	select {
	case <-p.ready:
		return p, nil
	case <-p.done:
		return nil, fmt.Errorf("%s: %s\n%s", cmd, cmd.ProcessState, &p.output)
	}
}

// startAndReap starts and reaps the process on a single thread, because Linux takes the end of the thread that
// started a process for the death of the parent.
func (p *process) startAndReap(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // also waits for the children, which share the output; ProcessState has the result
	}
	close(p.done)
}

// Write receives the output of the process, and detects in the output when the server is ready. Unlike an answer from
// the port, the output cannot come from another server.
func (p *process) Write(b []byte) (int, error) {
	select {
	case <-p.ready:
		return len(b), nil
	default:
	}
	p.output.Write(b)
	if readyPattern.Match(p.output.Bytes()) {
		close(p.ready)
	}
	return len(b), nil
}

// endWith sends the signal, and waits until the process and all its children have ended.
func (p *process) endWith(sig os.Signal) {
	_ = p.cmd.Process.Signal(sig) // fails if the process has ended before
	defer p.killAfter(patience).Stop()
	<-p.done
}

func (p *process) killAfter(d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() { _ = p.cmd.Process.Kill() })
}

// runAfterwards runs a command when the caller calls now, or after the end of this process, even after a kill.
func runAfterwards(command ...string) (now func(), err error) {
	// The shell waits for the end of its standard input, which now closes, or the kernel after the end of this
	// process.
	cmd := exec.Command("sh", append([]string{"-c", `read _; "$@"`, "sh"}, command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C must not end the shell
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
