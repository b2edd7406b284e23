package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// cable connects two network namespaces. This process carries packets between the namespaces while the cable is whole, and drops
// packets while the cable is cut. Neither side learns of a loss, so connections stay open on both sides.
type cable struct {
	nearEnd, farEnd *namespace
	isCut           atomic.Bool
}

const nearAddr, farAddr = "10.0.0.1", "10.0.0.2"

// newCable returns a cable for the duration of the test, which ends here if the machine does not allow namespaces.
func newCable(t *testing.T) *cable {
	near, err := newNamespace(nearAddr)
	requireNamespaces(t, err)
	far, err := newNamespace(farAddr)
	requireNamespaces(t, err)
	c := &cable{nearEnd: near, farEnd: far}
	go c.carryPackets(near, far)
	go c.carryPackets(far, near)
	t.Cleanup(func() {
		near.close()
		far.close()
	})
	return c
}

func (c *cable) carryPackets(from, to *namespace) {
	packet := make([]byte, 64<<10)
	for {
		n, err := from.tunDevice.Read(packet)
		if err != nil {
			return
		}
		if !c.isCut.Load() {
			_, _ = to.tunDevice.Write(packet[:n])
		}
	}
}

func (c *cable) cut()  { c.isCut.Store(true) }
func (c *cable) heal() { c.isCut.Store(false) }

// dialFromNear connects to an address from the near end.
func (c *cable) dialFromNear(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	inErr := c.nearEnd.runInside(func() {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, network, addr)
	})
	if inErr != nil {
		return nil, inErr
	}
	return conn, err
}

// serveAtFar opens a listener at the far end whose connections lead to the server at target, and returns the address of the
// listener.
func (c *cable) serveAtFar(t *testing.T, target string) string {
	var listener net.Listener
	var err error
	requireNamespaces(t, c.farEnd.runInside(func() { listener, err = net.Listen("tcp4", farAddr+":0") }))
	requireNamespaces(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go relayConnection(ctx, client, target)
		}
	}()
	return listener.Addr().String()
}

// relayConnection copies the data between a client and the server at target until either side closes its connection.
func relayConnection(ctx context.Context, client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(ctx)
	pass := func(to, from net.Conn) {
		defer cancel()
		_, _ = io.Copy(to, from)
	}
	go pass(server, client)
	go pass(client, server)
	<-ctx.Done()
}

// namespace is a network namespace with a single interface. This process reads and writes the packets of the interface.
type namespace struct {
	tunDevice     *os.File
	namespaceFile *os.File // in /proc; used to enter the namespace
}

func newNamespace(addr string) (n *namespace, err error) {
	runOnNewThread(func() {
		n, err = enterNamespace(addr)
	})
	return n, err
}

// runOnNewThread runs do on a thread that is not used again, because do may move the thread to another namespace.
func runOnNewThread(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		do()
	}()
	<-done
}

// enterNamespace moves the current thread to a new namespace.
func enterNamespace(addr string) (*namespace, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	name, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return nil, err
	}
	tun, err := openTun(addr)
	if err != nil {
		_ = name.Close()
		return nil, err
	}
	return &namespace{tun, name}, nil
}

// runInside runs f on a thread in the namespace. runInside returns an error after close, because a pool may dial even after its
// Close.
func (n *namespace) runInside(f func()) (err error) {
	runOnNewThread(func() {
		if err = n.enterThread(); err == nil {
			f()
		}
	})
	return err
}

func (n *namespace) enterThread() error {
	name, err := n.namespaceFile.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = name.Control(func(fd uintptr) { refused = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	return errors.Join(err, refused)
}

func (n *namespace) close() {
	_ = n.tunDevice.Close()
	_ = n.namespaceFile.Close()
}

// openTun creates an interface with the address addr in the namespace of the current thread.
func openTun(addr string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	if err := configureTun(fd, net.ParseIP(addr).To4()); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

func configureTun(fd int, addr net.IP) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	for _, step := range []struct {
		fd      int
		request uint
		set     func(*unix.Ifreq) error
	}{
		{fd, unix.TUNSETIFF, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI); return nil }},
		{socket, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(addr) }},
		{socket, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(net.IPv4Mask(255, 255, 255, 0)) }},
		{socket, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
	} {
		r, err := unix.NewIfreq("tun0")
		if err != nil {
			return err
		}
		if err := step.set(r); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(step.fd, step.request, r); err != nil {
			return fmt.Errorf("interface of a namespace: %w", err)
		}
	}
	return nil
}
