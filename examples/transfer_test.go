package examples_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The test kills the service 22 times while clients send each transfer twice. Afterwards the sum of the balances is the same,
// each transfer with a 201 is booked once, refused transfers are not booked, and all requests with the same key have got the
// same answer.
func TestTransfersOutliveTheirService(t *testing.T) {
	t.Parallel()
	service := newTransferService(t)
	service.startService()
	service.execSQL("UPDATE accounts SET balance = 1000")
	service.execSQL("INSERT INTO accounts VALUES ('carol', 1000), ('dave', 1000)")

	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var done atomic.Bool
	for range 6 {
		clients.Go(func() {
			for !done.Load() && ctx.Err() == nil {
				service.sendTwice(ctx, randomTransfer())
			}
		})
	}
	for range 22 {
		answers := service.answerCount.Load()
		require.Eventually(t, func() bool { return service.answerCount.Load() > answers+10 }, time.Minute, time.Millisecond)
		time.Sleep(rand.N(5 * time.Millisecond)) // kills the service at a random moment
		service.killService()
		service.startService()
	}
	done.Store(true)
	clients.Wait()

	service.requireBooked()
	service.requireReplays(ctx)
	require.GreaterOrEqual(t, service.lostAnswers.Load(), int64(11), "every second death must hit a request that is under way")
	require.NoError(t, service.terminateService())
}

// After SIGTERM, the service answers the running transfer, which waits for a lock in this test, and exits with success.
func TestTransferServiceStopsInOrder(t *testing.T) {
	t.Parallel()
	service := newTransferService(t)
	service.startService()
	blocker, err := service.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "SELECT FROM accounts FOR UPDATE")
	require.NoError(t, err)

	order := transfer{key: "rent-11", from: "alice", to: "bob", amount: 30}
	answered := make(chan transferAnswer)
	go func() { answered <- service.sendTransfer(t.Context(), order) }()
	service.awaitSQL("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
	require.NoError(t, service.process.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", *service.serviceAddress.Load())
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, time.Minute, time.Millisecond, "it takes no more connections")
	require.NoError(t, blocker.Rollback(t.Context()))
	require.Equal(t, http.StatusCreated, (<-answered).status)
	require.NoError(t, service.process.Wait())
}

// Without -development, the service refuses a PostgreSQL server that can lose acknowledged commits.
func TestTransferServiceChecksItsServer(t *testing.T) {
	t.Parallel()
	service := newTransferService(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	output, err := service.newCommand(ctx).CombinedOutput()
	require.ErrorContains(t, err, "exit status 1")
	require.Contains(t, string(output), "fsync is off")
}

// transferService is the service, which runs in a new process after each kill, and the answers that the clients have got.
type transferService struct {
	t                *testing.T
	programFile      string
	databaseURL      string
	pool             *pgxpool.Pool
	process          *exec.Cmd
	serviceAddress   atomic.Pointer[string]
	httpClient       http.Client
	lostAnswers      atomic.Int64 // attempts that reached the service and got no answer
	answerCount      atomic.Int64
	mu               sync.Mutex
	answerByTransfer map[transfer]transferAnswer
}

type transfer struct {
	key, from, to string
	amount        int
}

type transferAnswer struct {
	status       int
	header, body string
	isReplay     bool
}

func newTransferService(t *testing.T) *transferService {
	s := &transferService{
		t: t, programFile: buildProgram(t, "transfer"), databaseURL: servertest.Postgres(t).URL(),
		answerByTransfer: make(map[transfer]transferAnswer),
	}
	var err error
	s.pool, err = pgxpool.New(t.Context(), s.databaseURL)
	require.NoError(t, err)
	t.Cleanup(s.pool.Close)
	network := &http.Transport{DialContext: s.dialService}
	t.Cleanup(network.CloseIdleConnections)
	s.httpClient.Transport = &client.Transport{
		Hosts: []string{"bank.example.com"}, Base: countingTransport{s, network},
		MaxAttempts: 1000, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond, MaxRetryAfter: 50 * time.Millisecond,
	}
	return s
}

// dialService connects to the current process of the service.
func (s *transferService) dialService(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, *s.serviceAddress.Load())
}

// countingTransport counts the attempts that reached the service and got no answer.
type countingTransport struct {
	service       *transferService
	baseTransport http.RoundTripper
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.baseTransport.RoundTrip(r)
	if refused, ok := errors.AsType[*net.OpError](err); err != nil && (!ok || refused.Op != "dial") {
		c.service.lostAnswers.Add(1)
	}
	return resp, err
}

// newCommand returns a command that starts the service.
func (s *transferService) newCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.programFile, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.databaseURL)
	return cmd
}

// startService starts a process of the service, and waits until the table of accounts exists.
func (s *transferService) startService() {
	s.process = s.newCommand(s.t.Context(), "-development", "-lease", "1s")
	output, err := s.process.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.process.Start())
	said, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(s.t, err)
	address := strings.TrimSpace(strings.TrimPrefix(said, "listening on "))
	s.serviceAddress.Store(&address)
	s.awaitSQL("SELECT to_regclass('accounts') IS NOT NULL")
}

