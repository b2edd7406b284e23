package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
)

// A client retries requests to a host that honours the header. All attempts at a request share a key.
func ExampleTransport() {
	provider := newProvider()
	defer provider.Close()
	provider.loseAnswers = 2

	transport := &client.Transport{Hosts: []string{"payments.example.com"}}
	payments := &http.Client{Transport: transport, Timeout: 5 * time.Minute} // for all attempts, and the answer

	transport.Base = provider.Client().Transport // resolves payments.example.com
	resp, err := payments.Post("http://payments.example.com/payments", "text/plain", strings.NewReader("4200"))
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

// A client that may be restarted stores the key with the order before the first request. The program examples/client
// stores the key in a file, and is killed before the answer arrives.
func ExampleWithKey() {
	provider := newProvider()
	defer provider.Close()
	httpClient := &http.Client{Transport: &client.Transport{Hosts: []string{"127.0.0.1"}}}

	orders := map[string]string{} // the key of each order; in a service, a table
	if _, known := orders["order-1"]; !known {
		orders["order-1"] = "2f1c9d0e-58f4-4d3c-9f0e-7f6f0a3f6a11" // uuid.NewString()
	}

	for _, run := range []string{"first run", "after a restart"} {
		ctx := client.WithKey(context.Background(), orders["order-1"])
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL+"/payments", strings.NewReader("4200"))
		if err != nil {
			log.Fatal(err)
		}
		resp, err := httpClient.Do(req)
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

// A client without an answer does not know whether the server has executed the request. The error has the key, so that
// the client can send the request again later, with WithKey.
func ExampleError() {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // so that the client gets no answer
	}))
	defer server.Close()
	target, err := url.Parse(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	httpClient := &http.Client{Transport: &client.Transport{
		Hosts:       []string{target.Host},
		MaxAttempts: 3,
		MinDelay:    time.Millisecond,
	}}
	_, err = httpClient.Post(server.URL, "text/plain", strings.NewReader("4200"))
	if failure, ok := errors.AsType[*client.Error](err); ok {
		fmt.Println("attempts:", failure.Attempts)
		fmt.Println("has a key:", failure.Key != "")
	}
	// Output:
	// attempts: 3
	// has a key: true
}

// A refusal is an answer. Its member "retry" says whether the client may try the operation again, and with which key.
func ExampleTransport_refused() {
	provider := newProvider()
	defer provider.Close()
	payments := &http.Client{Transport: &client.Transport{Hosts: []string{"127.0.0.1"}}}

	for _, amount := range []string{"4200", "9900"} {
		ctx := client.WithKey(context.Background(), "order-1")
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.URL, strings.NewReader(amount))
		if err != nil {
			log.Fatal(err)
		}
		resp, err := payments.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		var problem struct{ Retry string }
		if resp.Header.Get("Content-Type") == "application/problem+json" {
			if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil {
				log.Fatal(err)
			}
		}
		resp.Body.Close()
		fmt.Printf("%d, retry %q\n", resp.StatusCode, problem.Retry)
	}
	// Output:
	// 201, retry ""
	// 409, retry "new-key"
}

// After a refusal such as not-replayable, a client asks what became of its operation. The service here keeps no answers.
func ExampleTransport_AskStatus() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{KeyInfo: idempotency.KeyInfo{StatusURL: "/tokens/status"}})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /tokens/status", idem.Status())
	mux.Handle("POST /tokens", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Tombstone)
		w.WriteHeader(http.StatusCreated)
	})))
	server := httptest.NewServer(mux)
	defer server.Close()

	transport := &client.Transport{Hosts: []string{"127.0.0.1"}}
	ctx := client.WithKey(context.Background(), "token-1")
	for range 2 {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/tokens", nil)
		if err != nil {
			log.Fatal(err)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			log.Fatal(err)
		}
		defer resp.Body.Close()
		fmt.Println(resp.Status)
		if resp.StatusCode == http.StatusConflict {
			status, err := transport.AskStatus(ctx, resp)
			fmt.Println(status.State, status.Status, err)
		}
	}
	// Output:
	// 201 Created
	// 409 Conflict
	// not-kept 201 <nil>
}

// provider is a payment provider that counts its charges.
type provider struct {
	*httptest.Server
	charges     int
	loseAnswers int // how many of the next answers get lost
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
