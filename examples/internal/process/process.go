//go:build unix

// Package process lets an example start itself again as a service, in a process that it can kill.
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

// Service is a service that runs in one process after the other. All of them have the same address. What connects
// while there is none waits for the next.
type Service struct {
	URL    string
	Deaths int

	socket *os.File
	cmd    *exec.Cmd
	output *bufio.Scanner
}

// New returns a service that has an address, but no process yet.
func New() *Service {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	demo.Check(err)
	defer listener.Close() // not of the socket, which is a copy
	socket, err := listener.(*net.TCPListener).File()
	demo.Check(err)
	return &Service{URL: "http://" + listener.Addr().String(), socket: socket}
}

// Start starts a process, which has env in its environment and ends with ctx at the latest. The one before is stopped.
func (s *Service) Start(ctx context.Context, env ...string) {
	s.Stop()
	program, err := os.Executable()
	demo.Check(err)
	s.cmd = exec.CommandContext(ctx, program)
	s.cmd.Env = slices.Concat(os.Environ(), []string{"EXAMPLE_SERVICE=yes"}, env)
	s.cmd.ExtraFiles = []*os.File{s.socket}
	s.cmd.Stderr = os.Stderr
	_, err = s.cmd.StdinPipe() // nothing is written to it: it ends with this process
	demo.Check(err)
	output, err := s.cmd.StdoutPipe()
	demo.Check(err)
	s.output = bufio.NewScanner(output)
	demo.Check(s.cmd.Start())
}

// AwaitHalt waits until the process has come to the place that it was started with as HALT. It shows what the process
// prints by [Tell] before.
func (s *Service) AwaitHalt() {
	for s.output.Scan() {
		if !strings.HasPrefix(s.output.Text(), told) {
			return
		}
		fmt.Println(s.output.Text())
	}
	log.Fatal("this is broken: the service has ended without a halt")
}

// told begins each line of Tell.
const told = "  "

// Tell prints a line if the process is to halt somewhere: only then does somebody read it.
func Tell(line string) {
	if os.Getenv("HALT") != "" {
		fmt.Println(told + line)
	}
}

// Kill kills the process.
func (s *Service) Kill() {
	s.Stop()
	s.Deaths++
}

// Stop kills the process, if there is one, and does not count it.
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

// IsService reports whether this process was started by Start.
func IsService() bool { return os.Getenv("EXAMPLE_SERVICE") != "" }

// WithShortLease returns opts for a service that is killed often, and whose clients wait for the next process.
func WithShortLease(opts idempotency.Options) idempotency.Options {
	opts.Lease = time.Second        // how long an order is blocked if its process dies; the default is more patient
	opts.StoreTimeout = time.Second // so that a slow disk is none of the failures that are shown here
	opts.Wait = 10 * time.Second    // for the lease of a process that has died
	return opts
}

// Stored is the place where an answer is stored, and nobody has got it yet.
const Stored = "the answer is stored"

// Serve serves a guarded handler at [Listen] until this process is killed.
func Serve(guarded http.Handler) { demo.Check(http.Serve(Listen(), guarded)) }

// Listen returns the listener of this process, which ends together with the process that has started it. It halts where an
// answer is [Stored].
func Listen() net.Listener {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // who started this process has ended
	}()
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	demo.Check(err)
	return mortalListener{listener}
}

type mortalListener struct{ net.Listener }

func (l mortalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return mortalConn{conn}, err
}

// mortalConn sends answers that are stored already.
type mortalConn struct{ net.Conn }

func (c mortalConn) Write(answer []byte) (int, error) {
	HaltAt(Stored)
	return c.Conn.Write(answer)
}

// HaltAt waits to be killed if this is the place where the process is to halt.
func HaltAt(place string) {
	if os.Getenv("HALT") == place {
		fmt.Println(place)
		select {}
	}
}
