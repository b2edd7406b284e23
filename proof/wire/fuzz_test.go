package wire_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// memoryNetwork is a network with one server, for fuzz targets, because a network in memory needs no ports.
type memoryNetwork struct {
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

// serveInMemory starts an http.Server for handler.
func serveInMemory(t testing.TB, handler http.Handler) *memoryNetwork {
	t.Helper()
	n := &memoryNetwork{conns: make(chan net.Conn), ended: make(chan struct{})}
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(n)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return n
}

func (n *memoryNetwork) Accept() (net.Conn, error) {
	select {
	case conn := <-n.conns:
		return conn, nil
	case <-n.ended:
		return nil, net.ErrClosed
	}
}

func (n *memoryNetwork) Close() error {
	n.once.Do(func() { close(n.ended) })
	return nil
}

func (n *memoryNetwork) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// serverEnd is a connection of two pipes, one for each direction, so that a client can close a single direction.
type serverEnd struct {
	net.Conn          // the requests
	replies  net.Conn // the replies
}

func (c serverEnd) Write(p []byte) (int, error)        { return c.replies.Write(p) }
func (c serverEnd) SetWriteDeadline(t time.Time) error { return c.replies.SetWriteDeadline(t) }
func (c serverEnd) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(t) }
func (c serverEnd) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetReadDeadline(t), c.replies.SetWriteDeadline(t))
}
func (c serverEnd) Close() error { return errors.Join(c.Conn.Close(), c.replies.Close()) }

// send sends the bytes of request over a new connection, and returns all bytes of the reply.
func (n *memoryNetwork) send(t testing.TB, request string) string {
	return n.exchange(t, request, false)
}

// exchange sends a request over a new connection, and returns all bytes of the reply. If ends is set, exchange
// closes the sending direction after the request.
func (n *memoryNetwork) exchange(t testing.TB, request string, ends bool) string {
	t.Helper()
	requests, in := net.Pipe()
	out, replies := net.Pipe()
	require.NoError(t, replies.SetReadDeadline(time.Now().Add(10*time.Second)))
	n.conns <- serverEnd{in, out}
	written := make(chan struct{})
	go func() { // the server may answer before the server has read everything
		defer close(written)
		_, _ = io.WriteString(requests, request)
		if ends {
			_ = requests.Close()
		}
	}()
	reply, err := io.ReadAll(replies)
	require.NoError(t, err, "%q: %q", request, reply)
	require.NoError(t, errors.Join(requests.Close(), replies.Close()))
	<-written
	return string(reply)
}

// wholeAnswer is an answer as a client reads it, with the trailer.
type wholeAnswer struct {
	testservice.Answer
	trailer http.Header
}

// readWhole reads one final response, and requires that no bytes follow.
func readWhole(t testing.TB, reply, method string) wholeAnswer {
	t.Helper()
	r := bufio.NewReader(strings.NewReader(reply))
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		require.NoError(t, err, "%q", reply)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err, "%q", reply)
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Empty(t, string(rest), "a second response")
		resp.Header.Del("Date")
		return wholeAnswer{testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: nil}, resp.Trailer}
	}
}

var varyingFields = regexp.MustCompile(`(?m)^(Date: .*|Idempotent-Replayed: true)\r\n`)

// withoutMark removes from a final reply the parts that differ at another time, and the mark of a replay.
func withoutMark(reply string) string {
	reply = strings.TrimPrefix(reply, "HTTP/1.1 100 Continue\r\n\r\n")
	head, body, found := strings.Cut(reply, "\r\n\r\n")
	if !found {
		return reply
	}
	return varyingFields.ReplaceAllString(head+"\r\n", "") + "\r\n" + body
}

// lateForgery is a forgedStore whose response can be changed later.
type lateForgery struct {
	response *atomic.Pointer[idempotency.Response]
}

func (s lateForgery) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return testservice.ForgedStore{Response: s.response.Load()}.Begin(ctx, key, request)
}

// refusableFields are the fields that may cause the refusal of a stored response.
var refusableFields = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date", "Content-Length",
	"Idempotent-Replayed",
}

// netHTTPFields are the fields that net/http itself adds to a response.
var netHTTPFields = []string{"Connection", "Content-Length", "Content-Type", "Trailer", "Transfer-Encoding"}

