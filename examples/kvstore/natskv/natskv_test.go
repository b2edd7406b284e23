package natskv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/kvstore/natskv"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/casstore"
)

// mortalPort is the variable by which this program is a nats-server on that port, which a test kills.
const mortalPort = "NATSKV_MORTAL_PORT"

func TestMain(m *testing.M) {
	if port, err := strconv.Atoi(os.Getenv(mortalPort)); err == nil {
		opts := options(os.Getenv("NATSKV_MORTAL_DIR"))
		opts.Port, opts.SyncAlways = port, true
		if _, err := start(opts); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // ends with the parent
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// options are those of a server whose values have up to 8 MiB: the suites have answers of a megabyte.
func options(dir string) *server.Options {
	return &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir, MaxPayload: 8 << 20,
	}
}

func start(opts *server.Options) (*server.Server, error) {
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return nil, errors.New("the nats-server does not start")
	}
	return s, nil
}

// newServer starts a server for the duration of the test, and returns its host and port.
func newServer(t *testing.T, opts *server.Options) (addr string) {
	t.Helper()
	s, err := start(opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s.Addr().String()
}

// connect returns a connection of its own.
func connect(t *testing.T, addr string) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect("nats://"+addr, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.PingInterval(time.Second), nats.MaxPingsOutstanding(1))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return js
}

func newTable(t *testing.T, js jetstream.JetStream) *natskv.Table { return newReplicated(t, js, 1) }

func newReplicated(t *testing.T, js jetstream.JetStream, replicas int) *natskv.Table {
	t.Helper()
	table, err := natskv.Open(t.Context(), js, "records", replicas, 25*time.Hour)
	require.NoError(t, err)
	return table
}

// local are the options of tests, whose processes share a clock.
var local = casstore.Options{Skew: time.Millisecond}

func TestConformance(t *testing.T) {
	t.Parallel()
	store := casstore.New(newTable(t, connect(t, newServer(t, options(t.TempDir())))), local)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunResolver(t, func(*testing.T) idempotency.Store { return store })
}

// inTurn asks its stores in turn, as a load balancer does with processes.
type inTurn struct {
	stores []idempotency.Store
	next   atomic.Int64
}

// Begin implements [idempotency.Store].
func (s *inTurn) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.stores[int(s.next.Add(1))%len(s.stores)].Begin(ctx, key, request)
}

// Stores with connections of their own exclude each other as processes do.
func TestStoresShareOneServer(t *testing.T) {
	t.Parallel()
	addr := newServer(t, options(t.TempDir()))
	stores := &inTurn{}
	for range 2 {
		stores.stores = append(stores.stores, casstore.New(newTable(t, connect(t, addr)), local))
	}
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return stores })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return stores })
}

// newCluster starts three servers, which keep replicas.
func newCluster(t *testing.T) (servers []*server.Server) {
	t.Helper()
	var routes []*url.URL
	for n := range 3 {
		opts := options(t.TempDir())
		opts.ServerName = fmt.Sprintf("server-%d", n)
		opts.Cluster = server.ClusterOpts{Name: "cluster", Host: "127.0.0.1", Port: freePort(t)}
		routes = append(routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(opts.Cluster.Port))})
		opts.Routes = routes
		s, err := start(opts)
		require.NoError(t, err)
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		servers = append(servers, s)
	}
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(servers, func(s *server.Server) bool { return len(s.JetStreamClusterPeers()) == 3 })
	}, time.Minute, 10*time.Millisecond)
	return servers
}

// In a cluster, each store asks another server, and the leader of the bucket steps down again and again.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	stores := &inTurn{}
	for _, s := range servers {
		stores.stores = append(stores.stores, casstore.New(newReplicated(t, connect(t, s.Addr().String()), 3), local))
	}
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return stores })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return stores })

	moves := 0
	newCharges(t, stores).underLoad(t, func(await func()) {
		for range 5 {
			await()
			for _, s := range servers {
				if s.JetStreamStepdownStream(server.DEFAULT_GLOBAL_ACCOUNT, "KV_records") == nil { // it was the leader
					moves++
				}
			}
		}
	})
	require.Positive(t, moves)
}

