package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"sync"
	"time"
)

// startedService is the process of --start.
type startedService struct {
	shellCommand string
	baseURL      string
	startTimeout time.Duration

	runningProcess *exec.Cmd
	exitResult     chan error
	lastOutput     *lastBytes
}

// start starts the process, and waits until it accepts connections.
func (s *startedService) start(ctx context.Context) error {
	address, err := hostPort(s.baseURL)
	if err != nil {
		return err
	}
	isTaken := isListening(ctx, address) // by a proxy in front of the service, or by mistake
	s.lastOutput = new(lastBytes)
	s.runningProcess = exec.Command("sh", "-c", s.shellCommand)
	s.runningProcess.Stdout, s.runningProcess.Stderr = s.lastOutput, s.lastOutput
	s.runningProcess.WaitDelay = time.Second // for children that keep the output open
	setGroup(s.runningProcess)
	if err := s.runningProcess.Start(); err != nil {
		s.runningProcess = nil
		return err
	}
	s.exitResult = make(chan error, 1)
	go func(running *exec.Cmd, exited chan<- error) { exited <- running.Wait() }(s.runningProcess, s.exitResult)
	deadline := time.After(s.startTimeout)
	settled := time.After(2 * time.Second) // when a service that finds its port taken has ended
	for {
		if !isTaken && isListening(ctx, address) {
			return nil
		}
		select {
		case err := <-s.exitResult:
			_ = killGroup(s.runningProcess.Process) // the children that the shell left in the background
			s.runningProcess = nil
			if err == nil || errors.Is(err, exec.ErrWaitDelay) {
				err = errors.New("exit status 0")
			}
			return fmt.Errorf("the service has ended: %w: %s", err, s.lastOutput.String())
		case <-settled:
			isTaken = false
		case <-deadline:
			return fmt.Errorf("the service accepts no connections at %s: %s", address, s.lastOutput.String())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// isListening reports whether somebody accepts connections at address.
func isListening(ctx context.Context, address string) bool {
	connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// kill ends the process and its children with SIGKILL.
func (s *startedService) kill(context.Context) error {
	if s.runningProcess == nil {
		return nil
	}
	err := killGroup(s.runningProcess.Process)
	<-s.exitResult
	s.runningProcess = nil
	return err
}

// hostPort returns the address to dial for a base URL.
func hostPort(baseURL string) (string, error) {
	address, err := url.Parse(baseURL)
	if err != nil {
		return "", err
	}
	port := address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[address.Scheme]
	}
	return net.JoinHostPort(address.Hostname(), port), nil
}

// lastBytes is a writer that keeps the last bytes.
type lastBytes struct {
	mutex sync.Mutex
	kept  []byte
}

const maxKept = 2000

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.kept = append(l.kept, p...)
	l.kept = l.kept[max(0, len(l.kept)-maxKept):]
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return string(bytes.TrimSpace(l.kept))
}
