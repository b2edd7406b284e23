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

// serverPort is the variable that makes this program a nats-server on the given port. A test kills the server.
const serverPort = "NATSKV_SERVER_PORT"

func TestMain(m *testing.M) {
	if port, err := strconv.Atoi(os.Getenv(serverPort)); err == nil {
		opts := serverOptions(os.Getenv("NATSKV_SERVER_DIR"))
		opts.Port, opts.SyncAlways = port, true
		if _, err := startServer(opts); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // ends with the parent
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serverOptions returns the options of a server with values of up to 8 MiB, because the suites have answers of a megabyte.
func serverOptions(dir string) *server.Options {
	return &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir, MaxPayload: 8 << 20,
	}
}

func startServer(opts *server.Options) (*server.Server, error) {
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
	s, err := startServer(opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s.Addr().String()
}

// connectClient returns a new connection.
func connectClient(t *testing.T, addr string) jetstream.JetStream {
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

// localOptions are the options of the tests, whose processes share a clock.
var localOptions = casstore.Options{Skew: time.Millisecond}

func TestConformance(t *testing.T) {
	t.Parallel()
	store := casstore.New(newTable(t, connectClient(t, newServer(t, serverOptions(t.TempDir())))), localOptions)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunResolver(t, func(*testing.T) idempotency.Store { return store })
}

// roundRobinStore calls its stores in turn, like a load balancer in front of processes.
type roundRobinStore struct {
	stores    []idempotency.Store
	callCount atomic.Int64
}

// Begin implements [idempotency.Store].
func (s *roundRobinStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.stores[int(s.callCount.Add(1))%len(s.stores)].Begin(ctx, key, request)
}

// Stores with separate connections exclude each other, like processes.
func TestStoresShareOneServer(t *testing.T) {
	t.Parallel()
	addr := newServer(t, serverOptions(t.TempDir()))
	stores := &roundRobinStore{}
	for range 2 {
		stores.stores = append(stores.stores, casstore.New(newTable(t, connectClient(t, addr)), localOptions))
	}
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return stores })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return stores })
}

// newCluster starts a cluster of three servers.
func newCluster(t *testing.T) (servers []*server.Server) {
	t.Helper()
	var routes []*url.URL
	for n := range 3 {
		opts := serverOptions(t.TempDir())
		opts.ServerName = fmt.Sprintf("server-%d", n)
		opts.Cluster = server.ClusterOpts{Name: "cluster", Host: "127.0.0.1", Port: freePort(t)}
		routes = append(routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(opts.Cluster.Port))})
		opts.Routes = routes
		s, err := startServer(opts)
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

// In a cluster, each store is connected to a different server, and the leader of the bucket steps down again and again.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	stores := &roundRobinStore{}
	for _, s := range servers {
		stores.stores = append(stores.stores, casstore.New(newReplicated(t, connectClient(t, s.Addr().String()), 3), localOptions))
	}
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return stores })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return stores })

	moves := 0
	newCharges(t, stores).runUnderLoad(t, func(await func()) {
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

// lease is longer than the tests take, so a blocked key stays blocked.
const lease = 10 * time.Minute

// charges is a guarded handler that counts how often it runs for each key.
type charges struct {
	guardedHandler http.Handler
	mu             sync.Mutex
	countByKey     map[string]int
}

func newCharges(t *testing.T, store idempotency.Store) *charges {
	t.Helper()
	c := &charges{countByKey: make(map[string]int)}
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Lease: lease})
	require.NoError(t, err)
	t.Cleanup(func() { _ = idem.Shutdown(context.Background()) })
	c.guardedHandler = idem.Handler(c)
	return c
}

// ServeHTTP implements [http.Handler].
func (c *charges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	c.countByKey[key]++
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %d of %s", c.countByKey[key], key)
}

// sendUntilCreated repeats a request until the answer is 201, like a client. Unless the key is blocked, this takes much less than
// a lease.
func (c *charges) sendUntilCreated(t *testing.T, key string) (w *httptest.ResponseRecorder) {
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
	c.guardedHandler.ServeHTTP(w, r)
	return w
}

