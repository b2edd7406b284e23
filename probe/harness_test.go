package probe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/faulty"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// The variables of the environment that make the test binary a process of the service.
const (
	directoryVariable = "PROBE_TEST_DIRECTORY"
	faultVariable     = "PROBE_TEST_FAULT"
	addressVariable   = "PROBE_TEST_ADDRESS"
)

func TestMain(m *testing.M) {
	if directory := os.Getenv(directoryVariable); directory != "" {
		fmt.Println(serveProcess(os.Getenv(addressVariable), directory, faulty.Fault(os.Getenv(faultVariable))))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveProcess serves until the process is killed. Without an address, the process inherits its socket.
func serveProcess(address, directory string, fault faulty.Fault) error {
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	if address != "" {
		listener, err = net.Listen("tcp", address)
	}
	if err != nil {
		return err
	}
	fmt.Println("listening")
	return newServer(faulty.New(directory, fault)).Serve(listener)
}

// newServer returns a server for HTTP/1.1 and HTTP/2.
func newServer(handler http.Handler) *http.Server {
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server
}

// startServer serves handler in this process, and returns its URL. At the end of the test, the server waits for handlers whose
// clients have gone, because they may still write into the directory of the test.
func startServer(t *testing.T, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := newServer(handler)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(t, server.Shutdown(ctx))
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return "http://" + listener.Addr().String()
}

// process is the service in a process of its own.
type process struct {
	address   string
	directory string
	fault     faulty.Fault
	socket    *os.File // that the process inherits if the address is empty
	command   *exec.Cmd
}

// startProcess starts a process on a free port, and kills it at the end of the test.
func startProcess(t *testing.T, directory string, fault faulty.Fault) *process {
	t.Helper()
	p := &process{address: servertest.PickAddress(t), directory: directory, fault: fault}
	require.NoError(t, p.start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, p.kill(context.Background())) })
	return p
}

func (p *process) start(context.Context) error {
	p.command = exec.Command(os.Args[0])
	p.command.Env = append(os.Environ(),
		directoryVariable+"="+p.directory, faultVariable+"="+string(p.fault), addressVariable+"="+p.address)
	if p.socket != nil {
		p.command.ExtraFiles = []*os.File{p.socket}
	}
	output, err := p.command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.command.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err == nil && line != "listening\n" {
		err = errors.New(line)
	}
	return err
}

func (p *process) kill(context.Context) error {
	if err := p.command.Process.Kill(); err != nil {
		return err
	}
	_ = p.command.Wait() // reports the signal
	return nil
}

// startPayments starts two instances of the payment service with fault: a process, and a server in this process.
func startPayments(t *testing.T, fault faulty.Fault) probe.Service {
	t.Helper()
	directory := t.TempDir()
	first := startProcess(t, directory, fault)
	service := describePayments(directory)
	service.URLs = []string{"http://" + first.address, startServer(t, faulty.New(directory, fault))}
	service.Kill, service.Start = first.kill, first.start
	return service
}

// describePayments describes the payment service with this directory, without its instances.
func describePayments(directory string) probe.Service {
	return probe.Service{
		Request:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "20ms"}`),
		Other:      testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 20, "takes": "20ms"}`),
		OtherRoute: testservice.BuildJSON(http.MethodPut, "/payments", `{"amount": 10, "takes": "20ms"}`),
		Invalid:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 0}`),
		Failing:    testservice.BuildJSON(http.MethodPost, "/failures", `{"amount": 10}`),
		Slow:       testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "100ms"}`),
		Stream:     testservice.BuildJSON(http.MethodPost, "/statements", `{"amount": 10}`),
		As:         func(r *http.Request, user string) { r.Header.Set("Authorization", user) },
		Effects:    func(context.Context) (int, error) { return faulty.CountCharges(directory) },
		Bound:      5 * time.Second,
		Deaths:     8,
	}
}
