package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// What the upstream is told of the operation. Clients cannot set these fields.
const (
	operationHeader = "Idempotency-Operation"
	attemptHeader   = "Idempotency-Attempt"
)

// upstream forwards requests to the service, and says what its failures mean.
type upstream struct {
	config  *config
	user    *trustedHeader
	keys    []string // see keyFields
	metrics *metrics
	log     *slog.Logger
	proxy   *httputil.ReverseProxy
}

func newUpstream(c *config, m *metrics, log *slog.Logger) (*upstream, error) {
	transport, err := newTransport(c, log)
	if err != nil {
		return nil, err
	}
	u := &upstream{config: c, user: c.header(), keys: c.keyFields(), metrics: m, log: log}
	u.proxy = &httputil.ReverseProxy{
		Rewrite:        u.rewrite,
		Transport:      transport,
		ModifyResponse: u.judge,
		ErrorHandler:   u.failed,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:     new(bufferPool),
	}
	return u, nil
}

// newTransport returns a transport that changes nothing of what it carries. If a request takes too long, HTTP/1.1 closes its
// connection. One of HTTP/2 carries other requests, too: when it has been silent for as long as an answer may take to begin, a
// ping asks whether it lives. It is not asked sooner, because servers of gRPC close connections that are pinged often.
func newTransport(c *config, log *slog.Logger) (*http.Transport, error) {
	settings, err := c.upstreamTLS(log)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!c.upstreamHTTP2 || c.upstreamURL.Scheme == "https")
	protocols.SetHTTP2(c.upstreamHTTP2)
	protocols.SetUnencryptedHTTP2(c.upstreamHTTP2)
	dialer := &net.Dialer{Timeout: c.upstreamDial}
	return &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: settings,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: c.upstreamHeader, PingTimeout: c.upstreamDial, WriteByteTimeout: c.upstreamDial,
		},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countingConn{Conn: conn}, nil
		},
		TLSHandshakeTimeout:   c.upstreamDial,
		ResponseHeaderTimeout: c.upstreamHeader,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       c.upstreamIdle,
		MaxIdleConnsPerHost:   256,
		DisableCompression:    true,
	}, nil
}

func (u *upstream) close() { u.proxy.Transport.(*http.Transport).CloseIdleConnections() }

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := withSent(r.Context())
	if _, guarded := idempotency.FromContext(ctx); guarded || ctx.Done() == nil { // no client can end it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, u.config.upstreamTimeout)
		defer cancel()
	}
	defer u.brokenOff(ctx)
	u.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// brokenOff is deferred: ReverseProxy panics if an answer ends within its body. The half that came is not stored, and
// the outcome is unknown, as after any panic.
func (u *upstream) brokenOff(ctx context.Context) {
	failure := recover()
	if failure == nil {
		return
	}
	kind := "broken-off"
	if clientLeft(ctx) {
		kind = "client-left"
	}
	u.metrics.failed(kind)
	panic(failure)
}

// clientLeft reports whether the client of an unguarded request has left. A guarded one goes on.
func clientLeft(ctx context.Context) bool { return errors.Is(context.Cause(ctx), context.Canceled) }

// rewrite makes the request to the service out of the client's. compareAsForwarded has removed the look-alikes of all fields
// that are set here. ReverseProxy has removed the fields of the hop, and those that tell of the client.
func (u *upstream) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(u.config.upstreamURL)
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it was sent; nothing here reads it
	if u.config.preserveHost {
		r.Out.Host = r.In.Host
	}
	u.tellOfClient(r)
	u.user.forward(r.In, r.Out.Header)
	delete(r.Out.Header, operationHeader)
	delete(r.Out.Header, attemptHeader)
	r.Out.Trailer = nil // which may be discarded (RFC 9110, section 6.5.1), could name a user, and is in no fingerprint
	operation, guarded := idempotency.FromContext(r.In.Context())
	u.rewriteKeys(r.Out.Header, guarded)
	if !guarded {
		return
	}
	r.Out.Header[operationHeader] = []string{operation.ID.String()}
	r.Out.Header[attemptHeader] = []string{strconv.Itoa(operation.Attempt)}
	r.Out.Header.Del("Expect") // the body is here
	joinBody(r.Out)
	if r.Out.Body == nil && u.config.upstreamHTTP2 {
		// In HTTP/2, net/http sends a request without a body again after some errors, one of which says nothing of the outcome.
		r.Out.Body = io.NopCloser(strings.NewReader(""))
	}
}

