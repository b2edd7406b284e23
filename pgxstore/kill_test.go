package pgxstore_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

var deaths = flag.Int("deaths", 1000, "how many servers TestKilledInTransaction kills")

// TestMain lets this program be the server that is killed.
func TestMain(m *testing.M) {
	if os.Getenv("PGXSTORE_DATABASE") == "" {
		os.Exit(m.Run())
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// points are where a request can ask the server to be killed, in the order in which it comes by.
var points = []string{"claimed", "before the effect", "after the effect", "before completion", "after completion", "writing"}

type pointKey struct{}

// at ends this process, without any chance to clean up, if the request of ctx asked for that at this point.
func at(ctx context.Context, point string) {
	if ctx.Value(pointKey{}) == point {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// serve is the server: it inserts a row into the ledger for each request.
func serve() error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("PGXSTORE_DATABASE"))
	if err != nil {
		return err
	}
	table := pgxstore.Options{Table: os.Getenv("PGXSTORE_TABLE")}
	l := ledger{pool, os.Getenv("PGXSTORE_LEDGER")}
	opts := idempotency.Options{Wait: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	var store idempotency.Store = pgxstore.NewTx(pool, table)
	if os.Getenv("PGXSTORE_LEASE") != "" {
		store = pgxstore.New(pool, table)
		opts.Lease = time.Second
	}
	if os.Getenv("PGXSTORE_LEASE") == "refuse" {
		opts.Abandoned = idempotency.Refuse
	}
	m, err := idempotency.New(mortalStore{store}, idempotency.SingleUser, opts)
	if err != nil {
		return err
	}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		run := pool.Exec
		if tx, ok := pgxstore.Tx(r.Context()); ok {
			run = tx.Exec
		}
		at(r.Context(), "before the effect")
		if _, err := run(r.Context(), l.insert(), op.Key.ID); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		at(r.Context(), "after the effect")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintln(w, "attempt", op.Attempt, uuid.New()) // no two executions give the same answer
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), pointKey{}, r.Header.Get("Die"))
		h.ServeHTTP(mortalWriter{w, ctx}, r.WithContext(ctx))
	}))
}

type mortalStore struct{ idempotency.Store }

func (s mortalStore) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		at(ctx, "claimed")
		claim = mortalClaim{claim}
	}
	return record, claim, err
}

type mortalClaim struct{ idempotency.Claim }

func (c mortalClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	at(ctx, "before completion")
	err := c.Claim.Complete(ctx, resp, ttl)
	at(ctx, "after completion")
	return err
}

type mortalWriter struct {
	http.ResponseWriter
	ctx context.Context
}

func (w mortalWriter) Write(p []byte) (int, error) {
	if w.ctx.Value(pointKey{}) == "writing" {
		_, _ = w.ResponseWriter.Write(p[:len(p)/2])
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		at(w.ctx, "writing")
	}
	return w.ResponseWriter.Write(p)
}

// child is a server in a process of its own.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(t testing.TB, env ...string) *child {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), append(env, "GOMAXPROCS=2")...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return &child{cmd, strings.TrimSpace(addr)}
}

func (c *child) stop() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// post returns the status and the body, or zero if the answer did not come whole.
func (c *child) post(key, die string) (int, string) {
	r, err := http.NewRequest(http.MethodPost, "http://"+c.addr+"/payments", nil)
	if err != nil {
		panic(err)
	}
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Die", die)
	r.Close = true // no connection whose end the client could take for a reason to send again
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(body)
}

// trial is what became of one key, one of whose requests killed its server.
type trial struct {
	key, point string
	answers    map[string]int // whole ones with the status 201
	refused    bool           // with outcome-unknown
}