// canonicalNames returns the names of fields as a client reads them.
func canonicalNames(fields ...idempotency.Fields) (names []string) {
	for _, f := range fields {
		for name := range f.Header() {
			names = append(names, textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix)))
		}
	}
	return names
}

// illegibleBytes are bytes that net/http sends in the value of a field although clients reject them.
var illegibleBytes = regexp.MustCompile(`[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]`)

func containsAny(names, of []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(of, name) })
}

// FuzzForgedResponse replays any stored response over a real server. The reply equals the reply of a plain handler
// byte for byte, or the response is refused for one of a few reasons. A client never reads two answers, or a field
// that is not stored. The server does not panic.
func FuzzForgedResponse(f *testing.F) {
	f.Add(200, "Content-Type: text/plain\n", "", []byte("body"))
	f.Add(200, "transfer-encoding: chunked\n", "", []byte("0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	f.Add(204, "Content-Length: 3\n", `Trailer\x3aX: y`+"\n", []byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Add(304, "Trailer: A\n", "A: b\n", []byte(nil))
	f.Add(-1, `a\x0d\x0ab: c`+"\n", "", []byte("x"))
	f.Add(201, `A: b\x0d\x0aX: y`+"\nDate\nSet-Cookie: a\nSet-Cookie: b\n", "", []byte("<html>"))
	f.Add(200, "Content-Length: 4\nTrailer: A, B\n", "A: 1\nB: 2\n", []byte("body"))
	f.Add(200, "Content-Encoding: gzip\nContent-Type\n", `Trailer\x3aA: 1`+"\n", make([]byte, 3000))
	var resp atomic.Pointer[idempotency.Response]
	m, err := idempotency.New(lateForgery{&resp}, idempotency.SingleUser, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(f, err)
	var panics atomic.Int64
	watched := func(next http.Handler) *memoryNetwork {
		return serveInMemory(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			next.ServeHTTP(w, r)
		}))
	}
	guarded := watched(m.Handler(http.NotFoundHandler()))
	plain := watched(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answerPlainly(w, resp.Load()) }))
	f.Fuzz(func(t *testing.T, status int, header, trailer string, body []byte) {
		stored := idempotency.Response{
			Status: status, Header: idempotency.Fields(header), Trailer: idempotency.Fields(trailer), Body: body,
		}
		data, err := stored.MarshalBinary()
		require.NoError(t, err)
		var read idempotency.Response
		if err := read.UnmarshalBinary(data); err != nil {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			return
		}
		resp.Store(&read)
		const request = "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
		reply := guarded.send(t, request)
		require.Zero(t, panics.Load())
		names := canonicalNames(read.Header, read.Trailer)
		if strings.HasPrefix(reply, "HTTP/1.1 503 ") && strings.Contains(reply, "#store-unavailable") {
			mayRefuse := status < 200 || status > 999 || containsAny(names, refusableFields)
			require.True(t, mayRefuse, "refused: %d %q %q", status, header, trailer)
			require.NotContains(t, reply, "Idempotent-Replayed")
			return
		}
		require.Equal(t, withoutMark(plain.send(t, request)), withoutMark(reply))
		if illegibleBytes.MatchString(testservice.UnescapeField(header + trailer)) {
			return // clients reject such a value from any server
		}
		got := readWhole(t, reply, http.MethodPost)
		require.True(t, got.Replayed())
		require.Equal(t, status, got.Status)
		if status != http.StatusNoContent && status != http.StatusNotModified {
			require.Equal(t, string(body), got.Body)
		}
		for name := range maps.Keys(got.Header) {
			require.True(t, name == "Idempotent-Replayed" || containsAny([]string{name}, append(names, netHTTPFields...)), "%q", name)
		}
	})
}

// answerPlainly answers with resp like a handler without the middleware.
func answerPlainly(w http.ResponseWriter, resp *idempotency.Response) {
	trailer := resp.Trailer.Header()
	maps.Copy(w.Header(), resp.Header.Header())
	for name, values := range trailer {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(resp.Status)
	_, _ = w.Write(resp.Body)
	maps.Copy(w.Header(), trailer)
}

// ledgerStore counts the unsettled claims.
type ledgerStore struct {
	idempotency.Store
	open atomic.Int64
}

func (s *ledgerStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		s.open.Add(1)
		claim = &ledgerClaim{claim, s}
	}
	return record, claim, err
}