// lease is longer than any test takes, so a key that is blocked stays so.
const lease = 10 * time.Minute

// charges is a guarded handler that counts how often it runs for each key.
type charges struct {
	guarded http.Handler
	mu      sync.Mutex
	byKey   map[string]int
}

func newCharges(t *testing.T, store idempotency.Store) *charges {
	t.Helper()
	c := &charges{byKey: make(map[string]int)}
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Lease: lease})
	require.NoError(t, err)
	t.Cleanup(func() { _ = idem.Shutdown(context.Background()) })
	c.guarded = idem.Handler(c)
	return c
}

// ServeHTTP implements [http.Handler].
func (c *charges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	c.byKey[key]++
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %d of %s", c.byKey[key], key)
}

// send sends a request until it is answered with 201, as clients do. That takes much less than a lease.
func (c *charges) send(t *testing.T, key string) (w *httptest.ResponseRecorder) {
	t.Helper()
	require.Eventually(t, func() bool {
		w = c.sendOnce(t, key)
		return w.Code == http.StatusCreated
	}, lease/10, 10*time.Millisecond)
	return w
}

func (c *charges) sendOnce(t *testing.T, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader("4200"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	c.guarded.ServeHTTP(w, r)
	return w
}

// requireCharged requires that a key was charged once, and that this is what its retries are told.
func (c *charges) requireCharged(t *testing.T, key string) {
	t.Helper()
	w := c.send(t, key)
	require.Equal(t, "charge 1 of "+key, w.Body.String())
	require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Equal(t, 1, c.byKey[key])
}

// underLoad calls disturb while clients send requests, which they repeat until they are answered. Await returns when some more
// are. In the end each key was charged once.
func (c *charges) underLoad(t *testing.T, disturb func(await func())) {
	var answered, stopped atomic.Int64
	var clients sync.WaitGroup
	var keys sync.Map
	for client := range 8 {
		clients.Go(func() {
			for n := 0; stopped.Load() == 0; n++ {
				key := fmt.Sprintf("client-%d-%d", client, n)
				for c.sendOnce(t, key).Code != http.StatusCreated && t.Context().Err() == nil {
				}
				keys.Store(key, true)
				answered.Add(1)
			}
		})
	}
	disturb(func() {
		before := answered.Load()
		require.Eventually(t, func() bool { return answered.Load() > before+20 }, time.Minute, time.Millisecond)
	})
	stopped.Store(1)
	clients.Wait()
	keys.Range(func(key, _ any) bool {
		c.requireCharged(t, key.(string))
		return true
	})
}

// A request or a reply that is lost neither blocks its key nor runs the handler twice.
func TestMessagesAreLost(t *testing.T) {
	t.Parallel()
	addr := newServer(t, options(t.TempDir()))
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.HoldReply, servertest.LateRequest, servertest.CutRequest, servertest.CutReply,
	} {
		for write, name := range []string{"claim", "complete"} {
			t.Run(fmt.Sprintf("%s of %s", fault, name), func(t *testing.T) {
				t.Parallel()
				proxy := servertest.NewProxy(t, addr)
				c := newCharges(t, casstore.New(newTable(t, connect(t, proxy.Addr())), local))
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: "PUB $KV.records.", Skip: write})
				key := url.PathEscape(t.Name())
				c.send(t, key)
				require.Equal(t, 1, proxy.Strikes())
				proxy.Inject(servertest.Rule{})
				c.requireCharged(t, key)
			})
		}
	}
}

// mortal starts a server that can be killed, and that starts again with what it has confirmed.
func mortal(t *testing.T, dir string, port int) (kill func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mortalPort+"="+strconv.Itoa(port), "NATSKV_MORTAL_DIR="+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	said, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = stdin.Close()
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return kill
}

