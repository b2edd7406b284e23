package examples_test

import (
	"bufio"
	"context"
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

// The service is killed 22 times while clients send transfers, each of them twice. Afterwards no money has come or gone, each
// transfer with a 201 is booked once, a refused one is not, and all requests with a key have got the same answer.
func TestTransfersOutliveTheirService(t *testing.T) {
	t.Parallel()
	bank := newBank(t)
	bank.start()
	bank.exec("UPDATE accounts SET balance = 1000")
	bank.exec("INSERT INTO accounts VALUES ('carol', 1000), ('dave', 1000)")

	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var done atomic.Bool
	for range 6 {
		clients.Go(func() {
			for !done.Load() && ctx.Err() == nil {
				bank.sendTwice(ctx, randomTransfer())
			}
		})
	}
	for range 22 {
		answers := bank.answers.Load()
		require.Eventually(t, func() bool { return bank.answers.Load() > answers+10 }, time.Minute, time.Millisecond)
		time.Sleep(rand.N(5 * time.Millisecond)) // the moment of the death is what is random here
		bank.kill()
		bank.start()
	}
	done.Store(true)
	clients.Wait()

	bank.requireBooked()
	bank.requireReplays(ctx)
	require.Greater(t, bank.lost.Load(), int64(22), "the deaths must hit requests that are under way")
	require.NoError(t, bank.terminate())
}

// A service that is told to stop answers the transfer that is under way, which waits for a lock here, and ends well.
func TestTransferServiceStopsInOrder(t *testing.T) {
	t.Parallel()
	bank := newBank(t)
	bank.start()
	blocker, err := bank.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "SELECT FROM accounts FOR UPDATE")
	require.NoError(t, err)

	order := transfer{key: "rent-11", from: "alice", to: "bob", amount: 30}
	answered := make(chan answer)
	go func() { answered <- bank.send(t.Context(), order) }()
	bank.eventually("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
	require.NoError(t, bank.process.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", *bank.address.Load())
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, time.Minute, time.Millisecond, "it takes no more connections")
	require.NoError(t, blocker.Rollback(t.Context()))
	require.Equal(t, http.StatusCreated, (<-answered).status)
	require.NoError(t, bank.process.Wait())
}

// Without -development the service refuses a server that may forget what it has acknowledged.
func TestTransferServiceChecksItsServer(t *testing.T) {
	t.Parallel()
	bank := newBank(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	output, err := bank.command(ctx).CombinedOutput()
	require.ErrorContains(t, err, "exit status 1")
	require.Contains(t, string(output), "fsync is off")
}

// bank is the service, in one process after the other, and what its clients know.
type bank struct {
	t        *testing.T
	program  string
	url      string // of the database
	pool     *pgxpool.Pool
	process  *exec.Cmd
	address  atomic.Pointer[string]
	client   http.Client
	lost     atomic.Int64 // attempts without an answer
	answers  atomic.Int64
	lock     sync.Mutex
	answered map[transfer]answer
}

type transfer struct {
	key, from, to string
	amount        int
}

type answer struct {
	status       int
	header, body string
	replayed     bool
}

func newBank(t *testing.T) *bank {
	b := &bank{t: t, program: built(t, "transfer"), url: servertest.Postgres(t).URL(), answered: make(map[transfer]answer)}
	var err error
	b.pool, err = pgxpool.New(t.Context(), b.url)
	require.NoError(t, err)
	t.Cleanup(b.pool.Close)
	network := &http.Transport{DialContext: b.dial}
	t.Cleanup(network.CloseIdleConnections)
	b.client.Transport = &client.Transport{
		Hosts: []string{"bank.example.com"}, Base: counted{b, network},
		MaxAttempts: 1000, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond, MaxRetryAfter: 50 * time.Millisecond,
	}
	return b
}

// dial connects to the process that serves, wherever that is.
func (b *bank) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, *b.address.Load())
}

// counted counts the attempts that break off.
type counted struct {
	bank *bank
	base http.RoundTripper
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.base.RoundTrip(r)
	if err != nil {
		c.bank.lost.Add(1)
	}
	return resp, err
}

func (b *bank) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.program, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+b.url)
	return cmd
}

// start starts a process, and waits until it serves.
func (b *bank) start() {
	b.process = b.command(b.t.Context(), "-development", "-lease", "1s")
	output, err := b.process.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, b.process.Start())
	said, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(b.t, err)
	address := strings.TrimSpace(strings.TrimPrefix(said, "listening on "))
	b.address.Store(&address)
	b.eventually("SELECT to_regclass('accounts') IS NOT NULL")
}

