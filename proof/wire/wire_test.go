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

// A wireRow is raw bytes that are sent over a connection of their own, twice, and what comes back until the server
// closes the connection. The bytes may hold meanwhile and halfClose.
//
// The answers are separated by commas. Each is one of
//
//   - "201": the handler's, with its status; "201 cut" if the connection ended in the middle of it;
//   - "replay": one of the handler's answers of before, byte for byte but for the mark;
//   - "400 key-invalid": a refusal, checked in every part;
//   - "400 net/http": an answer of the server itself, for a request that no handler sees;
//   - nothing: the server closed the connection without an answer.
type wireRow struct {
	name, sent   string
	first, again string
	runs         int // of the handler, for both
}

const (
	meanwhile = "⏸" // the request stops here until somebody else has been served
	halfClose = "⏹" // the client sends nothing more, and still listens
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

// testWire tries every row with a store of its own.
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

// The proof is no smaller than it claims to be.
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
	label  string // of its goroutines
	store  *askedStore
	svc    *testservice.Service
	runs   atomic.Int64 // of the handler, but for those in between
	log    syncBuffer   // of the server
	server *httptest.Server
	opts   idempotency.Options
	meets  atomic.Pointer[meeting]
	firsts map[string]testservice.Answer // of the handler, by the number of the run
}

func newWireServer(t *testing.T, label string) *wireServer {
	return &wireServer{t: t, label: label, firsts: map[string]testservice.Answer{}, store: &askedStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		asked: map[idempotency.Key]idempotency.ClaimRequest{},
	}}
}

// withLimits returns opts with limits that a row can exceed.
func withLimits(opts idempotency.Options) idempotency.Options {
	opts.MaxBody, opts.MaxBodies, opts.MaxUserBodies, opts.MaxResponse = 1000, 4<<10, 4<<10, 4000
	return opts
}

// transport is what a server takes: HTTP/1.1 alone, or HTTP/2, too, without TLS or with it.
type transport string

const (
	http1    transport = "HTTP/1.1"
	http2    transport = "HTTP/2"
	http2TLS transport = "HTTP/2 over TLS"
)

func (s *wireServer) start(opts idempotency.Options, handler http.HandlerFunc, transport transport) {
	s.opts = opts
	guarded := testservice.Setup{Store: s.store, Opts: opts, Outer: showingContext}
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
	// All goroutines that the server starts, and those that these start, have the label.
	pprof.Do(context.Background(), pprof.Labels("wire", s.label), func(context.Context) { start() })
	s.t.Cleanup(s.server.Close)
}

// clientContext is the key of the context that ends when the client leaves.
type clientContext struct{}

func showingContext(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, clientContext{}, ctx)))
	})
}

const (
	inBetween = "/in-between"
	together  = "/together" // whose handlers meet
)

// handle is the guarded handler. Each of its answers differs from all others.
func (s *wireServer) handle(w http.ResponseWriter, r *http.Request) {
	run := s.runs.Add(1)
	body, _ := io.ReadAll(r.Body) // what cannot be read is nothing to a handler that is not guarded
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

// dial opens a connection for a protocol, in the words of ALPN.
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

// exchange sends bytes over a connection of their own and describes the answers.
func (s *wireServer) exchange(sent string) string {
	conn := s.dial("http/1.1")
	defer conn.Close()
	ask, halfClosed := strings.CutSuffix(sent, halfClose)
	var wrote sync.WaitGroup
	defer wrote.Wait() // it ends at the latest when the connection is closed
	for i, part := range strings.Split(ask, meanwhile) {
		if i > 0 {
			s.requireServed()
		}
		wrote.Wait()
		wrote.Go(func() { _, _ = io.WriteString(conn, part) }) // the server may hang up before it has read everything
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

// describeAll describes what comes until the server closes the connection.
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

// describe returns what an answer is, as in a wireRow.
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

// requireServed checks that a good request on another connection is executed.
func (s *wireServer) requireServed() {
	s.t.Helper()
	require.Equal(s.t, "201", s.exchange(pays(inBetween, rand.Text())))
}

// requireInOrder checks that nothing was left behind.
func (s *wireServer) requireInOrder() {
	s.t.Helper()
	s.requireServed()
	await(s.t, "a claim is left", func() bool { return s.store.running() == 0 })
	await(s.t, "a share is left", s.hasAllShares)
	for line := range strings.Lines(s.log.String()) {
		// The first as the server says GOAWAY, the others if a client hangs up before.
		const harmless = "http2: server connection error|http2: server: error reading preface|TLS handshake error"
		require.Regexp(s.t, harmless, line, "what the server logged")
	}
}

// hasAllShares reports whether there is room for all that MaxBodies allows: requests with bodies of MaxBody at the same
// time. The one user may take all of it.
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
				m.end() // the others would wait in vain
			}
		})
	}
	all.Wait()
	return !refused.Load()
}

// meeting is of handlers that wait until all of them are there.
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

// await polls for what is mostly there at once.
func await(t *testing.T, otherwise string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), otherwise)
	}
}

// withoutLeaks runs tests whose servers have a label. When they have ended, no goroutine of theirs may be left.
func withoutLeaks(t *testing.T, tests func(t *testing.T, label string)) {
	label := rand.Text()
	t.Run("rows", func(t *testing.T) { tests(t, label) })
	await(t, "a goroutine is left", func() bool {
		var profile strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		return !strings.Contains(profile.String(), label)
	})
}

// askedStore remembers what it was asked for.
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

// running returns how many keys are held by an attempt that has not ended. It asks the store itself.
func (s *askedStore) running() int {
	s.mu.Lock()
	asked := maps.Clone(s.asked)
	s.mu.Unlock()
	running, ctx := 0, context.Background()
	for key, request := range asked {
		request.TakeOver = false // else a dead attempt would not be seen
		record, claim, err := s.Store.Begin(ctx, key, request)
		switch {
		case err != nil || claim == nil && record.Response == nil && record.LeaseLeft > 0:
			running++
		case claim != nil:
			_ = claim.Release(ctx, request.TTL)
		}
	}
	return running
}

// syncBuffer is a buffer that one goroutine may read while others write.
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
