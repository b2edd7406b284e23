package wire_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"math/bits"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// A wireRow is a raw request, which the test sends twice, each time over a new connection, and the expected bytes
// until the server closes the connection. The request may contain meanwhile and halfClose.
//
// The answers are separated by commas. Each answer is one of these:
//
//   - "201": the handler's answer, with its status; "201 cut" if the connection ended inside the answer;
//   - "replay": an earlier answer of the handler, byte for byte apart from the mark;
//   - "400 key-invalid": a refusal, with every part checked;
//   - "400 net/http": an answer of the server itself, to a request that reaches no handler;
//   - empty: the server closed the connection without an answer.
type wireRow struct {
	name, sent   string
	first, again string
	runs         int // runs of the handler for both requests
}

const (
	meanwhile = "⏸" // the request pauses here until the server has served another client
	halfClose = "⏹" // the client closes its sending direction, and still reads
)

func TestWire(t *testing.T) {
	t.Parallel()
	newMemory := func() idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }
	t.Run("memory", func(t *testing.T) { testWire(t, newMemory) })
	t.Run("Redis", func(t *testing.T) {
		client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
		testWire(t, func() idempotency.Store {
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: rand.Text() + ":"})
		})
	})
}

// testWire tests every row with a new store.
func testWire(t *testing.T, newStore func() idempotency.Store) {
	withoutLeaks(t, func(t *testing.T, label string) {
		for group, table := range wireTables {
			for _, row := range table.rows {
				t.Run(group+": "+row.name, func(t *testing.T) {
					t.Parallel()
					s := newWireServer(t, label)
					s.store.Store = newStore()
					s.start(withLimits(table.opts), s.handle, http1)
					require.Equal(t, row.first, s.exchange(row.sent), "first")
					require.Equal(t, row.again, s.exchange(row.sent), "again")
					require.EqualValues(t, row.runs, s.runs.Load(), "runs of the handler")
					s.requireInOrder()
				})
			}
		}
	})
}

// The table has at least 120 different rows.
func TestWireTableIsLarge(t *testing.T) {
	t.Parallel()
	rows := 0
	for _, table := range wireTables {
		names := map[string]bool{}
		for _, row := range table.rows {
			require.False(t, names[row.name], "two rows have the name %q", row.name)
			names[row.name] = true
		}
		rows += len(names)
	}
	t.Attr("rows", strconv.Itoa(rows))
	require.GreaterOrEqual(t, rows, 120)
}

// wireServer is a real server with a guarded handler.
type wireServer struct {
	t      *testing.T
	label  string // the label of the server's goroutines
	store  *askedStore
	svc    *testservice.Service
	runs   atomic.Int64 // runs of the handler, without the requests to other paths in between
	log    syncBuffer   // the log of the server
	server *httptest.Server
	opts   idempotency.Options
	meets  atomic.Pointer[meeting]
	firsts map[string]testservice.Answer // the handler's answers, by the number of the run
}

func newWireServer(t *testing.T, label string) *wireServer {
	return &wireServer{t: t, label: label, firsts: map[string]testservice.Answer{}, store: &askedStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		asked: map[idempotency.Key]idempotency.ClaimRequest{},
	}}
}

// withLimits adds limits to opts that a row can exceed.
func withLimits(opts idempotency.Options) idempotency.Options {
	opts.MaxBody, opts.MaxBodies, opts.MaxUserBodies, opts.MaxResponse = 1000, 4<<10, 4<<10, 4000
	return opts
}

// transport is the protocol of a server: only HTTP/1.1, or HTTP/2 as well, with or without TLS.
type transport string

const (
	http1    transport = "HTTP/1.1"
	http2    transport = "HTTP/2"
	http2TLS transport = "HTTP/2 over TLS"
)

func (s *wireServer) start(opts idempotency.Options, handler http.HandlerFunc, transport transport) {
	s.opts = opts
	guarded := testservice.Setup{Store: s.store, Opts: opts, Outer: addClientContext}
	s.svc = guarded.Guard(s.t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case inBetween:
			w.Header().Set("X-Run", "in between")
		case together:
			s.meets.Load().wait()
		default:
			handler(w, r)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	s.server = httptest.NewUnstartedServer(s.svc.Handler)
	s.svc.Server = s.server
	s.server.Config.ErrorLog = log.New(&s.log, "", 0)
	s.server.Config.Protocols = new(http.Protocols)
	s.server.Config.Protocols.SetHTTP1(true)
	s.server.Config.Protocols.SetUnencryptedHTTP2(transport == http2)
	s.server.Config.Protocols.SetHTTP2(transport == http2TLS)
	s.server.EnableHTTP2 = transport == http2TLS
	start := s.server.Start
	if transport == http2TLS {
		s.server.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}}
		start = s.server.StartTLS
	}
	// The server's goroutines, and all goroutines that they start, inherit the label.
	pprof.Do(context.Background(), pprof.Labels("wire", s.label), func(context.Context) { start() })
	s.t.Cleanup(s.server.Close)
}