// kill lets workers kill servers until there were as many deaths as asked for, while retries of the same request go
// to another server.
func kill(t *testing.T, deaths int, env ...string) (trials []trial, l ledger) {
	t.Helper()
	db := servertest.Postgres(t)
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	l = newLedger(t, pool, opts)
	env = append(env, "PGXSTORE_DATABASE="+db.URL(), "PGXSTORE_TABLE="+opts.Table, "PGXSTORE_LEDGER="+l.table)
	survivor := startChild(t, env...)
	defer survivor.stop()

	var mu sync.Mutex
	var workers sync.WaitGroup
	dead, next := 0, 0
	for range 4 {
		workers.Go(func() {
			victim := startChild(t, env...)
			defer func() { victim.stop() }()
			for {
				mu.Lock()
				point := points[next%len(points)]
				next++
				over := dead >= deaths
				mu.Unlock()
				if over {
					return
				}
				got, died := try(victim, survivor, point)
				if died {
					_ = victim.cmd.Wait()
					victim = startChild(t, env...)
				}
				mu.Lock()
				trials = append(trials, got)
				if died {
					dead++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return trials, l
}

// try sends one request that kills its server, and at the same time two that do not, each until it is answered.
func try(victim, survivor *child, point string) (got trial, died bool) {
	got = trial{uuid.NewString(), point, make(map[string]int), false}
	var mu sync.Mutex
	until := func(post func() (int, string)) {
		for {
			status, body := post()
			mu.Lock()
			unknown := status == http.StatusConflict && strings.Contains(body, "outcome-unknown")
			if status == http.StatusCreated {
				got.answers[body]++
			}
			got.refused = got.refused || unknown
			mu.Unlock()
			if status == http.StatusCreated || unknown {
				return
			}
		}
	}
	var requests sync.WaitGroup
	requests.Go(func() {
		status, body := victim.post(got.key, point)
		died = status == 0
		until(func() (int, string) {
			if status == http.StatusCreated {
				return status, body
			}
			return survivor.post(got.key, "")
		})
	})
	for range 2 {
		requests.Go(func() { until(func() (int, string) { return survivor.post(got.key, "") }) })
	}
	requests.Wait()
	if !died {
		got.point = "" // the others were faster
	}
	return got, died
}

// Exactly once, wherever the server dies.
func TestKilledInTransaction(t *testing.T) {
	t.Parallel()
	trials, l := kill(t, *deaths)
	for _, got := range trials {
		require.Equal(t, 1, l.effects(t, keyOf(got.key)), "effects after a death %s", got.point)
		require.Len(t, got.answers, 1, "answers after a death %s", got.point)
	}
}

// With leases, what is done twice or not at all is what the policy says for the point of death, and nothing else.
func TestKilledWithLease(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]map[string]struct {
		effects int
		refused bool
	}{
		"re-execute": {
			"": {1, false}, "claimed": {1, false}, "before the effect": {1, false},
			"after the effect": {2, false}, "before completion": {2, false}, // which only a transaction can prevent
			"after completion": {1, false}, "writing": {1, false},
		},
		"refuse": {
			"": {1, false}, "claimed": {0, true}, "before the effect": {0, true}, // the price
			"after the effect": {1, true}, "before completion": {1, true},
			"after completion": {1, false}, "writing": {1, false},
		},
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			trials, l := kill(t, 30, "PGXSTORE_LEASE="+policy)
			for _, got := range trials {
				require.Equal(t, want[got.point].effects, l.effects(t, keyOf(got.key)), "effects after a death %s", got.point)
				require.Equal(t, want[got.point].refused, got.refused, "refused after a death %s", got.point)
				require.LessOrEqual(t, len(got.answers), 1, "answers after a death %s", got.point)
			}
		})
	}
}

// Nothing that was acknowledged is lost when the database crashes under load. With a transaction nothing is done twice,
// with a lease only what the database may have lost the reply of.
func TestDatabaseCrashes(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*pgxpool.Pool, pgxstore.Options) idempotency.Store{
		"lease":       func(p *pgxpool.Pool, o pgxstore.Options) idempotency.Store { return pgxstore.New(p, o) },
		"transaction": func(p *pgxpool.Pool, o pgxstore.Options) idempotency.Store { return pgxstore.NewTx(p, o) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := servertest.Postgres(t)
			pool := newPool(t, db.URL())
			opts := newTable(t, pool, pgxstore.Options{})
			l := newLedger(t, pool, opts)
			var mu sync.Mutex
			failed := make(map[string]int) // how often the handler could not tell whether it took effect
			// An answer whose record could not be written is sent all the same: there must be time to write it.
			settings := idempotency.Options{StoreTimeout: 30 * time.Second}
			h := newMiddleware(t, open(pool, opts), settings, func(w http.ResponseWriter, r *http.Request) {
				op, _ := idempotency.FromContext(r.Context())
				run := pool.Exec
				if tx, ok := pgxstore.Tx(r.Context()); ok {
					run = tx.Exec
				}
				if _, err := run(r.Context(), l.insert(), op.Key.ID); err != nil {
					mu.Lock()
					failed[op.Key.ID]++
					mu.Unlock()
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, uuid.New())
			})
			acknowledged := crash(t, db, h, 10)
			for key, body := range acknowledged {
				require.Equal(t, body, post(h, key).Body.String())
				effects := l.effects(t, keyOf(key))
				if name == "transaction" {
					require.Equal(t, 1, effects)
				} else {
					require.GreaterOrEqual(t, effects, 1)
					require.LessOrEqual(t, effects, 1+failed[key])
				}
			}
		})
	}
}

// crash lets clients send requests, each until it succeeds, while the database crashes a number of times. It returns
// the answers that they got, by key.
func crash(t *testing.T, db *servertest.Database, h http.Handler, times int) (acknowledged map[string]string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	acknowledged = make(map[string]string)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for key := uuid.NewString(); ctx.Err() == nil; {
				w := post(h, key)
				if w.Code == http.StatusCreated {
					mu.Lock()
					acknowledged[key] = w.Body.String()
					mu.Unlock()
					key = uuid.NewString()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	for range times {
		before := count()
		require.Eventually(t, func() bool { return count() > before+50 }, 30*time.Second, time.Millisecond)
		require.NoError(t, db.Restart())
	}
	stop()
	clients.Wait()
	return acknowledged
}
