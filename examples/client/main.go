// Client keeps one key for each order, over all attempts to send the order, and over the death of the client's own process.
// The first order goes by go-retryablehttp; package recipes has recipes for other libraries, too. The program ends with the
// line
//
//	2 orders, 5 requests, 2 keys, 2 charges
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/examples/client/recipes"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if url := os.Getenv("PAYMENTS_URL"); url != "" {
		sendOrder(ctx, url, os.Getenv("ORDER_FILE"))
		return
	}
	payments := newPayments()
	defer payments.Close()

	fmt.Println("go-retryablehttp sends an order; the first two answers get lost")
	payments.setFaults(2, nil)
	sendByRetryable(payments.URL)

	fmt.Println("a process sends an order, and is killed before it is answered; then it is started again")
	dir, err := os.MkdirTemp("", "orders")
	demo.Check(err)
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "order")
	charged := make(chan struct{})
	payments.setFaults(0, charged)
	child := startSender(ctx, payments.URL, file)
	<-charged
	demo.Check(child.Process.Kill())
	if child.Wait() == nil {
		log.Fatal("this is broken: the process was not killed")
	}
	demo.Check(startSender(ctx, payments.URL, file).Wait())

	verdict := payments.summarizeCounts()
	fmt.Println(verdict)
	if verdict != "2 orders, 5 requests, 2 keys, 2 charges" {
		log.Fatal("this is broken")
	}
}

// sendByRetryable sends an order by go-retryablehttp, and leaves the retries to the Transport.
func sendByRetryable(url string) {
	retryable := recipes.Retryable(&client.Transport{Hosts: []string{"127.0.0.1"}, MinDelay: 10 * time.Millisecond})
	retryable.Logger = nil
	defer retryable.HTTPClient.CloseIdleConnections()
	resp, err := retryable.Post(url, "text/plain", strings.NewReader("4200"))
	demo.Check(err)
	demo.Check(resp.Body.Close())
	fmt.Println("  answered:", resp.Status)
}

// sendOrder sends the order in file. A new order and its key are stored in file before the first attempt.
func sendOrder(ctx context.Context, url, file string) {
	order, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		order = []byte(uuid.NewString() + " 4200")
		// A service also syncs the file or, better, stores the key in the transaction of the order.
		err = os.WriteFile(file, order, 0o600)
	}
	demo.Check(err)
	key, amount, _ := strings.Cut(string(order), " ")

	ctx = client.WithKey(ctx, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(amount))
	demo.Check(err)
	httpClient := http.Client{Transport: &client.Transport{Hosts: []string{"127.0.0.1"}}}
	resp, err := httpClient.Do(req)
	demo.Check(err)
	demo.Check(resp.Body.Close())
	fmt.Println("  answered:", resp.Status)
}

// startSender starts this program in a child process, which sends the order in file.
func startSender(ctx context.Context, url, file string) *exec.Cmd {
	program, err := os.Executable()
	demo.Check(err)
	child := exec.CommandContext(ctx, program)
	child.Env = append(os.Environ(), "PAYMENTS_URL="+url, "ORDER_FILE="+file)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	demo.Check(child.Start())
	return child
}

// payments is a guarded service that counts requests, keys and charges, and that can lose answers.
type payments struct {
	*httptest.Server
	guardedHandler http.Handler

	mu                        sync.Mutex
	requestCount, chargeCount int
	seenKeys                  map[string]bool
	answersToLose             int
	hangingCharge             chan struct{} // closed when the card is charged, and the client will get no answer
}

func newPayments() *payments {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	demo.Check(err)
	p := &payments{seenKeys: make(map[string]bool)}
	p.guardedHandler = idem.Handler(http.HandlerFunc(p.chargeCard))
	p.Server = httptest.NewServer(p)
	return p
}

// setFaults makes payments lose the next lostAnswers answers. If hangingCharge is set, the next request gets no answer, and
// hangingCharge is closed when the card is charged.
func (p *payments) setFaults(lostAnswers int, hangingCharge chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answersToLose, p.hangingCharge = lostAnswers, hangingCharge
}

func (p *payments) chargeCard(w http.ResponseWriter, _ *http.Request) {
	p.chargeCount++
	w.WriteHeader(http.StatusCreated)
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requestCount++
	p.seenKeys[r.Header.Get("Idempotency-Key")] = true
	switch {
	case p.answersToLose > 0:
		p.answersToLose--
		p.guardedHandler.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case p.hangingCharge != nil:
		p.guardedHandler.ServeHTTP(httptest.NewRecorder(), r)
		close(p.hangingCharge)
		p.hangingCharge = nil
		<-r.Context().Done() // the client has left
	default:
		p.guardedHandler.ServeHTTP(w, r)
	}
}

func (p *payments) summarizeCounts() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("2 orders, %d requests, %d keys, %d charges", p.requestCount, len(p.seenKeys), p.chargeCount)
}