// clientContext is the key of a context that ends when the client leaves.
type clientContext struct{}

func addClientContext(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, clientContext{}, ctx)))
	})
}

const (
	inBetween = "/in-between"
	together  = "/together" // the handlers of concurrent requests to this path meet
)

// handle is the guarded handler. Each answer is unique.
func (s *wireServer) handle(w http.ResponseWriter, r *http.Request) {
	run := s.runs.Add(1)
	body, _ := io.ReadAll(r.Body) // ignores read errors, because a handler without a guard would not see the body either
	w.Header().Set("X-Run", fmt.Sprint(run))
	status := http.StatusCreated
	switch r.URL.Path {
	case "/abort":
		panic(http.ErrAbortHandler)
	case "/early-hints":
		w.WriteHeader(http.StatusEarlyHints)
	case "/fails":
		status = http.StatusBadGateway
	case "/flushes":
		_ = http.NewResponseController(w).Flush()
	case "/hijacks":
		if _, _, err := http.NewResponseController(w).Hijack(); err != nil {
			status = http.StatusUpgradeRequired
		}
	case "/large":
		body = bytes.Repeat([]byte("large"), 1000)
	case "/no-content":
		w.WriteHeader(http.StatusNoContent)
		return
	case "/short":
		w.Header().Set("Content-Length", "1000")
	case "/switches":
		status = http.StatusSwitchingProtocols
	case "/trailer":
		w.Header().Set("Trailer", "X-Sum")
		defer w.Header().Set("X-Sum", "42")
	}
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "%d: %s %.100s %q", run, r.Method, r.RequestURI, body)
}

// dial opens a connection for a protocol, which has the name of ALPN.
func (s *wireServer) dial(protocol string) net.Conn {
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	require.NoError(s.t, err)
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	if s.server.TLS == nil {
		return conn
	}
	config := s.server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName, config.NextProtos = "example.com", []string{protocol}
	secured := tls.Client(conn, config)
	require.NoError(s.t, secured.Handshake())
	require.Equal(s.t, protocol, secured.ConnectionState().NegotiatedProtocol)
	return secured
}

// exchange sends bytes over a new connection, and describes the answers.
func (s *wireServer) exchange(sent string) string {
	conn := s.dial("http/1.1")
	defer conn.Close()
	ask, halfClosed := strings.CutSuffix(sent, halfClose)
	var wrote sync.WaitGroup
	defer wrote.Wait() // closing the connection ends the writes at the latest
	for i, part := range strings.Split(ask, meanwhile) {
		if i > 0 {
			s.requireServed()
		}
		wrote.Wait()
		wrote.Go(func() { _, _ = io.WriteString(conn, part) }) // the server may hang up before the server has read everything
	}
	if halfClosed {
		wrote.Wait()
		require.NoError(s.t, conn.(interface{ CloseWrite() error }).CloseWrite())
	}
	method, _, _ := strings.Cut(ask, " ")
	answers := s.describeAll(bufio.NewReader(conn), method)
	conn.Close()
	return answers
}

// describeAll describes the answers until the server closes the connection.
func (s *wireServer) describeAll(from *bufio.Reader, method string) string {
	var answers []string
	for {
		if _, err := from.Peek(1); err != nil {
			netErr, ok := err.(net.Error)
			require.False(s.t, ok && netErr.Timeout(), "the server keeps the connection after %v", answers)
			return strings.Join(answers, ", ")
		}
		resp, err := http.ReadResponse(from, &http.Request{Method: method})
		require.NoError(s.t, err)
		answers = append(answers, s.describe(resp))
	}
}

