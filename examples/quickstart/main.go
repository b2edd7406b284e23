// Quickstart charges a card through a real HTTP server. The client loses the first answer and tries again, 50 times
// at once. It needs nothing else to run, and ends with the line
//
//	51 requests, 1 charge, 51 identical answers
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

	fmt.Println("alice  orders a payment of 4200, and hangs up while her card is being charged")
	conn := client.order("alice", 4200)
	<-bank.charging
	check(conn.Close()) // without having read a byte

	fmt.Println("alice  tries again, 50 times at once")
	retried := make([]string, 50)
	var all sync.WaitGroup
	for i := range retried {
		all.Go(func() { retried[i] = client.answer("alice", 4200) })
	}
	all.Wait()

	reused := client.answer("alice", 9900)
	fmt.Println("alice  orders a payment of 9900 with the same key:", status(reused))
	bobs := client.answer("bob", 4200)
	fmt.Println("bob    orders a payment with the same key:", status(bobs)+", a charge of his own")

	check(server.Shutdown(context.Background()))
	lost := wire.first.String()
	fmt.Printf("\nThe answer that got lost, as the server put it on the wire:\n\n%s\n", indent(lost))
	fmt.Printf("\nThe answer to a retry, as it came over the wire:\n\n%s\n\n", indent(retried[0]))

	// Is it what was promised?
	if status(reused) != "409 Conflict" || status(bobs) != "201 Created" || bank.charges["bob"] != 1 {
		log.Fatal("quickstart: a key is good for one user and one request: this is broken")
	}
	identical := 1 // the lost one, with which the others are compared
	for _, answer := range retried {
		if isReplay(answer, lost) {
			identical++
		}
	}
	verdict := fmt.Sprintf("%d requests, %d charge, %d identical answers",
		1+len(retried), bank.charges["alice"], identical)
	if verdict != "51 requests, 1 charge, 51 identical answers" {
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
