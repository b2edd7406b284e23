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
	command string
	baseURL string
	timeout time.Duration

	running *exec.Cmd
	exited  chan error
	output  *lastBytes
}

// start starts the process, and waits until it accepts connections.
func (s *startedService) start(ctx context.Context) error {
	s.output = new(lastBytes)
	s.running = exec.Command("sh", "-c", s.command)
	s.running.Stdout, s.running.Stderr = s.output, s.output
	s.running.WaitDelay = time.Second // for children that keep the output open
	setGroup(s.running)
	if err := s.running.Start(); err != nil {
		return err
	}
	s.exited = make(chan error, 1)
	go func(running *exec.Cmd, exited chan<- error) { exited <- running.Wait() }(s.running, s.exited)
	address, err := hostPort(s.baseURL)
	if err != nil {
		return err
	}
	deadline := time.After(s.timeout)
	for {
		connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			return connection.Close()
		}
		select {
		case err := <-s.exited:
			s.running = nil
			return fmt.Errorf("the service has ended: %w: %s", errors.Join(err), s.output.String())
		case <-deadline:
			return fmt.Errorf("the service accepts no connections: %w: %s", err, s.output.String())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill ends the process and its children with SIGKILL.
func (s *startedService) kill(context.Context) error {
	if s.running == nil {
		return nil
	}
	err := killGroup(s.running.Process)
	<-s.exited
	s.running = nil
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