// describe returns the name of an answer in the form of a wireRow.
func (s *wireServer) describe(resp *http.Response) string {
	body, err := io.ReadAll(resp.Body)
	resp.Header.Del("Date")
	resp.Header.Del("Connection")
	if len(resp.Trailer) > 0 {
		body = fmt.Appendf(body, " trailer %v", resp.Trailer)
	}
	a := testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: err}
	run := a.Header.Get("X-Run")
	switch {
	case err != nil:
		return fmt.Sprintf("%d cut", a.Status)
	case a.Status < 200:
		return fmt.Sprint(a.Status)
	case a.Replayed():
		testservice.RequireReplay(s.t, s.firsts[run], a)
		return "replay"
	case run != "":
		s.firsts[run] = a
		return fmt.Sprint(a.Status)
	case a.Header.Get("Content-Type") == "application/problem+json":
		_, after, _ := strings.Cut(a.Body, "#")
		code, _, _ := strings.Cut(after, `"`)
		testservice.RequireProblem(s.t, a, a.Status, code)
		return fmt.Sprint(a.Status, " ", code)
	default:
		require.True(s.t, resp.Close)
		return fmt.Sprint(a.Status, " net/http")
	}
}

// requireServed requires that a valid request on another connection is executed.
func (s *wireServer) requireServed() {
	s.t.Helper()
	require.Equal(s.t, "201", s.exchange(pays(inBetween, rand.Text())))
}

// requireInOrder requires that the requests have left nothing behind.
func (s *wireServer) requireInOrder() {
	s.t.Helper()
	s.requireServed()
	await(s.t, "a claim is left", func() bool { return s.store.running() == 0 })
	await(s.t, "a share is left", s.hasAllShares)
	for line := range strings.Lines(s.log.String()) {
		// The first error comes with GOAWAY, the other errors come when a client hangs up before that.
		const harmless = "http2: server connection error|http2: server: error reading preface|TLS handshake error|" +
			"timeout waiting for SETTINGS frames"
		require.Regexp(s.t, harmless, line, "what the server logged")
	}
}

// hasAllShares reports whether the middleware has all memory of MaxBodies free, by sending concurrent requests with
// bodies of MaxBody. The only user may take all of the memory.
func (s *wireServer) hasAllShares() bool {
	largest := cmp.Or(s.opts.MaxBody, 1<<20)
	buffer := int64(1) << bits.Len64(uint64(largest-1))
	body := strings.Repeat("b", int(largest))
	m := newMeeting(int(s.opts.MaxBodies / buffer))
	s.meets.Store(m)
	var refused atomic.Bool
	var all sync.WaitGroup
	for range m.expected {
		all.Go(func() {
			if s.svc.Send(together, rand.Text(), body).Status != http.StatusCreated {
				refused.Store(true)
				m.end() // releases the other handlers, which would wait in vain
			}
		})
	}
	all.Wait()
	return !refused.Load()
}

// meeting makes handlers wait until all expected handlers have arrived.
type meeting struct {
	expected int
	there    atomic.Int64
	over     chan struct{}
	end      func()
}

func newMeeting(expected int) *meeting {
	m := &meeting{expected: expected, over: make(chan struct{})}
	m.end = sync.OnceFunc(func() { close(m.over) })
	return m
}

func (m *meeting) wait() {
	if m.there.Add(1) == int64(m.expected) {
		m.end()
	}
	<-m.over
}

// await polls done, which mostly reports true at once.
func await(t *testing.T, otherwise string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), otherwise)
	}
}

// withoutLeaks runs tests whose servers have a label, and requires that no goroutine with the label is left at the
// end.
func withoutLeaks(t *testing.T, tests func(t *testing.T, label string)) {
	label := rand.Text()
	t.Run("rows", func(t *testing.T) { tests(t, label) })
	await(t, "a goroutine is left", func() bool {
		var profile strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		return !strings.Contains(profile.String(), label)
	})
}

// askedStore records the keys and requests of Begin.
type askedStore struct {
	idempotency.Store
	mu    sync.Mutex
	asked map[idempotency.Key]idempotency.ClaimRequest
}

func (s *askedStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.mu.Lock()
	s.asked[key] = request
	s.mu.Unlock()
	return s.Store.Begin(ctx, key, request)
}

// running returns the number of keys with an unfinished attempt, according to the store.
func (s *askedStore) running() int {
	s.mu.Lock()
	asked := maps.Clone(s.asked)
	s.mu.Unlock()
	running, ctx := 0, context.Background()
	for key, request := range asked {
		request.TakeOver = false // otherwise Begin would take over a dead attempt, and hide it
		record, claim, err := s.Store.Begin(ctx, key, request)
		switch {
		case err != nil || claim == nil && record.Response == nil && record.LeaseLeft > 0:
			running++
		case claim != nil:
			_ = claim.Release(ctx, idempotency.Release{TTL: request.TTL})
		}
	}
	return running
}

// syncBuffer is a buffer for concurrent writers and one reader.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
