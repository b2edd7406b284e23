// Quickstart charges a card through a real HTTP server. The client loses the first answer, and sends 50 retries at once. The
// program needs nothing else to run, and ends with the line
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

	// The service: the middleware guards the handler, which must not charge twice.
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		identifyUser,
		idempotency.Options{Wait: 10 * time.Second}, // a retry waits for the answer of the first attempt
	)
	checkError(err)
	bank := &bank{chargesByUser: make(map[string]int), firstRunBegan: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(bank))

	server := &http.Server{Handler: mux}
	listener := listenAndRecord()
	go server.Serve(listener)

	// The clients of the service.
	client := client{serverAddress: listener.Addr().String(), key: rand.Text()}

	fmt.Println("Alice pays 4200. Her connection breaks while her card is being charged.")
	conn := client.sendRequest("alice", 4200)
	<-bank.firstRunBegan
	checkError(conn.Close()) // before the client reads a byte

	fmt.Println("Alice sends the request again, 50 times at once.")
	retried := make([]string, 50)
	var all sync.WaitGroup
	for i := range retried {
		all.Go(func() { retried[i] = client.readAnswer("alice", 4200) })
	}
	all.Wait()

	reused := client.readAnswer("alice", 9900)
	fmt.Println("Alice sends another amount with the same key:", statusOf(reused))
	bobs := client.readAnswer("bob", 4200)
	fmt.Println("Bob pays 4200 with the same key:", statusOf(bobs))

	checkError(server.Shutdown(context.Background()))
	lost := listener.firstAnswer.String()
	fmt.Printf("\nEach retry of Alice got the answer that she had lost, with a mark:\n\n%s\n\n", indentLines(retried[0]))

	// Check the promises of the middleware.
	if statusOf(reused) != "409 Conflict" || statusOf(bobs) != "201 Created" {
		log.Fatal("quickstart: a key is good for one user and one request: this is broken")
	}
	identical := 1 // the lost answer itself, to which the loop compares the answers to the retries
	for _, answer := range retried {
		if isReplay(answer, lost) {
			identical++
		}
	}
	verdict := fmt.Sprintf("Alice: %d requests, %d equal answers, %d charge. Bob: 1 request, %d charge.",
		1+len(retried), identical, bank.chargesByUser["alice"], bank.chargesByUser["bob"])
	if verdict != "Alice: 51 requests, 51 equal answers, 1 charge. Bob: 1 request, 1 charge." {
		log.Fatal("quickstart: this is broken: ", verdict)
	}
	fmt.Println(verdict)
}

// identifyUser returns the user who has sent r. A real service returns the user whom its authentication has established.
func identifyUser(r *http.Request) (string, error) { return r.Header.Get("User"), nil }

// bank is the handler. Each run makes a charge with a new ID.
type bank struct {
	mu            sync.Mutex
	chargesByUser map[string]int
	firstRunBegan chan struct{}
	signalOnce    sync.Once
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.signalOnce.Do(func() { close(b.firstRunBegan) })
	time.Sleep(300 * time.Millisecond) // card networks are slow

	user, _ := identifyUser(r)
	b.mu.Lock()
	b.chargesByUser[user]++
	b.mu.Unlock()

	id := rand.Text()
	w.Header().Set("Location", "/payments/"+id)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id":%q,"status":"charged"}`, id)
}

func checkError(err error) {
	if err != nil {
		log.Fatal("quickstart: ", err)
	}
}