// The server is killed again and again. What it has confirmed stays.
func TestServerIsKilled(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), freePort(t)
	kill := mortal(t, dir, port)
	c := newCharges(t, casstore.New(newTable(t, connect(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))), local))

	c.underLoad(t, func(await func()) {
		for range 3 {
			await()
			kill()
			kill = mortal(t, dir, port)
		}
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// An answer that is larger than a message is not kept, and its operation does not run again.
func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	opts := options(t.TempDir())
	opts.MaxPayload = 64 << 10
	store := casstore.New(newTable(t, connect(t, newServer(t, opts))), local)
	key := idempotency.Key{User: "user", Endpoint: "POST /", ID: "key"}
	request := idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour}
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: 201, Body: make([]byte, 64<<10)}, time.Hour))
	record, _, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Equal(t, &idempotency.Response{Status: 201, Omitted: true}, record.Response)
}

// A server without room refuses an operation before it runs, and replays what it has.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	opts := options(t.TempDir())
	opts.JetStreamMaxStore = 64 << 10
	store := casstore.New(newTable(t, connect(t, newServer(t, opts))), local)
	key := idempotency.Key{User: "user", Endpoint: "POST /", ID: "first"}
	request := idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour}
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	answer := idempotency.Response{Status: 201, Body: make([]byte, 64<<10)}
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))

	_, _, err = store.Begin(t.Context(), idempotency.Key{User: "user", Endpoint: "POST /", ID: "second"}, request)
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	record, _, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Equal(t, &answer, record.Response)
}

// A bucket that would forget records too early is refused, before anything runs.
func TestBucketForgetsTooEarly(t *testing.T) {
	t.Parallel()
	table, err := natskv.Open(t.Context(), connect(t, newServer(t, options(t.TempDir()))), "records", 1, time.Hour)
	require.NoError(t, err)
	_, claim, err := casstore.New(table, casstore.Options{}).Begin(t.Context(), idempotency.Key{ID: "key"},
		idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Nil(t, claim)
}

// Each row of the contract of a table, by NATS. A bucket that others have made with direct gets is adapted.
func TestTable(t *testing.T) {
	t.Parallel()
	js := connect(t, newServer(t, options(t.TempDir())))
	_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "records", TTL: 25 * time.Hour})
	require.NoError(t, err)
	table, ctx := newTable(t, js), t.Context()
	stream, err := js.Stream(ctx, "KV_records")
	require.NoError(t, err)
	require.False(t, stream.CachedInfo().Config.AllowDirect)

	_, err = table.Get(ctx, "key")
	require.ErrorIs(t, err, casstore.ErrNotFound)
	require.ErrorIs(t, table.Delete(ctx, "key", "1"), casstore.ErrConflict)
	_, err = table.Replace(ctx, "key", "1", []byte("0"), time.Hour)
	require.ErrorIs(t, err, casstore.ErrConflict)
	first, err := table.Create(ctx, "key", []byte("1"), time.Hour)
	require.NoError(t, err)
	_, err = table.Create(ctx, "key", []byte("0"), time.Hour)
	require.ErrorIs(t, err, casstore.ErrConflict)
	second, err := table.Replace(ctx, "key", first, []byte("2"), time.Hour)
	require.NoError(t, err)
	_, err = table.Replace(ctx, "key", first, []byte("0"), time.Hour)
	require.ErrorIs(t, err, casstore.ErrConflict)
	require.ErrorIs(t, table.Delete(ctx, "key", first), casstore.ErrConflict)
	found, err := table.Get(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, casstore.Value{Data: []byte("2"), Version: second}, found)
	require.NoError(t, table.Delete(ctx, "key", second))
	_, err = table.Get(ctx, "key")
	require.ErrorIs(t, err, casstore.ErrNotFound)
	third, err := table.Create(ctx, "key", []byte("3"), time.Hour)
	require.NoError(t, err)
	require.NotContains(t, []string{first, second}, third)
}
