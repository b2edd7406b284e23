//go:build unix

package servertest_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		fault    servertest.Fault
		received string // data at the server when the client gives up
		released string // data at the server after Release
	}{
		{servertest.LoseRequest, "before\n", "before\n"},
		{servertest.LoseReply, "before\nstrike\n", "before\nstrike\n"},
		{servertest.HoldReply, "before\nstrike\n", "before\nstrike\n"},
		{servertest.HoldRequest, "before\n", "before\nstrike\n"},
		{servertest.LateRequest, "before\n", "before\nstrike\n"},
		{servertest.CutRequest, "before\nstrike", "before\nstrike"},
		{servertest.CutReply, "before\nstrike\n", "before\nstrike\n"},
		{servertest.DelayRequest, "before\nstrike\nstrike\n", "before\nstrike\nstrike\n"},
		{servertest.DelayReply, "before\nstrike\nstrike\n", "before\nstrike\nstrike\n"},
	} {
		t.Run(string(tt.fault), func(t *testing.T) {
			t.Parallel()
			s := startEcho(t)
			p := servertest.NewProxy(t, s.addr)
			p.Inject(servertest.Rule{Fault: tt.fault, Pattern: "strike"})

			conn := dial(t, p.Addr())
			send(t, conn, "before\n")
			expect(t, conn, "before\n")
			sent := time.Now()
			send(t, conn, "strike\n")
			expectFault(t, conn, tt.fault, sent)
			eventually(t, tt.received, func() bool { return s.text() == tt.received })
			if p.Strikes() != 1 {
				t.Errorf("got %d strikes, want 1", p.Strikes())
			}
			check(t, conn.Close())
			p.Release()
			eventually(t, "in the end: "+tt.released, func() bool { return s.text() == tt.released })

			again := dial(t, p.Addr())
			send(t, again, "strike\n")
			expect(t, again, "strike\n")
		})
	}
}

func TestReleaseEndsWaitingClient(t *testing.T) {
	t.Parallel()
	s := startEcho(t)
	p := servertest.NewProxy(t, s.addr)
	p.Inject(servertest.Rule{Fault: servertest.HoldRequest})
	conn := dial(t, p.Addr())
	send(t, conn, "one\n")
	eventually(t, "the strike", func() bool { return p.Strikes() == 1 })
	p.Release()
	if got := s.text(); got != "one\n" {
		t.Errorf("server got %q, want one", got)
	}
	expectEnd(t, conn)
}

func TestCloseDropsHeldRequests(t *testing.T) {
	t.Parallel()
	s := startEcho(t)
	p := servertest.NewProxy(t, s.addr)
	p.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "strike"})
	conn := dial(t, p.Addr())
	send(t, conn, "before\n")
	expect(t, conn, "before\n")
	send(t, conn, "strike\n")
	eventually(t, "the strike", func() bool { return p.Strikes() == 1 })
	p.Close()
	expectEnd(t, conn)
	s.close()
	if got := s.text(); got != "before\n" {
		t.Errorf("server got %q, want only what came before", got)
	}
}

func TestRuleSkipsAndRepeats(t *testing.T) {
	t.Parallel()
	p := servertest.NewProxy(t, startEcho(t).addr)
	p.Inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: "strike", Skip: 2, Times: 2})
	var got []string
	for range 3 {
		for _, message := range []string{"strike strike\n", "pass\n"} {
			conn := dial(t, p.Addr())
			send(t, conn, message)
			reply, _ := bufio.NewReader(conn).ReadString('\n') // an error means the end of the connection
			got = append(got, reply)
		}
	}
	want := "strike strike\n,pass\n,strike strike\n,pass\n,,pass\n"
	if strings.Join(got, ",") != want || p.Strikes() != 1 {
		t.Errorf("got replies %q and %d strikes, want %q and 1", got, p.Strikes(), want)
	}
	conn := dial(t, p.Addr())
	send(t, conn, "strike\n")
	expectEnd(t, conn)
	conn = dial(t, p.Addr())
	send(t, conn, "strike\n")
	expect(t, conn, "strike\n")
	if p.Strikes() != 2 {
		t.Errorf("got %d strikes, want 2", p.Strikes())
	}
	p.Inject(servertest.Rule{})
	send(t, conn, "strike\n")
	expect(t, conn, "strike\n")
	if p.Strikes() != 0 {
		t.Errorf("got %d strikes without a fault, want 0", p.Strikes())
	}
}

