// Regions is a service in two regions, eu and us, each with its own store. A key begins with the name of its region. Only the named
// region has the record of the key and executes the request, wherever the request arrives. During the program, eu is cut off, and
// Alice is moved to us. With -table, the program instead prints how often orders are executed twice if both regions share a store.
// The program needs nothing else to run, and ends with the line
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
	printTable := flag.Bool("table", false, "print what happens to a store that both regions share")
	flag.Parse()
	if *printTable {
		fmt.Print(activeactive.Table())
		return
	}
	homes := &homeTable{homeByUser: map[string]string{"alice": "eu", "bob": "us"}}
	eu, us := newRegion("eu", homes), newRegion("us", homes)
	eu.otherRegion, us.otherRegion, us.isForwarding = us, eu, true
	defer eu.serve()()
	defer us.serve()()
	bank, stop := provider.Start()
	defer stop()
	requests := runScenario(homes, eu, us)

	orders := maps.Clone(eu.bookings.userByOrder)
	maps.Copy(orders, us.bookings.userByOrder)
	bookings := len(eu.bookings.userByOrder) + len(us.bookings.userByOrder)
	verdict := fmt.Sprintf("%d orders, %d requests: %d bookings, %d charges", len(orders), requests, bookings, bank.Acts())
	fmt.Println(verdict)
	if verdict != "5 orders, 12 requests: 5 bookings, 5 charges" {
		log.Fatal("this is broken")
	}
}

// runScenario sends the requests, prints the answers, and returns the number of requests.
func runScenario(homes *homeTable, eu, us *region) (requests int) {
	placeOrder := func(user, key string, at *region, want string) {
		requests++
		answer := sendOrder(user, key, at)
		fmt.Printf("  %-5s  %-7s  at %s: %s\n", user, key, at.name, answer)
		if answer != want {
			log.Fatalf("this is broken: the answer is not %q", want)
		}
	}
	fmt.Println("Alice's home is eu, and Bob's is us. What belongs to the other region, us forwards, and eu refuses.")
	placeOrder("alice", "eu-tea", eu, "201 booked in eu")
	placeOrder("alice", "eu-tea", us, "201 booked in eu, replayed")
	placeOrder("bob", "us-rice", eu, "421 Misdirected Request")
	placeOrder("bob", "us-rice", us, "201 booked in us")

	fmt.Println("Alice orders milk. Then the cable to eu is cut, and the answer is lost.")
	eu.losesNextAnswer.Store(true)
	placeOrder("alice", "eu-milk", eu, "no answer")
	eu.isCut.Store(true)
	placeOrder("alice", "eu-milk", us, "503 Service Unavailable")

	fmt.Println("Alice is moved to us. Meanwhile a handler in eu stands still with an order of hers.")
	eu.pauseHandlers.Lock()
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		placeOrder("alice", "eu-salt", eu, "503 Service Unavailable")
	}()
	homes.moveUser("alice", "us")
	eu.pauseHandlers.Unlock()
	<-refused
	placeOrder("alice", "us-figs", us, "201 booked in us")
	placeOrder("alice", "eu-milk", us, "503 Service Unavailable")

	fmt.Println("The cable is mended.")
	eu.isCut.Store(false)
	placeOrder("alice", "eu-milk", us, "201 booked in eu, replayed")
	placeOrder("alice", "eu-salt", us, "409 Conflict")
	placeOrder("alice", "us-salt", us, "201 booked in us")
	return requests
}

// client uses each connection once, because net/http would repeat a request with a key by itself if a reused connection breaks.
var client = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// sendOrder sends an order, and returns the answer as a line. In a real key, a random text follows the region.
func sendOrder(user, key string, at *region) (answer string) {
	req, err := http.NewRequest("POST", at.baseURL+"/orders", nil)
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
