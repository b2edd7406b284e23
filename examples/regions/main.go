// Regions is a service in two regions, eu and us, each with a store of its own. A key begins with the name of a region: its
// record is there, and its request is executed there, wherever it arrives. Then eu is cut off, and Alice is moved to us.
// With -table, the program prints how often orders are executed twice if both regions share a store. It needs nothing
// else to run, and ends with the line
//
//	5 orders, 12 requests: 5 bookings, 5 charges
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/examples/regions/activeactive"
)

func main() {
	shared := flag.Bool("table", false, "print what happens to a store that both regions share")
	flag.Parse()
	if *shared {
		fmt.Print(activeactive.Table())
		return
	}
	homes := &table{homes: map[string]string{"alice": "eu", "bob": "us"}}
	eu, us := newRegion("eu", homes), newRegion("us", homes)
	eu.other, us.other, us.forwards = us, eu, true
	defer eu.serve()()
	defer us.serve()()
	bank, stop := provider.Start()
	defer stop()
	requests := story(homes, eu, us)

	orders := maps.Clone(eu.books.users)
	maps.Copy(orders, us.books.users)
	bookings := len(eu.books.users) + len(us.books.users)
	verdict := fmt.Sprintf("%d orders, %d requests: %d bookings, %d charges", len(orders), requests, bookings, bank.Acts())
	fmt.Println(verdict)
	if verdict != "5 orders, 12 requests: 5 bookings, 5 charges" {
		log.Fatal("this is broken")
	}
}

// story tells what happens, and returns how many requests were sent.
func story(homes *table, eu, us *region) (requests int) {
	order := func(user, key string, at *region, want string) {
		requests++
		answer := send(user, key, at)
		fmt.Printf("  %-5s  %-7s  at %s: %s\n", user, key, at.name, answer)
		if answer != want {
			log.Fatalf("this is broken: the answer is not %q", want)
		}
	}
	fmt.Println("Alice's home is eu, and Bob's is us. What belongs to the other region, us forwards, and eu refuses.")
	order("alice", "eu-tea", eu, "201 booked in eu")
	order("alice", "eu-tea", us, "201 booked in eu, replayed")
	order("bob", "us-rice", eu, "421 Misdirected Request")
	order("bob", "us-rice", us, "201 booked in us")

	fmt.Println("Alice orders milk. Then the cable to eu is cut, and the answer is lost.")
	eu.losing.Store(true)
	order("alice", "eu-milk", eu, "no answer")
	eu.cut.Store(true)
	order("alice", "eu-milk", us, "503 Service Unavailable")

	fmt.Println("Alice is moved to us. Meanwhile a handler in eu stands still with an order of hers.")
	eu.still.Lock()
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		order("alice", "eu-salt", eu, "503 Service Unavailable")
	}()
	homes.move("alice", "us")
	eu.still.Unlock()
	<-refused
	order("alice", "us-figs", us, "201 booked in us")
	order("alice", "eu-milk", us, "503 Service Unavailable")

	fmt.Println("The cable is mended.")
	eu.cut.Store(false)
	order("alice", "eu-milk", us, "201 booked in eu, replayed")
	order("alice", "eu-salt", us, "409 Conflict")
	order("alice", "us-salt", us, "201 booked in us")
	return requests
}

// client uses each connection once. On an old one, net/http sends a request with a key again by itself.
var client = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// send sends an order. Behind the region, a real key has something random.
func send(user, key string, at *region) (answer string) {
	req, err := http.NewRequest("POST", at.url+"/orders", nil)
	demo.Check(err)
	req.SetBasicAuth(user, "secret")
	req.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(req)
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return resp.Status
	}
	body, err := io.ReadAll(resp.Body)
	demo.Check(err)
	answer = fmt.Sprintf("%d %s", resp.StatusCode, body)
	if resp.Header.Get("Idempotent-Replayed") == "true" {
		answer += ", replayed"
	}
	return answer
}