type ledgerClaim struct {
	idempotency.Claim
	store *ledgerStore
}

func (c *ledgerClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	defer c.store.open.Add(-1)
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c *ledgerClaim) Release(ctx context.Context, end idempotency.Release) error {
	defer c.store.open.Add(-1)
	return c.Claim.Release(ctx, end)
}

// fuzzedService is a middleware, with the requests that the middleware and the handler have seen.
type fuzzedService struct {
	t       testing.TB
	network *memoryNetwork
	store   ledgerStore
	guarded http.Handler

	request *http.Request // the last request that has reached the middleware; nil: none
	runs    int           // runs of the handler
	key     idempotency.Key
	panics  int
}

// fuzzedLimit is the size of the largest allowed body.
const fuzzedLimit = 1000

func newFuzzedService(t testing.TB, network *memoryNetwork) *fuzzedService {
	s := &fuzzedService{t: t, network: network}
	s.store.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	m, err := idempotency.New(&s.store, idempotency.SingleUser, idempotency.Options{
		MaxBody: fuzzedLimit, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	s.guarded = m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs++
		op, _ := idempotency.FromContext(r.Context())
		s.key = op.Key
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Run", fmt.Sprint(s.runs))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}))
	return s
}

func (s *fuzzedService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if recover() != nil {
			s.panics++
		}
	}()
	s.request = r
	s.guarded.ServeHTTP(w, r)
}

// ask sends a request, and returns the raw reply and the answer. Each request must leave no panic and no claim, and
// must get exactly one answer.
func (s *fuzzedService) ask(request fuzzedRequest) (string, wholeAnswer) {
	s.request = nil
	reply := s.network.exchange(s.t, request.raw, request.cut)
	require.Zero(s.t, s.panics)
	require.Zero(s.t, s.store.open.Load(), "a claim is left behind")
	if s.request == nil { // net/http refuses such a request for any method
		return reply, readWhole(s.t, reply, http.MethodGet)
	}
	return reply, readWhole(s.t, reply, request.method)
}

// fuzzedRequest is a request as bytes, with the parts that net/http reads.
type fuzzedRequest struct {
	raw, method string
	body        string
	cut         bool // the body does not end at the end of the request
}

func newFuzzedRequest(method, target, key, lines, body string) fuzzedRequest {
	raw := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", method, target)
	if key != "" {
		raw += "Idempotency-Key: " + key + "\r\n"
	}
	raw += fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", lines, len(body), body)
	request := fuzzedRequest{raw: raw, method: method}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err == nil {
		var b []byte
		b, err = io.ReadAll(r.Body)
		request.body = string(b)
	}
	request.cut = err != nil
	return request
}

// FuzzRequest sends any request twice, and then sends the request with a different body. The expected answers and
// runs of the handler follow from the method, the key and the body, which the test parses by itself.
func FuzzRequest(f *testing.F) {
	const form = "Content-Type: application/x-www-form-urlencoded\r\n"
	for _, method := range []string{"POST", "PATCH", "GET", "post", "HEAD", "CONNECT", "OPTIONS", "P@ST"} {
		f.Add(method, "/payments?a=1", "key", form, "a=1")
	}
	for _, target := range []string{"/", "//a/../b", "/%2F%00", "http://y/a?b", "*", "a b", "/" + strings.Repeat("a", 300), "?", "/\xff"} {
		f.Add("POST", target, "key", "", "body")
	}
	for _, key := range []string{"", `"key"`, `"a\"`, "a,b", " key ", "k\x00", strings.Repeat("k", 256), "\xff"} {
		f.Add("PATCH", "/payments", key, "", "")
	}
	for _, lines := range []string{
		"Idempotency-Key: other\r\n", "idempotency-key: key\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: 5000\r\n",
		"Expect: 100-continue\r\n", "Host: y\r\n", " obs: fold\r\n", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
		"Content-Type: text/", "Content-Encoding: ", "X-HTTP-Method-Override:", "\r\n\r\n", "Content-Length: 9\r\n\r\n", "Content-Encoding: gzip\r\nX-HTTP-Method-Override: PUT\r\n", "Upgrade: h2c\r\n", ": \r\n",
	} {
		f.Add("POST", "/payments", "key", lines, "4\r\nbody\r\n0\r\n\r\n")
		f.Add("POST", "/payments", "", lines, "body")
	}
	f.Add("POST", "/payments", "key", "", strings.Repeat("x", fuzzedLimit+1))
	var service atomic.Pointer[fuzzedService]
	network := serveInMemory(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { service.Load().ServeHTTP(w, r) }))
	f.Fuzz(func(t *testing.T, method, target, key, lines, body string) {
		if strings.ContainsAny(method+target+key, "\r\n") {
			return // the changed lines make a different request
		}
		s := newFuzzedService(t, network)
		service.Store(s)
		request := newFuzzedRequest(method, target, key, lines, body)
		reply, first := s.ask(request)
		seen := s.request
		if seen == nil { // net/http has answered
			require.Zero(t, s.runs)
			require.True(t, first.Status >= 400 || method == http.MethodOptions, "%d", first.Status)
			return
		}
		ids := seen.Header["Idempotency-Key"]
		if seen.Method != http.MethodPost && seen.Method != http.MethodPatch || len(ids) == 0 {
			_, again := s.ask(request)
			require.Equal(t, 2, s.runs, "nothing guards this request")
			require.False(t, again.Replayed())
			return
		}
		id, ok := testservice.ParseKeyByPattern(ids[0])
		switch {
		case len(ids) > 1 || !ok:
			s.requireRefused(first, http.StatusBadRequest, "key-invalid")
		case seen.ContentLength > fuzzedLimit || !request.cut && len(request.body) > fuzzedLimit:
			s.requireRefused(first, http.StatusRequestEntityTooLarge, "body-too-large")
		case request.cut:
			require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, first.Status)
			require.Zero(t, s.runs)
		default:
			s.requireReplayed(request, reply, first)
			s.requireKey(seen, id)
			s.requireOtherRefused(request, newFuzzedRequest(method, target, key, lines, body+"x"), seen)
		}
	})
}