func TestOutageStrikesEveryFlight(t *testing.T) {
	t.Parallel()
	first, second := startEcho(t), startEcho(t)
	p := servertest.NewProxy(t, first.addr)
	other := p.AddServer(t, second.addr)
	open := dial(t, other)
	p.Inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: "strike", Outage: time.Second})
	send(t, open, "pass\n")
	expect(t, open, "pass\n")
	for _, conn := range []net.Conn{dial(t, p.Addr()), open, dial(t, p.Addr())} {
		send(t, conn, "strike\n")
		expectEnd(t, conn)
	}
	if first.text() != "strike\nstrike\n" || second.text() != "pass\nstrike\n" || p.Strikes() != 3 {
		t.Errorf("servers got %q and %q, with %d strikes", first.text(), second.text(), p.Strikes())
	}
	eventually(t, "the end of the outage", func() bool {
		conn := dial(t, p.Addr())
		send(t, conn, "strike\n")
		reply, _ := bufio.NewReader(conn).ReadString('\n')
		return reply == "strike\n"
	})
}

func TestPatternInPieces(t *testing.T) {
	t.Parallel()
	s := startEcho(t)
	p := servertest.NewProxy(t, s.addr)
	p.Inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: "strike", Skip: 1})
	received := ""
	for i, pieces := range [][]string{{"a st", "ri", "ke, another ", "strike\n"}, {"a st", "ri", "ke\n"}} {
		conn := dial(t, p.Addr())
		for _, piece := range pieces {
			send(t, conn, piece)
			received += piece
			eventually(t, piece, func() bool { return s.text() == received })
		}
		if i == 0 {
			expect(t, conn, strings.Join(pieces, ""))
		} else {
			expectEnd(t, conn)
		}
	}
	if p.Strikes() != 1 {
		t.Errorf("got %d strikes, want 1", p.Strikes())
	}
}

func TestPatternDoesNotSpanFlights(t *testing.T) {
	t.Parallel()
	p := servertest.NewProxy(t, startEcho(t).addr)
	p.Inject(servertest.Rule{Fault: servertest.LoseRequest, Pattern: "st\nrike"})
	conn := dial(t, p.Addr())
	for _, message := range []string{"st\n", "rike\n"} {
		send(t, conn, message)
		expect(t, conn, message)
	}
}

func TestClosedProxyLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	s := startEcho(t)
	p := servertest.NewProxy(t, s.addr)
	idle := dial(t, p.Addr())
	send(t, idle, "one\n")
	expect(t, idle, "one\n")
	for _, fault := range []servertest.Fault{servertest.HoldReply, servertest.HoldRequest} {
		p.Inject(servertest.Rule{Fault: fault})
		conn := dial(t, p.Addr())
		send(t, conn, "one\n")
		expectFault(t, conn, fault, time.Now())
	}
	p.Close()
	s.close()
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("a closed proxy accepts connections")
	}
	eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// echo is a server that sends back each line, and records all received data.
type echo struct {
	listener net.Listener
	addr     string
	running  sync.WaitGroup

	mu  sync.Mutex
	got strings.Builder
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	s := &echo{listener: listener, addr: listener.Addr().String()}
	s.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(s.close)
	return s
}

func (s *echo) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReader(io.TeeReader(conn, s))
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, line) // fails if the client has closed the connection
	}
}

func (s *echo) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(b)
}

func (s *echo) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

// close ends the listener, and waits until all clients have closed their connections.
func (s *echo) close() {
	_ = s.listener.Close()
	s.running.Wait()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, message string) {
	t.Helper()
	_, err := io.WriteString(conn, message)
	check(t, err)
}

func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	check(t, conn.SetReadDeadline(time.Now().Add(soon)))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got reply %q (%v), want %q", got, err, want)
	}
}

// expectFault checks the effect of fault for the client on conn.
func expectFault(t *testing.T, conn net.Conn, fault servertest.Fault, sent time.Time) {
	t.Helper()
	switch fault {
	case servertest.HoldReply, servertest.HoldRequest, servertest.LateRequest:
		expectSilence(t, conn)
	case servertest.CutReply:
		expect(t, conn, "str")
		expectEnd(t, conn)
	case servertest.DelayRequest, servertest.DelayReply:
		expect(t, conn, "strike\n")
		if took := time.Since(sent); took < while {
			t.Errorf("not delayed: it took %v", took)
		}
		send(t, conn, "strike\n") // the connection still works
		expect(t, conn, "strike\n")
	default:
		expectEnd(t, conn)
	}
}

// expectEnd checks that the peer closes the connection without sending more data.
func expectEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	if n, err := readUntil(t, conn, soon); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes (%v), want the end of the connection", n, err)
	}
}

func expectSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	if n, err := readUntil(t, conn, while); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes (%v), want silence", n, err)
	}
}

func readUntil(t *testing.T, conn net.Conn, d time.Duration) (int, error) {
	t.Helper()
	check(t, conn.SetReadDeadline(time.Now().Add(d)))
	return conn.Read(make([]byte, 1))
}
