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

// These fields describe the operation to the service. Clients cannot set these fields.
const (
	operationHeader = "Idempotency-Operation"
	attemptHeader   = "Idempotency-Attempt"
)

// upstreamHandler forwards requests to the service, and answers requests after a failure of the service.
type upstreamHandler struct {
	config       *config
	userHeader   *trustedHeader
	keyFields    []string // from config.keyFieldNames
	metrics      *proxyMetrics
	logger       *slog.Logger
	reverseProxy *httputil.ReverseProxy
}

func newUpstream(c *config, m *proxyMetrics, log *slog.Logger) (*upstreamHandler, error) {
	transport, err := newTransport(c, log)
	if err != nil {
		return nil, err
	}
	u := &upstreamHandler{config: c, userHeader: c.newTrustedHeader(), keyFields: c.keyFieldNames(), metrics: m, logger: log}
	u.reverseProxy = &httputil.ReverseProxy{
		Rewrite:        u.rewriteRequest,
		Transport:      transport,
		ModifyResponse: u.judgeResponse,
		ErrorHandler:   u.answerFailure,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:     new(bufferPool),
	}
	return u, nil
}

// newTransport returns a transport that leaves requests and answers unchanged. After a timeout, HTTP/1.1 closes the connection. An
// HTTP/2 connection may carry other requests, so the transport checks a silent connection with a ping. The ping comes only after
// -upstream-header-timeout, because gRPC servers close connections with frequent pings.
func newTransport(c *config, log *slog.Logger) (*http.Transport, error) {
	settings, err := c.upstreamTLS(log)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!c.upstreamHTTP2 || c.upstreamURL.Scheme == "https")
	protocols.SetHTTP2(c.upstreamHTTP2)
	protocols.SetUnencryptedHTTP2(c.upstreamHTTP2)
	dialer := &net.Dialer{Timeout: c.upstreamDialTimeout}
	return &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: settings,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: c.upstreamHeaderTimeout, PingTimeout: c.upstreamDialTimeout, WriteByteTimeout: c.upstreamDialTimeout,
		},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countingConn{Conn: conn}, nil
		},
		TLSHandshakeTimeout:   c.upstreamDialTimeout,
		ResponseHeaderTimeout: c.upstreamHeaderTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       c.upstreamIdleTimeout,
		MaxIdleConnsPerHost:   256,
		DisableCompression:    true,
	}, nil
}

func (u *upstreamHandler) closeIdle() {
	u.reverseProxy.Transport.(*http.Transport).CloseIdleConnections()
}

func (u *upstreamHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := withSendTracker(r.Context())
	if _, guarded := idempotency.FromContext(ctx); guarded || ctx.Done() == nil { // the client cannot end the request
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, u.config.upstreamTimeout)
		defer cancel()
	}
	defer u.recordBrokenAnswer(ctx)
	u.reverseProxy.ServeHTTP(w, r.WithContext(ctx))
}

// recordBrokenAnswer is deferred, because ReverseProxy panics if the body of an answer is incomplete. recordBrokenAnswer counts the
// failure and panics again. The incomplete answer is not stored, and the outcome is unknown, as after any panic.
func (u *upstreamHandler) recordBrokenAnswer(ctx context.Context) {
	failure := recover()
	if failure == nil {
		return
	}
	kind := "broken-off"
	if hasClientLeft(ctx) {
		kind = "client-left"
	}
	u.metrics.countFailure(kind)
	panic(failure)
}

// hasClientLeft reports whether the client of an unguarded request has left. A guarded request continues without the client.
func hasClientLeft(ctx context.Context) bool { return errors.Is(context.Cause(ctx), context.Canceled) }

// rewriteRequest makes the request to the service from the request of the client. Before, compareAsForwarded has removed look-alikes
// of all fields that rewriteRequest sets, and ReverseProxy has removed the fields of the hop and forwardedFields.
func (u *upstreamHandler) rewriteRequest(r *httputil.ProxyRequest) {
	r.SetURL(u.config.upstreamURL)
	r.Out.URL.RawQuery = r.In.URL.RawQuery // unchanged, because the proxy itself never reads the query
	if u.config.preserveHost {
		r.Out.Host = r.In.Host
	}
	u.setForwardedFields(r)
	u.userHeader.forwardUser(r.In, r.Out.Header)
	delete(r.Out.Header, operationHeader)
	delete(r.Out.Header, attemptHeader)
	r.Out.Trailer = nil // discarding is allowed (RFC 9110, section 6.5.1), and trailers could name a user without being fingerprinted
	operation, guarded := idempotency.FromContext(r.In.Context())
	u.rewriteKeys(r.Out.Header, guarded)
	if !guarded {
		return
	}
	r.Out.Header[operationHeader] = []string{operation.ID.String()}
	r.Out.Header[attemptHeader] = []string{strconv.Itoa(operation.Attempt)}
	r.Out.Header.Del("Expect") // the proxy has already read the body
	joinBody(r.Out)
	if r.Out.Body == nil && u.config.upstreamHTTP2 {
		// In HTTP/2, net/http repeats a request without a body after some errors, and the outcome may be unknown after such an error.
		r.Out.Body = io.NopCloser(strings.NewReader(""))
	}
}

