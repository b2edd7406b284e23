//go:build unix

package probe_test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/faulty"
)

// TestDeathBeforeTheConnectionIsAccepted has a process whose socket outlives it, as sockets of systemd do. One request reaches
// the socket and not the process, so the next process executes the request. The probe must not count this effect for the request
// after it, and must not wait until the request has timed out.
func TestDeathBeforeTheConnectionIsAccepted(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	socket, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	require.NoError(t, listener.Close()) // socket is a copy, and stays open
	t.Cleanup(func() { assert.NoError(t, socket.Close()) })
	p := &process{directory: t.TempDir(), socket: socket}
	require.NoError(t, p.start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, p.kill(context.Background())) })

	service := describePayments(p.directory)
	service.URLs = []string{"http://" + address}
	service.Only, service.Deaths, service.Timeout = []string{"deaths"}, 4, 10*time.Second
	kills, isStopped := 0, false
	service.Start = p.start
	service.Kill = func(ctx context.Context) error {
		kills++
		return p.kill(ctx)
	}
	service.Effects = func(context.Context) (int, error) {
		if kills == 2 && !isStopped { // the third request arrives at the socket of a stopped process
			isStopped = true
			if err := p.stop(); err != nil {
				return 0, err
			}
		}
		return faulty.CountCharges(p.directory)
	}
	result := requireResult(t, service, "deaths")
	assert.Equal(t, probe.Passed, result.Status, result.Explain())
	assert.True(t, isStopped)
	assert.Less(t, result.Duration, service.Timeout)
	t.Log(result.Explain())
}

// stop stops the process with SIGSTOP.
func (p *process) stop() error {
	if err := p.command.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	_, err := syscall.Wait4(p.command.Process.Pid, nil, syscall.WUNTRACED, nil)
	return err
}
