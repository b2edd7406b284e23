//go:build unix

// Package process lets an example start its own program as a service, in a child process that the example can kill.
package process

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// Service is a service that runs in a sequence of child processes. All processes have the same address. A connection that is
// made between two processes waits for the next process.
type Service struct {
	URL    string
	Deaths int

	socket      *os.File // inherited by each process
	cmd         *exec.Cmd
	outputLines *bufio.Scanner
}

// New returns a service that has an address, but no process yet.
func New() *Service {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	demo.Check(err)
	defer listener.Close() // socket is a copy, and stays open
	socket, err := listener.(*net.TCPListener).File()
	demo.Check(err)
	return &Service{URL: "http://" + listener.Addr().String(), socket: socket}
}

// Start stops the previous process, and starts a process with env in its environment. The process ends with ctx at the
// latest.
func (s *Service) Start(ctx context.Context, env ...string) {
	s.Stop()
	program, err := os.Executable()
	demo.Check(err)
	s.cmd = exec.CommandContext(ctx, program)
	s.cmd.Env = slices.Concat(os.Environ(), []string{"EXAMPLE_SERVICE=yes"}, env)
	s.cmd.ExtraFiles = []*os.File{s.socket}
	s.cmd.Stderr = os.Stderr
	_, err = s.cmd.StdinPipe() // the pipe stays empty, and closes when this process ends: see Listen
	demo.Check(err)
	output, err := s.cmd.StdoutPipe()
	demo.Check(err)
	s.outputLines = bufio.NewScanner(output)
	demo.Check(s.cmd.Start())
}

// AwaitHalt waits until the process halts at the place in its variable HALT. Until then, AwaitHalt prints the lines that the
// process passes to [Tell].
func (s *Service) AwaitHalt() {
	for s.outputLines.Scan() {
		if !strings.HasPrefix(s.outputLines.Text(), toldPrefix) {
			return
		}
		fmt.Println(s.outputLines.Text())
	}
	log.Fatal("this is broken: the service has ended without a halt")
}

// toldPrefix begins each line of Tell.
const toldPrefix = "  "

// Tell prints line if HALT is set, because only AwaitHalt reads the output of the process.
func Tell(line string) {
	if os.Getenv("HALT") != "" {
		fmt.Println(toldPrefix + line)
	}
}

// Kill kills the process, and counts the death.
func (s *Service) Kill() {
	s.Stop()
	s.Deaths++
}

// Stop kills the process, if any runs, without counting a death.
func (s *Service) Stop() {
	if s.cmd == nil || s.cmd.ProcessState != nil {
		return
	}
	demo.Check(s.cmd.Process.Kill())
	_ = s.cmd.Wait()
	if how := s.cmd.ProcessState.String(); how != "signal: killed" {
		log.Fatalf("this is broken: the service has ended by itself: %s", how)
	}
}

// IsService reports whether Start has started this process.
func IsService() bool { return os.Getenv("EXAMPLE_SERVICE") != "" }

// WithShortLease returns opts for a service that is killed often, and whose clients wait for the next process.
func WithShortLease(opts idempotency.Options) idempotency.Options {
	opts.Lease = time.Second        // how long a dead process blocks an order; the default is longer
	opts.StoreTimeout = time.Second // keeps the failures of a slow disk out of the example
	opts.Wait = 10 * time.Second    // outlasts the lease of a dead process
	return opts
}

// Stored is the place after an answer is stored and before a client gets the answer.
const Stored = "the answer is stored"

// Serve serves guarded at the listener of [Listen] until this process is killed.
func Serve(guarded http.Handler) { demo.Check(http.Serve(Listen(), guarded)) }

// Listen returns the listener that this process inherits from its parent. Connections of the listener halt at [Stored]. Listen
// also makes this process end with its parent, whose end closes the standard input.
func Listen() net.Listener {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the parent has ended
	}()
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	demo.Check(err)
	return haltingListener{listener}
}

type haltingListener struct{ net.Listener }

func (l haltingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return haltingConn{conn}, err
}

// haltingConn halts at Stored before a write, because an answer is stored before it is written.
type haltingConn struct{ net.Conn }

func (c haltingConn) Write(answer []byte) (int, error) {
	HaltAt(Stored)
	return c.Conn.Write(answer)
}

// HaltAt prints place and waits to be killed if HALT is place.
func HaltAt(place string) {
	if os.Getenv("HALT") == place {
		fmt.Println(place)
		select {}
	}
}
