package main_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
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

// waitLimit bounds the wait for events that are certain to happen.
const waitLimit = 30 * time.Second

// programPath is the path of this test binary. With programEnvironment, the test binary runs main instead of the tests, so
// the tests need not build the program. GORACE saves the second for which a process with the race detector sleeps at its
// end.
var (
	programPath        string
	programEnvironment = []string{programVariable + "=1", "GORACE=atexit_sleep_ms=0"}
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
		runService(kind)
		return
	}
	for _, variable := range append(awsVariables, "HOME=/nonexistent") { // drivers read these variables by themselves
		name, value, _ := strings.Cut(variable, "=")
		_ = os.Setenv(name, value)
	}
	var err error
	if programPath, err = os.Executable(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// newCommand returns a command that runs the program with env and without the environment of the test, which might have
// credentials.
func newCommand(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, programPath, args...)
	cmd.Env = append(slices.Concat(programEnvironment, []string{"HOME=/nonexistent", "PATH=" + os.Getenv("PATH")}), env...)
	return cmd
}

// result is the exit status and the output of the program.
type result struct {
	status         int
	stdout, stderr string
}

// runProcess runs the program as a process with env, without a terminal and without other credentials.
func runProcess(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	var out, complaints bytes.Buffer
	cmd := newCommand(ctx, env, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	_ = cmd.Run()
	return result{cmd.ProcessState.ExitCode(), out.String(), complaints.String()}
}

// backend is a server with an empty store.
type backend struct {
	kind         string   // of the store, for runService
	environment  []string // variables of the program, with the URL of the store first
	openStore    func(testing.TB) idempotency.Store
	damageRecord func(testing.TB) // makes the record of Alice unreadable
}

func newRedis(t testing.TB) backend {
	t.Helper()
	server := servertest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	t.Cleanup(func() { _ = client.Close() })
	return backend{
		kind:        "redis",
		environment: []string{"REDIS_URL=redis://:" + servertest.RedisPassword() + "@" + server.Addr()},
		openStore: func(testing.TB) idempotency.Store {
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		},
		damageRecord: func(t testing.TB) {
			names, err := client.Keys(t.Context(), "idempotency:*").Result()
			require.NoError(t, err)
			require.Len(t, names, 1)
			require.NoError(t, client.Append(t.Context(), names[0], "more than was stored").Err())
		},
	}
}

// sharedPostgres is the PostgreSQL server of all tests. Each test has its own database.
var (
	sharedPostgres = sync.OnceValues(func() (*servertest.Database, error) { return servertest.StartPostgres() })
	databaseCount  atomic.Int64
)

// postgresURL makes a database, and returns the URL.
func postgresURL(t testing.TB) string {
	t.Helper()
	db, err := sharedPostgres()
	servertest.Require(t, err)
	name := fmt.Sprintf("shop_%d", databaseCount.Add(1))
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
		kind:        "postgres",
		environment: []string{"DATABASE_URL=" + url},
		openStore:   func(testing.TB) idempotency.Store { return pgxstore.New(pool, pgxstore.Options{}) },
		damageRecord: func(t testing.TB) {
			_, err := pool.Exec(t.Context(), "UPDATE idempotency_records SET fingerprint = 'short'")
			require.NoError(t, err)
		},
	}
}

// sharedMariaDB is the MariaDB server of all tests. Each test has its own database.
var sharedMariaDB = sync.OnceValues(func() (*servertest.Maria, error) { return servertest.StartMariaDB() })

