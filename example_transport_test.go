package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// A client that retries requests to a host that honours the header. Each request has one key, which all its attempts
// share.
func ExampleTransport() {
	provider := newProvider()
	defer provider.Close()
	provider.loseAnswers = 2

	transport := &idempotency.Transport{Hosts: []string{"payments.example.com"}}
	client := &http.Client{Transport: transport}

	transport.Base = provider.Client().Transport // it finds the provider under this name
	resp, err := client.Post("http://payments.example.com/payments", "text/plain", strings.NewReader("4200"))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	fmt.Println("lost answers:", 2-provider.loseAnswers)
	fmt.Println("charges:", provider.charges)
	// Output:
	// 201 Created
	// lost answers: 2
	// charges: 1
}

// A client that may be restarted stores the key with the order before it sends the order for the first time. The
// program examples/client stores the key in a file, and is killed in between.
func ExampleWithKey() {
	provider := newProvider()
	defer provider.Close()
	client := &http.Client{Transport: &idempotency.Transport{Hosts: []string{"127.0.0.1"}}}

	orders := map[string]string{} // stands for a table: the key of each order
	if _, known := orders["order-1"]; !known {
		orders["order-1"] = "2f1c9d0e-58f4-4d3c-9f0e-7f6f0a3f6a11" // uuid.NewString()
	}

	for _, run := range []string{"first run", "after a restart"} {
		ctx := idempotency.WithKey(context.Background(), orders["order-1"])
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL+"/payments", strings.NewReader("4200"))
		if err != nil {
			log.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Println(run, resp.Status, resp.Header["Idempotent-Replayed"])
	}
	fmt.Println("charges:", provider.charges)
	// Output:
	// first run 201 Created []
	// after a restart 201 Created [true]
	// charges: 1
}

// provider is a payment provider that counts its charges.
type provider struct {
	*httptest.Server
	charges     int
	loseAnswers int
}

func newProvider() *provider {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	p := new(provider)
	charge := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	}))
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.loseAnswers > 0 {
			p.loseAnswers--
			charge.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		charge.ServeHTTP(w, r)
	}))
	return p
}
