// Quickstart charges a card through a real HTTP server. The client loses the first answer and tries again, 50 times
// at once. It needs nothing else to run, and ends with the line
//
//	Alice: 51 requests, 51 equal answers, 1 charge. Bob: 1 request, 1 charge.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

func main() {
	time.AfterFunc(time.Minute, func() { log.Fatal("quickstart: no end after a minute") })

	// The service: one middleware around the handler that must not run twice.
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		caller,
		idempotency.Options{Wait: 10 * time.Second}, // hold a retry until the first attempt is through
	)
	check(err)
	bank := &bank{charges: make(map[string]int), charging: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(bank))

	server := &http.Server{Handler: mux}
	wire := listen()
	go server.Serve(wire)

	// Its clients.
	client := client{addr: wire.Addr().String(), key: rand.Text()}

	fmt.Println("Alice pays 4200. Her connection breaks while her card is being charged.")
	conn := client.order("alice", 4200)
	<-bank.charging
	check(conn.Close()) // without having read a byte

	fmt.Println("Alice sends the request again, 50 times at once.")
	retried := make([]string, 50)
	var all sync.WaitGroup
	for i := range retried {
		all.Go(func() { retried[i] = client.answer("alice", 4200) })
	}
	all.Wait()

	reused := client.answer("alice", 9900)
	fmt.Println("Alice sends another amount with the same key:", status(reused))
	bobs := client.answer("bob", 4200)
	fmt.Println("Bob pays 4200 with the same key:", status(bobs))

	check(server.Shutdown(context.Background()))
	lost := wire.first.String()
	fmt.Printf("\nEach retry of Alice got the answer that she had lost, with a mark:\n\n%s\n\n", indent(retried[0]))

	// Is it what was promised?
	if status(reused) != "409 Conflict" || status(bobs) != "201 Created" {
		log.Fatal("quickstart: a key is good for one user and one request: this is broken")
	}
	identical := 1 // the lost one, with which the others are compared
	for _, answer := range retried {
		if isReplay(answer, lost) {
			identical++
		}
	}
	verdict := fmt.Sprintf("Alice: %d requests, %d equal answers, %d charge. Bob: 1 request, %d charge.",
		1+len(retried), identical, bank.charges["alice"], bank.charges["bob"])
	if verdict != "Alice: 51 requests, 51 equal answers, 1 charge. Bob: 1 request, 1 charge." {
		log.Fatal("quickstart: this is broken: ", verdict)
	}
	fmt.Println(verdict)
}

// caller names the user of a request. In a real service, authentication has established who that is.
func caller(r *http.Request) (string, error) { return r.Header.Get("User"), nil }

// bank is the handler. Each time it runs it makes another charge, with another ID.
type bank struct {
	mu       sync.Mutex
	charges  map[string]int // by user
	charging chan struct{}  // closed when the first charge begins
	begin    sync.Once
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.begin.Do(func() { close(b.charging) })
	time.Sleep(300 * time.Millisecond) // card networks take their time

	user, _ := caller(r)
	b.mu.Lock()
	b.charges[user]++
	b.mu.Unlock()

	id := rand.Text()
	w.Header().Set("Location", "/payments/"+id)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%q,"status":"charged"}`, id)
}

func check(err error) {
	if err != nil {
		log.Fatal("quickstart: ", err)
	}
}
