package servertest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Fault is a fault that a [Proxy] injects.
type Fault string

const (
	// LoseRequest closes the connection instead of forwarding the request.
	LoseRequest Fault = "LoseRequest"

	// LoseReply forwards the request, and closes the connection when the server replies. The request has then taken
	// effect.
	LoseReply Fault = "LoseReply"

	// HoldReply forwards the request but no reply, so the client waits until its timeout.
	HoldReply Fault = "HoldReply"

	// HoldRequest holds the request until the test calls [Proxy.Release], so the client waits until its timeout.
	HoldRequest Fault = "HoldRequest"

	// LateRequest holds the request until the client closes the connection, or until the test calls [Proxy.Release].
	LateRequest Fault = "LateRequest"

	// CutRequest forwards the request without its last byte, and closes the connection. Of a large request,
	// CutRequest forwards at most 64 KiB.
	CutRequest Fault = "CutRequest"

	// CutReply forwards the request and the first half of the first data of the reply, and closes the connection.
	CutReply Fault = "CutReply"

	// DelayRequest forwards the request after 0.1 seconds.
	DelayRequest Fault = "DelayRequest"

	// DelayReply forwards the reply after 0.1 seconds.
	DelayReply Fault = "DelayReply"
)

const delay = 100 * time.Millisecond

// onlyDelays reports whether the fault keeps the connection intact.
func (f Fault) onlyDelays() bool { return f == DelayRequest || f == DelayReply }

// Rule decides which flights get which fault. A flight is all data that a client sends on a connection between two
// replies of the server: a request, or a pipeline of requests.
type Rule struct {
	Fault   Fault         // empty: no fault
	Pattern string        // bytes on the wire that a flight must contain; empty: any flight
	Skip    int           // number of matching flights to spare first
	Times   int           // number of flights that get the fault; zero means one
	Outage  time.Duration // all flights get the fault for this time after the first, even without Pattern
}

// Proxy is a TCP proxy on loopback, in this process, between clients and one or several servers. A Proxy is safe for
// concurrent use.
type Proxy struct {
	addr       string
	ctx        context.Context // ends with the proxy
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	mu          sync.Mutex
	rule        Rule
	outageEnd   time.Time
	strikeCount int
	flightCount int
	heldLinks   []*link
}

// NewProxy starts a proxy for the server at target, for the duration of the test. Without a rule, the proxy forwards
// all data.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	t.Cleanup(p.Close)
	p.addr = p.AddServer(t, target)
	return p
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.addr }

// AddServer adds a server at target, and returns the address for clients of the server. All servers share the rule
// and the counts.
func (p *Proxy) AddServer(t testing.TB, target string) string {
	t.Helper()
	listener := listenTCP(t)
	p.goroutines.Go(func() { relayConns(p.ctx, &p.goroutines, listener, target, p.carryConn) })
	return listener.Addr().String()
}

// Inject replaces the rule, and resets the count of strikes. Connections with a fault keep the fault.
func (p *Proxy) Inject(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rule.Times = max(rule.Times, 1)
	p.rule, p.strikeCount, p.outageEnd = rule, 0, time.Time{}
}

// Strikes returns the number of flights that got the fault of the current rule.
func (p *Proxy) Strikes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.strikeCount
}

// Flights returns the number of flights on all connections: the round trips, and the data that opens and closes
// connections.
func (p *Proxy) Flights() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flightCount
}

// Release forwards all held requests, and closes their client connections. Release returns after the server has
// processed the requests and closed its connections.
func (p *Proxy) Release() {
	p.mu.Lock()
	held := p.heldLinks
	p.heldLinks = nil
	p.mu.Unlock()
	for _, l := range held {
		_ = l.clientConn.Close()
		close(l.releaseRequest)
		<-l.serverDone
	}
}

// Close closes all connections, and waits for all goroutines of the proxy.
func (p *Proxy) Close() {
	p.cancel()
	p.goroutines.Wait()
}

func (p *Proxy) carryConn(client net.Conn, server *net.TCPConn) {
	l := newLink(p, client, server)
	defer close(l.serverDone)
	defer context.AfterFunc(p.ctx, l.close)()
	defer l.close()

	p.goroutines.Go(l.passRequests)
	l.passReplies()
}

// nextFault returns the fault for a flight of l. matches reports whether the flight contains the pattern.
func (p *Proxy) nextFault(l *link, matches bool) Fault {
	if !time.Now().Before(p.outageEnd) && !(matches && p.isDue()) {
		return ""
	}
	p.strikeCount++
	if p.strikeCount == 1 {
		p.outageEnd = time.Now().Add(p.rule.Outage)
	}
	if p.rule.Fault == HoldRequest || p.rule.Fault == LateRequest {
		p.heldLinks = append(p.heldLinks, l)
	}
	return p.rule.Fault
}

// isDue reports whether a matching flight gets the fault of the rule, and counts the flight.
func (p *Proxy) isDue() bool {
	switch {
	case p.rule.Fault == "" || p.rule.Times == 0:
		return false
	case p.rule.Skip > 0:
		p.rule.Skip--
		return false
	}
	p.rule.Times--
	return true
}