func (b *bank) kill() {
	require.NoError(b.t, b.process.Process.Kill())
	require.ErrorContains(b.t, b.process.Wait(), "signal: killed", "it must not end by itself")
}

func (b *bank) terminate() error {
	require.NoError(b.t, b.process.Process.Signal(syscall.SIGTERM))
	return b.process.Wait()
}

func (b *bank) exec(sql string) {
	_, err := b.pool.Exec(b.t.Context(), sql)
	require.NoError(b.t, err)
}

func (b *bank) eventually(sql string) {
	require.Eventually(b.t, func() bool {
		var is bool
		require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql).Scan(&is))
		return is
	}, time.Minute, time.Millisecond, sql)
}

// randomTransfer returns one that is refused now and then: for lack of money, or because there is no such recipient.
func randomTransfer() transfer {
	names := []string{"alice", "bob", "carol", "dave", "nobody"}
	from := rand.IntN(4)
	to := (from + 1 + rand.IntN(4)) % 5
	return transfer{key: uuid.NewString(), from: names[from], to: names[to], amount: 1 + rand.IntN(800)}
}

// sendTwice sends a transfer in two requests at once, and keeps what they are answered.
func (b *bank) sendTwice(ctx context.Context, order transfer) {
	var second sync.WaitGroup
	second.Go(func() { b.keep(order, b.send(ctx, order)) })
	b.keep(order, b.send(ctx, order))
	second.Wait()
}

func (b *bank) keep(order transfer, a answer) {
	if a.status == 0 {
		return // the test has failed
	}
	b.answers.Add(1)
	a.replayed = false
	b.lock.Lock()
	defer b.lock.Unlock()
	if first, ok := b.answered[order]; ok {
		assert.Equal(b.t, first, a)
	}
	b.answered[order] = a
}

// send sends a transfer until it has the whole answer.
func (b *bank) send(ctx context.Context, order transfer) answer {
	for ctx.Err() == nil {
		body := fmt.Sprintf(`{"to":%q,"amount":%d,"note":%q}`, order.to, order.amount, order.key)
		req, err := http.NewRequestWithContext(client.WithKey(ctx, order.key), http.MethodPost,
			"http://bank.example.com/transfers", strings.NewReader(body))
		if !assert.NoError(b.t, err) {
			break
		}
		req.SetBasicAuth(order.from, "secret")
		resp, err := b.client.Do(req)
		if !assert.NoError(b.t, err) {
			break
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			continue // the service has died as it wrote this
		}
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		resp.Header.Del("Idempotent-Replayed")
		resp.Header.Del("Date")
		return answer{resp.StatusCode, fmt.Sprint(resp.Header), string(text), replayed}
	}
	return answer{}
}

// requireBooked compares the books with what clients were told.
func (b *bank) requireBooked() {
	balances := map[string]int{"alice": 1000, "bob": 1000, "carol": 1000, "dave": 1000}
	booked := make(map[transfer]int)
	rows, err := b.pool.Query(b.t.Context(), "SELECT note, sender, recipient, amount FROM transfers")
	require.NoError(b.t, err)
	var row transfer
	_, err = pgx.ForEachRow(rows, []any{&row.key, &row.from, &row.to, &row.amount}, func() error {
		booked[row]++
		balances[row.from] -= row.amount
		balances[row.to] += row.amount
		return nil
	})
	require.NoError(b.t, err)
	statuses := make(map[int]int)
	for order, answer := range b.answered {
		statuses[answer.status]++
		want := map[int]int{http.StatusCreated: 1, http.StatusUnprocessableEntity: 0}
		times, known := want[answer.status]
		require.True(b.t, known, "%+v: %+v", order, answer)
		require.Equal(b.t, times, booked[order], "%+v: %+v", order, answer)
		delete(booked, order)
	}
	require.Empty(b.t, booked, "transfers that nobody has ordered, or that nobody was told of")
	for name, want := range balances {
		var is int
		require.NoError(b.t, b.pool.QueryRow(b.t.Context(), "SELECT balance FROM accounts WHERE name = $1", name).Scan(&is))
		require.Equal(b.t, want, is, name)
	}
	require.NotZero(b.t, statuses[http.StatusCreated])
	require.NotZero(b.t, statuses[http.StatusUnprocessableEntity])
	b.t.Logf("transfers by status: %v, attempts without an answer: %d", statuses, b.lost.Load())
}

// requireReplays sends all transfers once more.
func (b *bank) requireReplays(ctx context.Context) {
	for order, first := range b.answered {
		first.replayed = true
		require.Equal(b.t, first, b.send(ctx, order))
	}
}