func (s *fuzzedService) requireRefused(got wholeAnswer, status int, code string) {
	s.t.Helper()
	require.Equal(s.t, status, got.Status)
	require.Contains(s.t, got.Body, "#"+code)
	require.Zero(s.t, s.runs)
}

// requireReplayed requires that the handler has given the first answer, and that the second answer is the same.
func (s *fuzzedService) requireReplayed(request fuzzedRequest, reply string, first wholeAnswer) {
	s.t.Helper()
	require.Equal(s.t, http.StatusCreated, first.Status)
	require.False(s.t, first.Replayed())
	require.Equal(s.t, request.body, first.Body)
	again, second := s.ask(request)
	require.True(s.t, second.Replayed())
	require.Equal(s.t, withoutMark(reply), withoutMark(again))
	require.Equal(s.t, 1, s.runs)
}

// requireKey requires that the handler has got the key id.
func (s *fuzzedService) requireKey(r *http.Request, id string) {
	s.t.Helper()
	require.Equal(s.t, id, s.key.ID)
	if path, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(path, "/") {
		want := idempotency.Key{User: "single", Endpoint: r.Method + " " + path, ID: id}.Bounded()
		require.True(s.t, want == s.key, "%q is not %q", s.key.Endpoint, want.Endpoint)
	}
}

// requireOtherRefused requires that a request with the same key and a different body is refused. The lines may
// contain the Content-Length of the other request in the value of a field, so a request with the same body may be
// replayed or refused.
func (s *fuzzedService) requireOtherRefused(request, other fuzzedRequest, seen *http.Request) {
	s.t.Helper()
	_, third := s.ask(other)
	if s.request != nil && !other.cut && len(other.body) <= fuzzedLimit {
		if other.body != request.body || reflect.DeepEqual(seen.Header, s.request.Header) {
			require.Equal(s.t, other.body == request.body, third.Replayed())
		}
		require.True(s.t, third.Replayed() || strings.Contains(third.Body, "#key-reused"), "%q", third.Body)
	}
	require.Equal(s.t, 1, s.runs)
}
