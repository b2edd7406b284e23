package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// errTooManyRequests ends the checks at Service.MaxRequests.
var errTooManyRequests error = &notMadeError{reason: "the bound on requests is reached", isInterrupted: true}

// maxAnswer is the largest body of an answer, in bytes. The rest of a larger body is left unread.
const maxAnswer = 64 << 20

// client sends requests over HTTP/1.1 and HTTP/2, and breaks connections.
type client struct {
	http1Transport *http.Transport // HTTP/1.1
	http2Transport *http.Transport
	tlsConfig      *tls.Config
	requestTimeout time.Duration
	requestsLeft   atomic.Int64
}

func newClient(s *Service) *client {
	newTransport := func(set func(*http.Protocols)) *http.Transport {
		protocols := new(http.Protocols)
		set(protocols)
		return &http.Transport{
			TLSClientConfig:     s.TLS.Clone(),
			Protocols:           protocols,
			DisableCompression:  true, // because bodies are compared as they are sent
			MaxIdleConnsPerHost: 100,
			IdleConnTimeout:     500 * time.Millisecond, // before a server closes the connection while a request is sent on it
		}
	}
	c := &client{
		http1Transport: newTransport(func(p *http.Protocols) { p.SetHTTP1(true) }),
		http2Transport: newTransport(func(p *http.Protocols) {
			p.SetHTTP2(true)
			p.SetUnencryptedHTTP2(true)
		}),
		tlsConfig:      s.TLS,
		requestTimeout: s.Timeout,
	}
	c.requestsLeft.Store(int64(s.MaxRequests))
	return c
}

func (c *client) close() {
	c.http1Transport.CloseIdleConnections()
	c.http2Transport.CloseIdleConnections()
}

// takeRequest counts a request, and returns an error at the bound.
func (c *client) takeRequest() error {
	if c.requestsLeft.Add(-1) < 0 {
		return errTooManyRequests
	}
	return nil
}

// send sends r with transport, and returns the complete answer. Redirects are answers.
func (c *client) send(ctx context.Context, transport http.RoundTripper, r *request, base string) *exchange {
	sent := &exchange{request: r, baseURL: base}
	if sent.err = c.takeRequest(); sent.err != nil {
		return sent
	}
	built, err := r.build(base)
	if err != nil {
		sent.err = err
		return sent
	}
	ctx, cancel := context.WithTimeout(ctx, c.requestTimeout)
	defer cancel()
	begin := time.Now()
	response, err := transport.RoundTrip(built.WithContext(ctx))
	if err != nil {
		sent.err = err
		return sent
	}
	sent.answer, sent.err = readAnswer(response, begin)
	return sent
}

// readAnswer reads response to its end.
func readAnswer(response *http.Response, begin time.Time) (*answer, error) {
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("the answer %d broke off: %w", response.StatusCode, err)
	}
	return &answer{status: response.StatusCode, header: response.Header, body: body, protocol: response.Proto,
		duration: time.Since(begin)}, nil
}

// cutPoint is where the probe breaks a connection.
type cutPoint struct {
	description    string
	findEnd        func(encoded []byte) int // how many bytes of the request are sent
	needsBody      bool                     // without a body, the request is complete at this point
	pause          time.Duration            // between the request and the end of the connection
	readsFirstByte bool                     // the connection is closed when the answer begins
}

// sendAndCut sends r on a connection of its own and closes the connection at point.
func (c *client) sendAndCut(ctx context.Context, r *request, base string, point cutPoint) *exchange {
	sent := &exchange{request: r, baseURL: base, probeAction: point.description}
	if sent.err = c.takeRequest(); sent.err != nil {
		return sent
	}
	encoded, err := r.encode(base)
	if err != nil {
		sent.err = err
		return sent
	}
	ctx, cancel := context.WithTimeout(ctx, c.requestTimeout)
	defer cancel()
	connection, err := c.dial(ctx, base)
	if err != nil {
		sent.err = err
		return sent
	}
	defer func() { _ = connection.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = connection.SetDeadline(deadline)
	}
	if _, sent.err = connection.Write(encoded[:point.findEnd(encoded)]); sent.err != nil {
		return sent
	}
	time.Sleep(point.pause) // a part of the time for one request
	if point.readsFirstByte {
		_, sent.err = bufio.NewReaderSize(connection, 16).ReadByte()
	}
	return sent
}

// dial opens a connection for HTTP/1.1 to the instance at base.
func (c *client) dial(ctx context.Context, base string) (net.Conn, error) {
	address, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	port := address.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[address.Scheme]
	}
	hostPort := net.JoinHostPort(address.Hostname(), port)
	if address.Scheme == "http" {
		return new(net.Dialer).DialContext(ctx, "tcp", hostPort)
	}
	config := c.tlsConfig.Clone()
	if config == nil {
		config = new(tls.Config)
	}
	config.NextProtos = []string{"http/1.1"}
	return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", hostPort)
}
