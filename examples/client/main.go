// Client keeps one key for one order, whatever breaks: over the attempts to send it, and over the death of its own
// process. The first order goes by go-retryablehttp: package recipes has it and other libraries. It ends with the line
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
	payments.misbehave(2, nil)
	sendByRetryable(payments.URL)

	fmt.Println("a process sends an order, and is killed before it is answered; then it is started again")
	dir, err := os.MkdirTemp("", "orders")
	demo.Check(err)
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "order")
	charged := make(chan struct{})
	payments.misbehave(0, charged)
	child := process(ctx, payments.URL, file)
	<-charged
	demo.Check(child.Process.Kill())
	if child.Wait() == nil {
		log.Fatal("this is broken: the process was not killed")
	}
	demo.Check(process(ctx, payments.URL, file).Wait())

	verdict := payments.verdict()
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

// sendOrder sends the order in a file. Its key is stored with it before it is sent for the first time.
func sendOrder(ctx context.Context, url, file string) {
	order, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		order = []byte(uuid.NewString() + " 4200")
		err = os.WriteFile(file, order, 0o600) // and synced to the disk, or better in the transaction of the order
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

// process starts this program again, to send the order in file.
func process(ctx context.Context, url, file string) *exec.Cmd {
	program, err := os.Executable()
	demo.Check(err)
	child := exec.CommandContext(ctx, program)
	child.Env = append(os.Environ(), "PAYMENTS_URL="+url, "ORDER_FILE="+file)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	demo.Check(child.Start())
	return child
}

// payments is a guarded service that counts, and does not always answer.
type payments struct {
	*httptest.Server
	guarded http.Handler

	mu                sync.Mutex
	requests, charges int
	keys              map[string]bool
	lose              int           // how many answers get lost
	hang              chan struct{} // closed when the card is charged, and the client waits for an answer in vain
}

func newPayments() *payments {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	demo.Check(err)
	p := &payments{keys: make(map[string]bool)}
	p.guarded = idem.Handler(http.HandlerFunc(p.charge))
	p.Server = httptest.NewServer(p)
	return p
}

// misbehave loses the next answers, or gives none and says so.
func (p *payments) misbehave(lose int, hang chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.hang = lose, hang
}

func (p *payments) charge(w http.ResponseWriter, _ *http.Request) {
	p.charges++
	w.WriteHeader(http.StatusCreated)
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	p.keys[r.Header.Get("Idempotency-Key")] = true
	switch {
	case p.lose > 0:
		p.lose--
		p.guarded.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case p.hang != nil:
		p.guarded.ServeHTTP(httptest.NewRecorder(), r)
		close(p.hang)
		p.hang = nil
		<-r.Context().Done() // the client is gone
	default:
		p.guarded.ServeHTTP(w, r)
	}
}

func (p *payments) verdict() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("2 orders, %d requests, %d keys, %d charges", p.requests, len(p.keys), p.charges)
}