func newMySQL(t testing.TB) backend {
	t.Helper()
	server, err := sharedMariaDB()
	servertest.Require(t, err)
	name := fmt.Sprintf("shop_%d", databaseCount.Add(1))
	openDatabase := func(name string) *sql.DB {
		db, err := sql.Open("mysql", strings.Replace(server.DSN(), "/test", "/"+name, 1))
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	_, err = openDatabase("test").Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	db := openDatabase(name)
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	user, _, _ := strings.Cut(server.DSN(), "@")
	return backend{
		kind:        "mysql",
		environment: []string{"DATABASE_URL=mysql://" + user + "@" + server.Addr() + "/" + name},
		openStore:   func(testing.TB) idempotency.Store { return mysqlstore.New(db, mysqlstore.Options{}) },
		damageRecord: func(t testing.TB) {
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
	require.NoError(t, os.Chmod(path, 0o644)) // the command check reports this mode
	return backend{
		kind:        "sqlite",
		environment: []string{"DATABASE_URL=sqlite:" + path},
		openStore:   func(testing.TB) idempotency.Store { return store },
		damageRecord: func(t testing.TB) {
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
	_, url, _ := strings.Cut(b.environment[0], "=")
	return url
}

// run runs the program for this store in the process of the test.
func (b backend) run(t testing.TB, args ...string) result {
	t.Helper()
	return runInProcess(t, func(name string) (string, bool) {
		for _, variable := range b.environment {
			if value, ok := strings.CutPrefix(variable, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}, args...)
}

// runInProcess runs the program in the process of the test, which takes a quarter of the time of runProcess.
func runInProcess(t testing.TB, env func(string) (string, bool), args ...string) result {
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

// forEachBackend runs test with each store that the program supports.
func forEachBackend(t *testing.T, test func(*testing.T, backend)) {
	for name, newBackend := range map[string]func(testing.TB) backend{
		"redis": newRedis, "postgres": newPostgres, "mysql": newMySQL, "sqlite": newSQLite, "dynamodb": newDynamoDB,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBackend(t))
		})
	}
}

var keyOfAlice = idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "order-1"}

// keyFlags returns the flags that name key.
func keyFlags(key idempotency.Key) []string {
	return []string{"--user", key.User, "--endpoint", key.Endpoint, "--key", key.ID}
}

// commandForAlice returns the arguments of a command with the flags that name the key of Alice, and more flags.
func commandForAlice(command string, more ...string) []string {
	return append(append([]string{command}, keyFlags(keyOfAlice)...), more...)
}

// claimRequest is the request of an attempt.
var claimRequest = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: 24 * time.Hour}

// claimKey begins an attempt, and returns the claim.
func claimKey(t testing.TB, store idempotency.Store, key idempotency.Key, request idempotency.ClaimRequest) idempotency.Claim {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return claim
}

// completeRecord begins an attempt, and stores resp as the answer.
func completeRecord(t testing.TB, store idempotency.Store, key idempotency.Key, resp idempotency.Response) {
	t.Helper()
	require.NoError(t, claimKey(t, store, key, claimRequest).Complete(t.Context(), resp, claimRequest.TTL))
}

// takeOverRequest is a claim request that takes over an abandoned attempt.
var takeOverRequest = idempotency.ClaimRequest{
	Fingerprint: claimRequest.Fingerprint, Lease: claimRequest.Lease, TTL: claimRequest.TTL, TakeOver: true,
}

// abandonAttempt begins an attempt without renewals of the lease, and returns after the lease has lapsed.
func abandonAttempt(t testing.TB, b backend, key idempotency.Key) idempotency.Claim {
	t.Helper()
	store, request := b.openStore(t), takeOverRequest
	request.Lease = time.Millisecond
	own := claimKey(t, store, key, request)
	waitUntil(t, func() bool {
		entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
		return err == nil && entry.State == idempotency.StateAbandoned
	})
	return own
}

// resolveCommand returns the arguments of a command that resolves the operation of key, with a reason.
func resolveCommand(key idempotency.Key, more ...string) []string {
	return append(append([]string{"resolve", "--reason", "case 17"}, keyFlags(key)...), more...)
}

var answer = idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("charged\n")}

// The service in the stories is this test binary, started again.

const (
	serviceVariable = "IDEMPOTENCY_TEST_SERVICE"
	urlVariable     = "IDEMPOTENCY_TEST_URL"
)

// service is a running service.
type service struct {
	cmd         *exec.Cmd
	url         string
	outputLines *bufio.Scanner
}

// startService starts a service with the store at url, and kills the service at the end of the test.
func startService(t testing.TB, kind, url string) *service {
	t.Helper()
	s := &service{cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), serviceVariable+"="+kind, urlVariable+"="+url)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	_, err = s.cmd.StdinPipe() // stdin of the service ends with this process, see runService
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.kill)
	s.outputLines = bufio.NewScanner(out)
	require.True(t, s.outputLines.Scan(), "the service does not start")
	s.url = s.outputLines.Text()
	return s
}

// kill ends the service by SIGKILL, as a crash does.
func (s *service) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// sendPayment sends the request of Alice, and returns the status of the answer.
func (s *service) sendPayment(t testing.TB, changes ...func(*http.Request)) (status int, replayed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/payments", strings.NewReader("amount=4200"))
	require.NoError(t, err)
	r.Header.Set("X-User", "alice")
	r.Header.Set("Idempotency-Key", "order-1")
	for _, change := range changes {
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

// sendHangingPayment sends the request of Alice, and returns when the handler has begun. The handler never returns.
func (s *service) sendHangingPayment(t testing.TB) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprint(conn, "POST /payments HTTP/1.1\r\nHost: "+strings.TrimPrefix(s.url, "http://")+"\r\nX-User: alice\r\n"+
		"Idempotency-Key: order-1\r\nX-Hang: 1\r\nContent-Length: 11\r\n\r\namount=4200")
	require.NoError(t, err)
	require.True(t, s.outputLines.Scan(), "the service has ended")
	require.Equal(t, "charging", s.outputLines.Text())
}

// runService serves payments until the process is killed. The standard output has the URL, and a line for each hanging
// handler.
func runService(kind string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) // the process of the test has ended
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
		store = dynamodbstore.New(newDynamoDBClient(endpoint), dynamodbstore.Options{Skew: time.Millisecond})
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
