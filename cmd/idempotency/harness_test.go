package main_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	main "github.com/idempotency-go/idempotency/cmd/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// patience bounds what is waited for. Nothing waits that long unless it is broken.
const patience = 30 * time.Second

// program is the file of this test. With asProgram in its environment, it runs main instead of the tests, so no other
// program has to be built. GORACE saves the second for which a process with the race detector sleeps at its end.
var (
	program   string
	asProgram = []string{programVariable + "=1", "GORACE=atexit_sleep_ms=0"}
)

const programVariable = "IDEMPOTENCY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if setting := os.Getenv(probedVariable); setting != "" {
		serveProbed(setting)
	}
	if os.Getenv(programVariable) != "" {
		main.Program()
	}
	if kind := os.Getenv(serviceVariable); kind != "" {
		serve(kind)
		return
	}
	for _, variable := range append(awsVariables, "HOME=/nonexistent") { // what drivers read by themselves
		name, value, _ := strings.Cut(variable, "=")
		_ = os.Setenv(name, value)
	}
	var err error
	if program, err = os.Executable(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// command returns the program with an environment of its own: that of the test would have credentials.
func command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(slices.Concat(asProgram, []string{"HOME=/nonexistent", "PATH=" + os.Getenv("PATH")}), env...)
	return cmd
}

// result is what the program has said, and its exit status.
type result struct {
	status         int
	stdout, stderr string
}