// maxJoinedBody leaves room for a header in the write buffer of net/http.
const maxJoinedBody = 2 << 10

// joinBody lets net/http send a small body in the same packet as the header. net/http does so for bodies in a bytes.Reader, which
// saves a tenth of the processor time of a request.
func joinBody(out *http.Request) {
	if out.ContentLength <= 0 || out.ContentLength > maxJoinedBody {
		return
	}
	body := make([]byte, out.ContentLength)
	if _, err := io.ReadFull(out.Body, body); err == nil { // cannot fail, because the body is in memory
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
}

// setForwardedFields sets X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto. Values by a trusted proxy in front are kept.
func (u *upstreamHandler) setForwardedFields(r *httputil.ProxyRequest) {
	trusted := u.config.trustedPeers.containsPeer(r.In.RemoteAddr)
	if trusted {
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"] // SetXForwarded appends to this value
	}
	r.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values := r.In.Header[name]; trusted && len(values) > 0 {
			r.Out.Header[name] = values
		}
	}
}

// rewriteKeys removes the key of a guarded request, unless -forward-key is set. The names of the remaining key fields are in lower
// case, so that net/http does not recognize a key. net/http repeats a request with a key and without a body when a connection breaks.
func (u *upstreamHandler) rewriteKeys(header http.Header, guarded bool) {
	for _, name := range u.keyFields {
		values, ok := header[name]
		delete(header, name)
		if ok && (!guarded || u.config.forwardKey) {
			header[strings.ToLower(name)] = values
		}
	}
}

// judgeResponse marks the outcome as unknown for statuses in -unknown-status, which mean that a gateway behind the proxy has lost the
// service. If judgeResponse returns an error, ReverseProxy closes the connection to the service.
func (u *upstreamHandler) judgeResponse(resp *http.Response) error {
	if slices.Contains(u.config.unknownStatuses, resp.StatusCode) {
		idempotency.Decide(resp.Request.Context(), idempotency.Unknown)
	}
	return checkProtocolSwitch(resp)
}

// answerFailure answers a request after an error of the transport.
func (u *upstreamHandler) answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	if hasClientLeft(ctx) {
		u.metrics.countFailure("client-left")
		w.WriteHeader(http.StatusBadGateway) // only for the log
		return
	}
	f := classifyFailure(ctx, err)
	guarded := idempotency.Decide(ctx, f.verdict)
	problem := f.problem
	if guarded && (f.verdict == idempotency.Free || u.config.abandonedPolicy == reExecute) {
		problem.Retry = idempotency.RetrySameKey
	} else if guarded {
		problem.Retry = idempotency.RetryNever
	}
	u.metrics.countFailure(f.kind)
	u.logger.Warn("no answer of the service", "kind", f.kind, "error", err, "guarded", guarded)
	idempotency.WriteProblem(w, r, &problem)
}

// transportFailure is the meaning of an error of the transport.
type transportFailure struct {
	kind    string // for metrics and logs
	verdict idempotency.Verdict
	problem idempotency.Error
}

func classifyFailure(ctx context.Context, err error) transportFailure {
	switch {
	case !wasSent(ctx):
		return transportFailure{"unreachable", idempotency.Free, idempotency.Error{
			Status: http.StatusBadGateway,
			Title:  "Service not reached",
			Detail: "The service was not reached, and has seen nothing of the request.",
		}}
	case wasRefused(err):
		return transportFailure{"refused", idempotency.Free, idempotency.Error{
			Status: http.StatusBadGateway,
			Title:  "Service did not take the request",
			Detail: "The service has said that it did not process the request.",
		}}
	case isTimeout(err):
		return transportFailure{"timeout", idempotency.Unknown, idempotency.Error{
			Status: http.StatusGatewayTimeout,
			Title:  "Service did not answer in time",
			Detail: "The service may have carried out the request, or not.",
		}}
	default:
		return transportFailure{"broken", idempotency.Unknown, idempotency.Error{
			Status: http.StatusBadGateway,
			Title:  "Connection to the service broke",
			Detail: "The service may have carried out the request, or not.",
		}}
	}
}

// wasRefused reports whether an HTTP/2 service has declared that it did not process the request (RFC 9113, section 8.7). The service
// has either reset the stream with REFUSED_STREAM, or excluded the stream in GOAWAY. net/http reports both only in the text of the
// error.
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

// bufferPool has the buffers for copying bodies of answers.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
