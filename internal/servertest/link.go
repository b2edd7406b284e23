package servertest

import (
	"bytes"
	"net"
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
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			break
		}
		switch l.judge(buf[:n]) {
		case LoseRequest:
			l.close()
		case HoldRequest:
			held = append(held, buf[:n]...)
		default:
			_, _ = l.server.Write(buf[:n])
		}
	}
	if held != nil {
		select {
		case <-l.released:
			_, _ = l.server.Write(held)
		case <-l.proxy.ctx.Done():
		}
	}
	_ = l.server.CloseWrite()
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
		case HoldReply:
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
	}
	pattern := []byte(l.proxy.rule.Pattern)
	seen := append(l.tail, sent...)
	if l.fault == "" && !l.matched && bytes.Contains(seen, pattern) {
		l.matched = true
		l.fault = l.proxy.strike(l)
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