// try runs the program without a terminal. It is a process of its own, which has these variables, and no credentials besides.
func try(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, complaints bytes.Buffer
	cmd := command(ctx, env, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	_ = cmd.Run()
	return result{cmd.ProcessState.ExitCode(), out.String(), complaints.String()}
}

// backend is a server with an empty store.
type backend struct {
	kind   string // for serve
	env    []string
	open   func(testing.TB) idempotency.Store
	damage func(testing.TB) // of the record of Alice
}

func newRedis(t testing.TB) backend {
	t.Helper()
	server := servertest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	t.Cleanup(func() { _ = client.Close() })
	return backend{
		kind: "redis",
		env:  []string{"REDIS_URL=redis://:" + servertest.RedisPassword() + "@" + server.Addr()},
		open: func(testing.TB) idempotency.Store {
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		},
		damage: func(t testing.TB) {
			names, err := client.Keys(t.Context(), "idempotency:*").Result()
			require.NoError(t, err)
			require.Len(t, names, 1)
			require.NoError(t, client.Append(t.Context(), names[0], "more than was stored").Err())
		},
	}
}

// server is the PostgreSQL of all tests. Each has a database of its own.
var (
	server    = sync.OnceValues(func() (*servertest.Database, error) { return servertest.StartPostgres() })
	databases atomic.Int64
)

// postgresURL returns the URL of a new database.
func postgresURL(t testing.TB) string {
	t.Helper()
	db, err := server()
	servertest.Require(t, err)
	name := fmt.Sprintf("shop_%d", databases.Add(1))
	require.NoError(t, db.Psql("postgres", "CREATE DATABASE "+name))
	return strings.Replace(db.URL(), "/postgres?", "/"+name+"?", 1)
}

func newPostgres(t testing.TB) backend {
	t.Helper()
	url := postgresURL(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	return backend{
		kind: "postgres",
		env:  []string{"DATABASE_URL=" + url},
		open: func(testing.TB) idempotency.Store { return pgxstore.New(pool, pgxstore.Options{}) },
		damage: func(t testing.TB) {
			_, err := pool.Exec(t.Context(), "UPDATE idempotency_records SET fingerprint = 'short'")
			require.NoError(t, err)
		},
	}
}

// maria is the MariaDB of all tests. Each has a database of its own.
var maria = sync.OnceValues(func() (*servertest.Maria, error) { return servertest.StartMariaDB() })

func newMySQL(t testing.TB) backend {
	t.Helper()
	server, err := maria()
	servertest.Require(t, err)
	name := fmt.Sprintf("shop_%d", databases.Add(1))
	at := func(name string) *sql.DB {
		db, err := sql.Open("mysql", strings.Replace(server.DSN(), "/test", "/"+name, 1))
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	_, err = at("test").Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	db := at(name)
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	user, _, _ := strings.Cut(server.DSN(), "@")
	return backend{
		kind: "mysql",
		env:  []string{"DATABASE_URL=mysql://" + user + "@" + server.Addr() + "/" + name},
		open: func(testing.TB) idempotency.Store { return mysqlstore.New(db, mysqlstore.Options{}) },
		damage: func(t testing.TB) {
			_, err := db.ExecContext(t.Context(), "UPDATE idempotency_records SET attempt = 0")
			require.NoError(t, err)
		},
	}
}

func newSQLite(t testing.TB) backend {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	store, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	require.NoError(t, os.Chmod(path, 0o644)) // which check finds
	return backend{
		kind: "sqlite",
		env:  []string{"DATABASE_URL=sqlite:" + path},
		open: func(testing.TB) idempotency.Store { return store },
		damage: func(t testing.TB) {
			db, err := sql.Open("sqlite", "file:"+path)
			require.NoError(t, err)
			defer db.Close()
			_, err = db.ExecContext(t.Context(), "UPDATE idempotency_records SET fingerprint = x'00'")
			require.NoError(t, err)
		},
	}
}

// url returns the URL of the store.
func (b backend) url() string {
	_, url, _ := strings.Cut(b.env[0], "=")
	return url
}

// try runs the program for this store, within this process.
func (b backend) try(t testing.TB, args ...string) result {
	t.Helper()
	return within(t, func(name string) (string, bool) {
		for _, variable := range b.env {
			if value, ok := strings.CutPrefix(variable, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}, args...)
}

// within runs the program within this process, which takes a quarter of the time of a process of its own.
func within(t testing.TB, env func(string) (string, bool), args ...string) result {
	t.Helper()
	stdin, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer stdin.Close()
	dir := t.TempDir()
	stdout, err := os.Create(filepath.Join(dir, "stdout"))
	require.NoError(t, err)
	defer stdout.Close()
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	require.NoError(t, err)
	defer stderr.Close()
	status := main.Run(args, env, stdin, stdout, stderr)
	said, err := os.ReadFile(stdout.Name())
	require.NoError(t, err)
	complaints, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	return result{status, string(said), string(complaints)}
}

// forEachBackend runs a test with each store that the program knows.
func forEachBackend(t *testing.T, test func(*testing.T, backend)) {
	for name, open := range map[string]func(testing.TB) backend{
		"redis": newRedis, "postgres": newPostgres, "mysql": newMySQL, "sqlite": newSQLite, "dynamodb": newDynamoDB,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

var keyOfAlice = idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "order-1"}

func hexOf(digest [32]byte) string { return hex.EncodeToString(digest[:]) }

// asking are the flags that name a key.
func asking(key idempotency.Key) []string {
	return []string{"--user", key.User, "--endpoint", key.Endpoint, "--key", key.ID}
}

// with returns a command with the flags that name the key of Alice, and others.
func with(command string, more ...string) []string {
	return append(append([]string{command}, asking(keyOfAlice)...), more...)
}

var attempt = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: 24 * time.Hour}

// claim begins an attempt.
func claim(t testing.TB, store idempotency.Store, key idempotency.Key, request idempotency.ClaimRequest) idempotency.Claim {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return claim
}

// complete stores an answer.
func complete(t testing.TB, store idempotency.Store, key idempotency.Key, resp idempotency.Response) {
	t.Helper()
	require.NoError(t, claim(t, store, key, attempt).Complete(t.Context(), resp, attempt.TTL))
}

// takingOver begins an attempt also where another one was abandoned.
var takingOver = idempotency.ClaimRequest{
	Fingerprint: attempt.Fingerprint, Lease: attempt.Lease, TTL: attempt.TTL, TakeOver: true,
}

// abandon begins an attempt whose owner does not renew its lease, and returns when that has lapsed.
func abandon(t testing.TB, b backend, key idempotency.Key) idempotency.Claim {
	t.Helper()
	store, lapsing := b.open(t), takingOver
	lapsing.Lease = time.Millisecond
	own := claim(t, store, key, lapsing)
	await(t, func() bool {
		entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
		return err == nil && entry.State == idempotency.StateAbandoned
	})
	return own
}

// resolving returns the command that resolves a key, with a reason.
func resolving(key idempotency.Key, more ...string) []string {
	return append(append([]string{"resolve", "--reason", "case 17"}, asking(key)...), more...)
}

var answer = idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("charged\n")}

// The service that the stories are about is this program, started again.

const (
	serviceVariable = "IDEMPOTENCY_TEST_SERVICE"
	urlVariable     = "IDEMPOTENCY_TEST_URL"
)

// service is a running one.
type service struct {
	cmd   *exec.Cmd
	url   string
	lines *bufio.Scanner
}

func startService(t testing.TB, kind, url string) *service {
	t.Helper()
	s := &service{cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), serviceVariable+"="+kind, urlVariable+"="+url)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	_, err = s.cmd.StdinPipe() // which ends with this process
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.kill)
	s.lines = bufio.NewScanner(out)
	require.True(t, s.lines.Scan(), "the service does not start")
	s.url = s.lines.Text()
	return s
}

// kill ends the service as a crash does.
func (s *service) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// pay sends the request of Alice, and returns status and whether it was replayed. An attempt that is to hang does not
// answer.
func (s *service) pay(t testing.TB, change ...func(*http.Request)) (status int, replayed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/payments", strings.NewReader("amount=4200"))
	require.NoError(t, err)
	r.Header.Set("X-User", "alice")
	r.Header.Set("Idempotency-Key", "order-1")
	for _, change := range change {
		change(r)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true"
}

// hang sends the request of Alice, and returns when its handler is at work, which it does not end.
func (s *service) hang(t testing.TB) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprint(conn, "POST /payments HTTP/1.1\r\nHost: "+strings.TrimPrefix(s.url, "http://")+"\r\nX-User: alice\r\n"+
		"Idempotency-Key: order-1\r\nX-Hang: 1\r\nContent-Length: 11\r\n\r\namount=4200")
	require.NoError(t, err)
	require.True(t, s.lines.Scan(), "the service has ended")
	require.Equal(t, "charging", s.lines.Text())
}

// serve is the service. It says where it listens, and when a handler hangs.
func serve(kind string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the test has ended without a word
	}()
	url := os.Getenv(urlVariable)
	var store idempotency.Store
	switch kind {
	case "redis":
		opts, err := redis.ParseURL(url)
		must(err)
		store = idempotency.NewRedisStore(redis.NewClient(opts), idempotency.RedisOptions{})
	case "mysql":
		credentials, rest, _ := strings.Cut(strings.TrimPrefix(url, "mysql://"), "@")
		address, name, _ := strings.Cut(rest, "/")
		db, err := sql.Open("mysql", credentials+"@tcp("+address+")/"+name)
		must(err)
		store = mysqlstore.New(db, mysqlstore.Options{})
	case "sqlite":
		file, err := sqlitestore.Open(context.Background(), strings.TrimPrefix(url, "sqlite:"), sqlitestore.Options{})
		must(err)
		store = file
	case "dynamodb":
		_, endpoint, _ := strings.Cut(url, "endpoint=")
		store = dynamodbstore.New(dynamodbAt(endpoint), dynamodbstore.Options{Skew: time.Millisecond})
	default:
		pool, err := pgxpool.New(context.Background(), url)
		must(err)
		store = pgxstore.New(pool, pgxstore.Options{})
	}
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	guard, err := idempotency.New(store, user, idempotency.Options{Lease: 5 * time.Second})
	must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Printf("http://%s\n", listener.Addr())
	must(http.Serve(listener, guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hang") != "" {
			_, err := step.Do(r.Context(), "reserve", func(context.Context) (string, error) { return "stock 7", nil })
			must(err)
			fmt.Println("charging")
			select {}
		}
		_ = idempotency.Annotate(r.Context(), "payment pay_1")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/payments/pay_1")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"id":"pay_1","amount":4200}`)
	}))))
}
