package idempotency_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/idempotency-go/idempotency"
)

// Fields keep a header as text: one line for each value.
func ExampleNewFields() {
	fields := idempotency.NewFields(http.Header{
		"Content-Type": {"application/json"},
		"Link":         {"</a>", "</b>"},
	})
	fmt.Print(fields)
	fmt.Println(fields.Get("content-type"))
	// Output:
	// Content-Type: application/json
	// Link: </a>
	// Link: </b>
	// application/json
}

// A store reads fields that it has kept.
func ExampleParseFields() {
	fields, err := idempotency.ParseFields("Content-Type: text/plain\n")
	fmt.Println(fields.Header(), err)
	_, err = idempotency.ParseFields("no newline")
	fmt.Println(err)
	// Output:
	// map[Content-Type:[text/plain]] <nil>
	// idempotency: stored record not readable: lines of the header
}

// A store of your own keeps an answer as bytes.
func ExampleResponse() {
	answer := idempotency.Response{
		Status: http.StatusCreated,
		Header: idempotency.NewFields(http.Header{"Location": {"/payments/1"}}),
		Body:   []byte("paid"),
	}
	stored, err := answer.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	var read idempotency.Response
	if err := read.UnmarshalBinary(stored); err != nil {
		log.Fatal(err) // wraps ErrRecordInvalid
	}
	fmt.Printf("%d %s %s\n", read.Status, read.Header.Get("Location"), read.Body)
	// Output: 201 /payments/1 paid
}