// smallBody is what fits into the buffer of a connection of net/http, beside a header.
const smallBody = 2 << 10

// joinBody has net/http send a small body in one packet with the header, as it does if it knows that the body is in
// memory. That saves a tenth of the processor time of a request.
func joinBody(out *http.Request) {
	if out.ContentLength <= 0 || out.ContentLength > smallBody {
		return
	}
	body := make([]byte, out.ContentLength)
	if _, err := io.ReadFull(out.Body, body); err == nil { // it cannot fail: the body is in memory
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
}

// tellOfClient sets X-Forwarded-For, -Host and -Proto, and keeps what a proxy in front has said in them.
func (u *upstream) tellOfClient(r *httputil.ProxyRequest) {
	trusted := u.config.trusted.contain(r.In.RemoteAddr)
	if trusted {
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"] // which SetXForwarded appends to
	}
	r.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values := r.In.Header[name]; trusted && len(values) > 0 {
			r.Out.Header[name] = values
		}
	}
}

// rewriteKeys takes the key of a guarded request away, unless the service is to get it. If it stays, its name is
// written in small letters, which net/http does not recognise: it would send a request that has a key and no body again
// when a connection breaks.
func (u *upstream) rewriteKeys(header http.Header, guarded bool) {
	for _, name := range u.keys {
		values, ok := header[name]
		delete(header, name)
		if ok && (!guarded || u.config.forwardKey) {
			header[strings.ToLower(name)] = values
		}
	}
}

// judge says of some answers that they tell nothing of the outcome. A gateway behind this one has lost the service. If
// judge returns an error, ReverseProxy closes the connection to the service.
func (u *upstream) judge(resp *http.Response) error {
	if slices.Contains(u.config.unknownStatus, resp.StatusCode) {
		idempotency.Decide(resp.Request.Context(), idempotency.Unknown)
	}
	return checkSwitch(resp)
}

// failed answers when the service did not.
func (u *upstream) failed(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	if clientLeft(ctx) {
		u.metrics.failed("client-left")
		w.WriteHeader(http.StatusBadGateway) // to nobody
		return
	}
	f := failureOf(ctx, err)
	guarded := idempotency.Decide(ctx, f.verdict)
	problem := f.problem
	if guarded && (f.verdict == idempotency.Free || u.config.abandoned == reExecute) {
		problem.Retry = idempotency.RetrySameKey
	} else if guarded {
		problem.Retry = idempotency.RetryNever
	}
	u.metrics.failed(f.kind)
	u.log.Warn("no answer of the service", "kind", f.kind, "error", err, "guarded", guarded)
	idempotency.WriteProblem(w, r, &problem)
}

// failure is what an error of the transport means.
type failure struct {
	kind    string // for metrics and logs
	verdict idempotency.Verdict
	problem idempotency.Error
}

func failureOf(ctx context.Context, err error) failure {
	switch {
	case !wasSent(ctx):
		return failure{"unreachable", idempotency.Free, idempotency.Error{
			Status: http.StatusBadGateway,
			Title:  "Service not reached",
			Detail: "The service was not reached, and has seen nothing of the request.",
		}}
	case wasRefused(err):
		return failure{"refused", idempotency.Free, idempotency.Error{
			Status: http.StatusBadGateway,
			Title:  "Service did not take the request",
			Detail: "The service has said that it did not process the request.",
		}}
	case isTimeout(err):
		return failure{"timeout", idempotency.Unknown, idempotency.Error{
			Status: http.StatusGatewayTimeout,
			Title:  "Service did not answer in time",
			Detail: "The service may have carried out the request, or not.",
		}}
	default:
		return failure{"broken", idempotency.Unknown, idempotency.Error{
			Status: http.StatusBadGateway,
			Title:  "Connection to the service broke",
			Detail: "The service may have carried out the request, or not.",
		}}
	}
}

// wasRefused reports whether a service has said in HTTP/2 that it did not process a request (RFC 9113, section 8.7): it reset
// the stream for that reason, or the stream came behind the last one that it takes before it ends. net/http has no other sign
// of that than its text.
func wasRefused(err error) bool {
	text := err.Error()
	return strings.Contains(text, "; REFUSED_STREAM; received from peer") ||
		strings.Contains(text, "http2: Transport received Server's graceful shutdown GOAWAY")
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// bufferPool holds the buffers through which bodies of answers are copied.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
