package servertest

import (
	"context"
	"net"
	"sync"
	"testing"
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
)

// Rule says which flights of a client are struck by which fault. A flight is all that a client sends on a connection
// from one reply of the server to the next: a request, or a pipeline of them.
type Rule struct {
	Fault   Fault  // none if it is empty
	Pattern string // what a flight contains, as bytes on the wire, to be struck
	Skip    int    // how many such flights pass unharmed before
	Times   int    // how many are struck; zero means one
}

// Proxy is a TCP proxy on loopback between clients and a server, in this process. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	ctx      context.Context // ends with the proxy
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	rule    Rule
	strikes int
	flights int
	held    []*link
}

// NewProxy returns a proxy for the server at target that passes on everything, for the duration of the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, target: target}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Addr returns the host and port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Inject replaces the rule, and begins to count strikes anew. Connections that were struck before stay so.
func (p *Proxy) Inject(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rule.Times = max(rule.Times, 1)
	p.rule, p.strikes = rule, 0
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
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	var dialer net.Dialer
	server, err := dialer.DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		return
	}
	l := newLink(p, client, server.(*net.TCPConn))
	defer close(l.done)
	defer context.AfterFunc(p.ctx, l.close)()
	defer l.close()

	p.running.Go(l.passRequests)
	l.passReplies()
}

// strike returns the fault for one more flight that has the pattern.
func (p *Proxy) strike(l *link) Fault {
	if p.rule.Skip > 0 {
		p.rule.Skip--
		return ""
	}
	if p.rule.Times == 0 || p.rule.Fault == "" {
		return ""
	}
	p.rule.Times--
	p.strikes++
	if p.rule.Fault == HoldRequest {
		p.held = append(p.held, l)
	}
	return p.rule.Fault
}