func (s *transferService) killService() {
	require.NoError(s.t, s.process.Process.Kill())
	require.ErrorContains(s.t, s.process.Wait(), "signal: killed", "it must not end by itself")
}

// terminateService asks the service to stop, and waits until the process has ended.
func (s *transferService) terminateService() error {
	require.NoError(s.t, s.process.Process.Signal(syscall.SIGTERM))
	return s.process.Wait()
}

func (s *transferService) execSQL(sql string) {
	_, err := s.pool.Exec(s.t.Context(), sql)
	require.NoError(s.t, err)
}

// awaitSQL waits until the query sql returns true.
func (s *transferService) awaitSQL(sql string) {
	require.Eventually(s.t, func() bool {
		var is bool
		require.NoError(s.t, s.pool.QueryRow(s.t.Context(), sql).Scan(&is))
		return is
	}, time.Minute, time.Millisecond, sql)
}

// randomTransfer returns a random transfer. The service refuses some of these transfers, because the sender has too little
// money or the recipient does not exist.
func randomTransfer() transfer {
	names := []string{"alice", "bob", "carol", "dave", "nobody"}
	from := rand.IntN(4)
	to := (from + 1 + rand.IntN(4)) % 5
	return transfer{key: uuid.NewString(), from: names[from], to: names[to], amount: 1 + rand.IntN(800)}
}

// sendTwice sends a transfer in two concurrent requests, and records both answers.
func (s *transferService) sendTwice(ctx context.Context, order transfer) {
	var second sync.WaitGroup
	second.Go(func() { s.recordAnswer(order, s.sendTransfer(ctx, order)) })
	s.recordAnswer(order, s.sendTransfer(ctx, order))
	second.Wait()
}

// recordAnswer records the answer to order, and requires that all answers to order are the same.
func (s *transferService) recordAnswer(order transfer, a transferAnswer) {
	if a.status == 0 {
		return // sendTransfer has failed the test
	}
	s.answerCount.Add(1)
	a.isReplay = false
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, ok := s.answerByTransfer[order]; ok {
		assert.Equal(s.t, first, a)
	}
	s.answerByTransfer[order] = a
}

// sendTransfer repeats a transfer until the answer is complete.
func (s *transferService) sendTransfer(ctx context.Context, order transfer) transferAnswer {
	for ctx.Err() == nil {
		body := fmt.Sprintf(`{"to":%q,"amount":%d,"note":%q}`, order.to, order.amount, order.key)
		req, err := http.NewRequestWithContext(client.WithKey(ctx, order.key), http.MethodPost,
			"http://bank.example.com/transfers", strings.NewReader(body))
		if !assert.NoError(s.t, err) {
			break
		}
		req.SetBasicAuth(order.from, "secret")
		resp, err := s.httpClient.Do(req)
		if !assert.NoError(s.t, err) {
			break
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			continue // the service was killed while it wrote the answer
		}
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		resp.Header.Del("Idempotent-Replayed")
		resp.Header.Del("Date")
		return transferAnswer{resp.StatusCode, fmt.Sprint(resp.Header), string(text), replayed}
	}
	return transferAnswer{}
}

// requireBooked compares the transfers and balances in the database with the answers that the clients have got.
func (s *transferService) requireBooked() {
	balances := map[string]int{"alice": 1000, "bob": 1000, "carol": 1000, "dave": 1000}
	booked := make(map[transfer]int)
	rows, err := s.pool.Query(s.t.Context(), "SELECT note, sender, recipient, amount FROM transfers")
	require.NoError(s.t, err)
	var row transfer
	_, err = pgx.ForEachRow(rows, []any{&row.key, &row.from, &row.to, &row.amount}, func() error {
		booked[row]++
		balances[row.from] -= row.amount
		balances[row.to] += row.amount
		return nil
	})
	require.NoError(s.t, err)
	statuses := make(map[int]int)
	for order, answer := range s.answerByTransfer {
		statuses[answer.status]++
		want := map[int]int{http.StatusCreated: 1, http.StatusUnprocessableEntity: 0}
		times, known := want[answer.status]
		require.True(s.t, known, "%+v: %+v", order, answer)
		require.Equal(s.t, times, booked[order], "%+v: %+v", order, answer)
		delete(booked, order)
	}
	require.Empty(s.t, booked, "transfers that nobody has ordered, or that nobody was told of")
	for name, want := range balances {
		var is int
		require.NoError(s.t, s.pool.QueryRow(s.t.Context(), "SELECT balance FROM accounts WHERE name = $1", name).Scan(&is))
		require.Equal(s.t, want, is, name)
	}
	require.NotZero(s.t, statuses[http.StatusCreated])
	require.NotZero(s.t, statuses[http.StatusUnprocessableEntity])
	s.t.Logf("transfers by status: %v, attempts without an answer: %d", statuses, s.lostAnswers.Load())
}

// requireReplays sends all transfers again, and requires replays of the same answers.
func (s *transferService) requireReplays(ctx context.Context) {
	for order, first := range s.answerByTransfer {
		first.isReplay = true
		require.Equal(s.t, first, s.sendTransfer(ctx, order))
	}
}
