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

// cable connects two network namespaces. This process carries the packets from one to the other, or drops them: then
// nobody is told that they are lost, and connections stay open on both sides.
type cable struct {
	near, far *namespace
	isCut     atomic.Bool
}

const nearAddr, farAddr = "10.0.0.1", "10.0.0.2"

// newCable returns a cable for the duration of the test, which ends here if the machine does not allow namespaces.
func newCable(t *testing.T) *cable {
	near, err := newNamespace(nearAddr)
	requireNamespaces(t, err)
	far, err := newNamespace(farAddr)
	requireNamespaces(t, err)
	c := &cable{near: near, far: far}
	go c.carry(near, far)
	go c.carry(far, near)
	t.Cleanup(func() {
		near.close()
		far.close()
	})
	return c
}

func (c *cable) carry(from, to *namespace) {
	packet := make([]byte, 64<<10)
	for {
		n, err := from.tun.Read(packet)
		if err != nil {
			return
		}
		if !c.isCut.Load() {
			_, _ = to.tun.Write(packet[:n])
		}
	}
}

func (c *cable) cut()  { c.isCut.Store(true) }
func (c *cable) heal() { c.isCut.Store(false) }

// dial connects from the near end.
func (c *cable) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	inErr := c.near.do(func() {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, network, addr)
	})
	if inErr != nil {
		return nil, inErr
	}
	return conn, err
}

// serve has a server, which listens elsewhere, answer at the far end. It returns its address there.
func (c *cable) serve(t *testing.T, target string) string {
	var listener net.Listener
	var err error
	requireNamespaces(t, c.far.do(func() { listener, err = net.Listen("tcp4", farAddr+":0") }))
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
			go relay(ctx, client, target)
		}
	}()
	return listener.Addr().String()
}

// relay passes on everything between a client and a server, until one of them closes its connection.
func relay(ctx context.Context, client net.Conn, target string) {
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

// namespace is a network of its own, with one interface: this process reads and writes its packets.
type namespace struct {
	tun  *os.File
	name *os.File // as /proc shows it
}

func newNamespace(addr string) (n *namespace, err error) {
	inThread(func() {
		n, err = enterNamespace(addr)
	})
	return n, err
}

// inThread runs do on a thread that is not used again: it may be in another namespace then.
func inThread(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		do()
	}()
	<-done
}

// enterNamespace moves this thread to a new namespace.
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

// do runs f on a thread in the namespace. It fails once the namespace is closed: a pool dials on after its Close.
func (n *namespace) do(f func()) (err error) {
	inThread(func() {
		if err = n.enter(); err == nil {
			f()
		}
	})
	return err
}

func (n *namespace) enter() error {
	name, err := n.name.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = name.Control(func(fd uintptr) { refused = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	return errors.Join(err, refused)
}

func (n *namespace) close() {
	_ = n.tun.Close()
	_ = n.name.Close()
}

// openTun makes an interface with an address in the namespace of this thread.
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
