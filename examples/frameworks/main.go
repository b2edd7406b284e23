// Frameworks mounts the middleware in frameworks that need no adapter. Each framework has its own file. For each operation, a
// client sends a request, a retry, and a different request with the same key. The program ends with the line
//
//	frameworks: 6, operations: 9, requests: 27, charges: 9
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// guarded is a service whose operations the middleware guards. Each path leads to the shop.
type guarded struct {
	handler http.Handler
	paths   []string
	close   func() // may be nil
}

func main() {
	operations, charges := 0, 0
	frameworks := []func(*idempotency.Middleware, *demo.Shop) guarded{onChi, onGorilla, onHuma, onOAPI, onGateway, behindProxy}
	for _, mount := range frameworks {
		idem, err := idempotency.New(
			idempotency.NewMemoryStore(idempotency.MemoryOptions{}), demo.User, idempotency.Options{Required: true})
		demo.Check(err)
		var shop demo.Shop
		service := mount(idem, &shop)
		shop.Visit(service.handler, service.paths...)
		if service.close != nil {
			service.close()
		}
		operations += len(service.paths)
		charges += shop.Charges()
	}
	verdict := fmt.Sprintf("frameworks: %d, operations: %d, requests: %d, charges: %d",
		len(frameworks), operations, 3*operations, charges)
	fmt.Println(verdict)
	if verdict != "frameworks: 6, operations: 9, requests: 27, charges: 9" {
		log.Fatal("this is broken")
	}
}