// requireCharged requires that key was charged once, and that a retry gets the answer of this charge.
func (c *charges) requireCharged(t *testing.T, key string) {
	t.Helper()
	w := c.sendUntilCreated(t, key)
	require.Equal(t, "charge 1 of "+key, w.Body.String())
	require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Equal(t, 1, c.countByKey[key])
}

// runUnderLoad calls disturb while clients send requests. The clients repeat each request until the answer is 201. disturb calls
// await to wait for more than 20 further answers. At the end, runUnderLoad requires one charge for each key.
func (c *charges) runUnderLoad(t *testing.T, disturb func(await func())) {
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

// After a lost request or reply, the key is not blocked, and the handler runs once.
func TestMessagesAreLost(t *testing.T) {
	t.Parallel()
	addr := newServer(t, serverOptions(t.TempDir()))
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.HoldReply, servertest.LateRequest, servertest.CutRequest, servertest.CutReply,
	} {
		for write, name := range []string{"claim", "complete"} {
			t.Run(fmt.Sprintf("%s of %s", fault, name), func(t *testing.T) {
				t.Parallel()
				proxy := servertest.NewProxy(t, addr)
				c := newCharges(t, casstore.New(newTable(t, connectClient(t, proxy.Addr())), localOptions))
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: "PUB $KV.records.", Skip: write})
				key := url.PathEscape(t.Name())
				c.sendUntilCreated(t, key)
				require.Equal(t, 1, proxy.Strikes())
				proxy.Inject(servertest.Rule{})
				c.requireCharged(t, key)
			})
		}
	}
}

// startKillableServer starts a server in a child process. After kill, the next server on dir has the confirmed writes.
func startKillableServer(t *testing.T, dir string, port int) (kill func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverPort+"="+strconv.Itoa(port), "NATSKV_SERVER_DIR="+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = stdin.Close()
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return kill
}

// The server is killed again and again, and keeps the writes that it has confirmed.
func TestServerIsKilled(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), freePort(t)
	kill := startKillableServer(t, dir, port)
	c := newCharges(t, casstore.New(newTable(t, connectClient(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))), localOptions))

	c.runUnderLoad(t, func(await func()) {
		for range 3 {
			await()
			kill()
			kill = startKillableServer(t, dir, port)
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

// request asks for a claim on a key without a record.
var request = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour}

// An answer larger than a message is omitted from the record, and its operation does not run again.
func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t.TempDir())
	opts.MaxPayload = 64 << 10
	store := casstore.New(newTable(t, connectClient(t, newServer(t, opts))), localOptions)
	key := idempotency.Key{User: "user", Endpoint: "POST /", ID: "key"}
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: 201, Body: make([]byte, 64<<10)}, time.Hour))
	record, _, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Equal(t, &idempotency.Response{Status: 201, Omitted: true}, record.Response)
}

// A server with a full disk refuses a new operation before it runs, and replays stored answers.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	opts := serverOptions(t.TempDir())
	opts.JetStreamMaxStore = 64 << 10
	store := casstore.New(newTable(t, connectClient(t, newServer(t, opts))), localOptions)
	key := idempotency.Key{User: "user", Endpoint: "POST /", ID: "first"}
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

// The store refuses a bucket that forgets records too early, before a handler runs.
func TestBucketForgetsTooEarly(t *testing.T) {
	t.Parallel()
	table, err := natskv.Open(t.Context(), connectClient(t, newServer(t, serverOptions(t.TempDir()))), "records", 1, time.Hour)
	require.NoError(t, err)
	_, claim, err := casstore.New(table, casstore.Options{}).Begin(t.Context(), idempotency.Key{ID: "key"}, request)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Nil(t, claim)
}

// The table keeps each row of the contract of casstore.Table. Open turns off the direct gets of an existing bucket.
func TestTable(t *testing.T) {
	t.Parallel()
	js := connectClient(t, newServer(t, serverOptions(t.TempDir())))
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
