package idempotency_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// A client that got no answer does not know whether the request was carried out. The error has the key, with which the
// request is sent again later, by WithKey.
func ExampleTransportError() {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // no answer
	}))
	defer server.Close()
	target, err := url.Parse(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &idempotency.Transport{
		Hosts:       []string{target.Host},
		MaxAttempts: 3,
		MinDelay:    time.Millisecond,
	}}
	_, err = client.Post(server.URL, "text/plain", strings.NewReader("4200"))
	if failure, ok := errors.AsType[*idempotency.TransportError](err); ok {
		fmt.Println("attempts:", failure.Attempts)
		fmt.Println("has a key:", failure.Key != "")
	}
	// Output:
	// attempts: 3
	// has a key: true
}
