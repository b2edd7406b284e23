package servertest

import (
	"bytes"
	"net"
	"time"
)

// link is a connection of a client through the proxy. A link ignores errors of writes, because the reader of the same
// connection gets an error as well and closes both connections.
type link struct {
	proxy          *Proxy
	clientConn     net.Conn
	serverConn     *net.TCPConn
	releaseRequest chan struct{} // closed to forward a held request
	serverDone     chan struct{} // closed when the server has closed its connection

	// The mutex of the proxy guards the fields below.
	hasReplied  bool   // the last data came from the server
	flightTail  []byte // the end of the flight so far, which may be the beginning of the pattern
	isMatched   bool   // the flight contains the pattern, and was counted
	activeFault Fault  // empty without a fault
}

func newLink(p *Proxy, client net.Conn, server *net.TCPConn) *link {
	return &link{
		proxy: p, clientConn: client, serverConn: server,
		releaseRequest: make(chan struct{}), serverDone: make(chan struct{}),
		hasReplied: true,
	}
}

func (l *link) close() {
	_ = l.clientConn.Close()
	_ = l.serverConn.Close()
}

// passRequests forwards data from the client until the client closes the connection. The server may still finish the
// requests that it has received, and then closes its connection.
func (l *link) passRequests() {
	var held []byte
	var fault Fault
	buf := make([]byte, 64<<10)
	for {
		n, err := l.clientConn.Read(buf)
		if err != nil {
			break
		}
		switch fault = l.requestFault(buf[:n]); fault {
		case LoseRequest:
			l.close()
		case CutRequest:
			_, _ = l.serverConn.Write(buf[:n-1])
			_ = l.clientConn.Close()
		case HoldRequest, LateRequest:
			held = append(held, buf[:n]...)
		case DelayRequest:
			l.waitDelay()
			fallthrough
		default:
			_, _ = l.serverConn.Write(buf[:n])
		}
	}
	if fault == HoldRequest {
		l.awaitRelease()
	}
	if l.proxy.ctx.Err() == nil {
		_, _ = l.serverConn.Write(held)
	}
	_ = l.serverConn.CloseWrite()
}

// awaitRelease waits for the release of a held request, or for the end of the proxy.
func (l *link) awaitRelease() {
	select {
	case <-l.releaseRequest:
	case <-l.proxy.ctx.Done():
	}
}

// waitDelay waits for the duration of a delay, or for the end of the proxy.
func (l *link) waitDelay() {
	select {
	case <-time.After(delay):
	case <-l.proxy.ctx.Done():
	}
}

// passReplies forwards data from the server until the server closes the connection.
func (l *link) passReplies() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.serverConn.Read(buf)
		if err != nil {
			return
		}
		switch l.replyFault() {
		case LoseReply:
			_ = l.clientConn.Close()
		case CutReply:
			_, _ = l.clientConn.Write(buf[:n/2])
			_ = l.clientConn.Close()
		case HoldReply:
		case DelayReply:
			l.waitDelay()
			fallthrough
		default:
			_, _ = l.clientConn.Write(buf[:n])
		}
	}
}

// requestFault adds sent to the current flight, and returns the fault for the flight.
func (l *link) requestFault(sent []byte) Fault {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if l.hasReplied {
		l.hasReplied, l.flightTail, l.isMatched = false, nil, false
		l.proxy.flightCount++
		if l.activeFault.onlyDelays() {
			l.activeFault = ""
		}
	}
	pattern := []byte(l.proxy.rule.Pattern)
	seen := append(l.flightTail, sent...)
	if l.activeFault == "" && !l.isMatched {
		l.isMatched = bytes.Contains(seen, pattern)
		l.activeFault = l.proxy.nextFault(l, l.isMatched)
	}
	l.flightTail = seen[max(0, len(seen)-len(pattern)):]
	return l.activeFault
}

// replyFault records that the server has sent data, and returns the fault of the connection.
func (l *link) replyFault() Fault {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.hasReplied = true
	return l.activeFault
}
