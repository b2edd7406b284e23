package servertest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Fault is what a [Proxy] does to a request.
type Fault string

const (
	// LoseRequest closes the connection instead of passing the request on.
	LoseRequest Fault = "LoseRequest"

	// LoseReply passes the request on, and closes the connection when the server replies: it has done its work then.
	LoseReply Fault = "LoseReply"

	// HoldReply passes the request on, but never a reply: the client waits until it gives up.
	HoldReply Fault = "HoldReply"

	// HoldRequest passes the request on only when the test calls [Proxy.Release]: the client waits until it gives up.
	HoldRequest Fault = "HoldRequest"

	// LateRequest passes the request on as soon as the client has given up, and closed its connection; or when the test
	// calls [Proxy.Release].
	LateRequest Fault = "LateRequest"

	// CutRequest passes the request on but for its last byte, or the first 64 KiB of a large one, and closes the connection.
	CutRequest Fault = "CutRequest"

	// CutReply passes the request on, and half of what the server replies first; then it closes the connection.
	CutReply Fault = "CutReply"

	// DelayRequest passes the request on after a tenth of a second.
	DelayRequest Fault = "DelayRequest"

	// DelayReply passes the reply on after a tenth of a second.
	DelayReply Fault = "DelayReply"
)

const delay = 100 * time.Millisecond

// delays reports whether the fault does not harm the connection.
func (f Fault) delays() bool { return f == DelayRequest || f == DelayReply }

// Rule says which flights of a client are struck by which fault. A flight is all that a client sends on a connection
// from one reply of the server to the next: a request, or a pipeline of them.
type Rule struct {
	Fault   Fault         // none if it is empty
	Pattern string        // what a flight contains, as bytes on the wire, to be struck; every flight does if it is empty
	Skip    int           // how many such flights pass unharmed before
	Times   int           // how many are struck; zero means one
	Outage  time.Duration // strikes all flights, whatever they contain, for so long after the first strike
}

// Proxy is a TCP proxy on loopback between clients and one server or several, in this process. It is safe for concurrent
// use.
type Proxy struct {
	addr    string
	ctx     context.Context // ends with the proxy
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	rule    Rule
	outage  time.Time // when it ends
	strikes int
	flights int
	held    []*link
}

// NewProxy returns a proxy for the server at target that passes on everything, for the duration of the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	t.Cleanup(p.Close)
	p.addr = p.Also(t, target)
	return p
}

// Addr returns the host and port that clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// Also puts the proxy in front of one more server, and returns the host and port that stand for it. One rule is for all
// servers, and their flights are counted together.
func (p *Proxy) Also(t testing.TB, target string) string {
	t.Helper()
	listener := listen(t)
	p.running.Go(func() { relay(p.ctx, &p.running, listener, target, p.carry) })
	return listener.Addr().String()
}

// Inject replaces the rule, and begins to count strikes anew. Connections that were struck before stay so.
func (p *Proxy) Inject(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rule.Times = max(rule.Times, 1)
	p.rule, p.strikes, p.outage = rule, 0, time.Time{}
}

// Strikes returns how many flights were struck under the rule.
func (p *Proxy) Strikes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.strikes
}

// Flights returns how many flights clients have begun on all connections: their round trips, and what they send to
// open and to close a connection.
func (p *Proxy) Flights() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flights
}

// Release passes on all requests that are held and closes their connections. When it returns, the server has
// processed the requests and closed the connections, too.
func (p *Proxy) Release() {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, l := range held {
		_ = l.client.Close()
		close(l.released)
		<-l.done
	}
}

// Close closes all connections and waits for the end of all that the proxy does.
func (p *Proxy) Close() {
	p.cancel()
	p.running.Wait()
}

func (p *Proxy) carry(client net.Conn, server *net.TCPConn) {
	l := newLink(p, client, server)
	defer close(l.done)
	defer context.AfterFunc(p.ctx, l.close)()
	defer l.close()

	p.running.Go(l.passRequests)
	l.passReplies()
}

// strike returns the fault for one more flight, which has the pattern or is told not to.
func (p *Proxy) strike(l *link, matches bool) Fault {
	if !time.Now().Before(p.outage) && !(matches && p.isDue()) {
		return ""
	}
	p.strikes++
	if p.strikes == 1 {
		p.outage = time.Now().Add(p.rule.Outage)
	}
	if p.rule.Fault == HoldRequest || p.rule.Fault == LateRequest {
		p.held = append(p.held, l)
	}
	return p.rule.Fault
}

// isDue reports whether the rule strikes a flight that has the pattern.
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
