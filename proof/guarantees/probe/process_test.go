package probe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// The variables of the environment that make the test binary an instance of a service.
const (
	serviceVariable = "PROBED_SERVICE" // the name of the service
	placeVariable   = "PROBED_PLACE"   // the place of its data, for example the URL of a database
	addressVariable = "PROBED_ADDRESS"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(serviceVariable); name != "" {
		go dieWithParent()
		fmt.Println(serve(os.Getenv(addressVariable), services[name], os.Getenv(placeVariable)))
		os.Exit(1)
	}
	testservice.Main(m)
}

// dieWithParent ends this process with the process that holds the other end of the standard input.
func dieWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(2)
}

// serve serves HTTP/1.1 and HTTP/2 until this process is killed.
func serve(address string, s service, place string) error {
	handler, err := s.newHandler(place)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server.Serve(listener)
}

// process is a program that is killed and started again.
type process struct {
	newCommand func() *exec.Cmd
	isReady    func(line string) bool // reports whether the program serves, by a line of its output; nil: the caller finds out
	running    *exec.Cmd
}

// startInstance starts an instance of the service with this name at an address of its own, until the end of the test.
func startInstance(t *testing.T, name, place string, env []string) (p *process, url string) {
	t.Helper()
	address := servertest.PickAddress(t)
	p = &process{
		newCommand: func() *exec.Cmd {
			command := exec.Command(os.Args[0])
			command.Env = append(os.Environ(), serviceVariable+"="+name, placeVariable+"="+place, addressVariable+"="+address)
			command.Env = append(command.Env, env...)
			return command
		},
		isReady: func(line string) bool { return line == "listening" },
	}
	p.startForTest(t)
	return p, "http://" + address
}

// startForTest starts the process, and kills the process at the end of the test.
func (p *process) startForTest(t *testing.T) {
	t.Helper()
	require.NoError(t, p.start(t.Context()))
	t.Cleanup(func() { _ = p.kill(context.Background()) })
}

// start starts the process, and waits until the process serves.
func (p *process) start(context.Context) error {
	command := p.newCommand()
	if _, err := command.StdinPipe(); err != nil { // stays open for as long as this process lives
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = writer, writer
	if err = errors.Join(command.Start(), writer.Close()); err != nil {
		return errors.Join(err, reader.Close())
	}
	p.running = command
	lines := bufio.NewScanner(reader)
	said := ""
	for p.isReady == nil || lines.Scan() {
		if p.isReady == nil || p.isReady(lines.Text()) {
			go func() {
				_, _ = io.Copy(io.Discard, reader) // until the death of the process
				_ = reader.Close()
			}()
			return nil
		}
		said += lines.Text() + "\n"
	}
	return errors.Join(fmt.Errorf("the service does not serve: %s", said), reader.Close(), p.kill(context.Background()))
}

// kill ends the process by SIGKILL. It is an error if the process has ended before.
func (p *process) kill(context.Context) error {
	if err := p.running.Process.Kill(); err != nil {
		return err
	}
	_ = p.running.Wait() // reports the signal
	if how := p.running.ProcessState.String(); how != "signal: killed" {
		return fmt.Errorf("the service has ended by itself: %s", how)
	}
	return nil
}
