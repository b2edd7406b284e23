package servertest

import (
	"bytes"
	"net"
	"time"
)

// link is a connection of a client through the proxy. Errors of writing are of no interest to it: whoever reads from
// the same connection learns of its end and closes the other one.
type link struct {
	proxy    *Proxy
	client   net.Conn
	server   *net.TCPConn
	released chan struct{} // closed when a request that is held is to be passed on
	done     chan struct{} // closed when the server has closed its connection

	// Guarded by the mutex of the proxy.
	replied bool   // the server spoke last
	tail    []byte // the end of what the flight contains so far, in which the pattern may have begun
	matched bool   // the flight was counted as one that has the pattern
	fault   Fault  // what has struck
}

func newLink(p *Proxy, client net.Conn, server *net.TCPConn) *link {
	return &link{
		proxy: p, client: client, server: server,
		released: make(chan struct{}), done: make(chan struct{}),
		replied: true,
	}
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// passRequests passes on what the client sends until it has closed its connection. The server may finish then what it
// has received; it closes its own connection after that.
func (l *link) passRequests() {
	var held []byte
	var fault Fault
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			break
		}
		switch fault = l.judge(buf[:n]); fault {
		case LoseRequest:
			l.close()
		case CutRequest:
			_, _ = l.server.Write(buf[:n-1])
			_ = l.client.Close()
		case HoldRequest, LateRequest:
			held = append(held, buf[:n]...)
		case DelayRequest:
			l.pause()
			fallthrough
		default:
			_, _ = l.server.Write(buf[:n])
		}
	}
	if fault == HoldRequest {
		l.awaitRelease()
	}
	if l.proxy.ctx.Err() == nil {
		_, _ = l.server.Write(held)
	}
	_ = l.server.CloseWrite()
}

// awaitRelease waits until what is held is to be passed on, or the end of the proxy.
func (l *link) awaitRelease() {
	select {
	case <-l.released:
	case <-l.proxy.ctx.Done():
	}
}

// pause delays what is to be passed on.
func (l *link) pause() {
	select {
	case <-time.After(delay):
	case <-l.proxy.ctx.Done():
	}
}

// passReplies passes on what the server sends until it has closed its connection.
func (l *link) passReplies() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		switch l.reply() {
		case LoseReply:
			_ = l.client.Close()
		case CutReply:
			_, _ = l.client.Write(buf[:n/2])
			_ = l.client.Close()
		case HoldReply:
		case DelayReply:
			l.pause()
			fallthrough
		default:
			_, _ = l.client.Write(buf[:n])
		}
	}
}

// judge returns the fault that strikes the flight to which the client has just added sent.
func (l *link) judge(sent []byte) Fault {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if l.replied {
		l.replied, l.tail, l.matched = false, nil, false
		l.proxy.flights++
		if l.fault.delays() {
			l.fault = ""
		}
	}
	pattern := []byte(l.proxy.rule.Pattern)
	seen := append(l.tail, sent...)
	if l.fault == "" && !l.matched {
		l.matched = bytes.Contains(seen, pattern)
		l.fault = l.proxy.strike(l, l.matched)
	}
	l.tail = seen[max(0, len(seen)-len(pattern)):]
	return l.fault
}

// reply notes that the server has spoken, and returns the fault that has struck the connection.
func (l *link) reply() Fault {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.replied = true
	return l.fault
}
