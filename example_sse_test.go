package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// writeStory sends its answer piece by piece. If the client leaves, it says that the half is no result.
func writeStory(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	for chapter := 1; chapter <= 3; chapter++ {
		if r.Context().Err() != nil {
			idempotency.Decide(r.Context(), idempotency.Unknown)
			return
		}
		fmt.Fprintf(w, "data: chapter %d\n\n", chapter)
		_ = rc.Flush() // the context ends if the client has left
	}
}

// The first client sees each event when it is written. A retry gets all of them at once.
func ExampleOptions_stream() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Stream: true})
	if err != nil {
		panic(err)
	}
	service := httptest.NewServer(idem.Handler(http.HandlerFunc(writeStory)))
	defer service.Close()
	for range 2 {
		r, err := http.NewRequest("POST", service.URL+"/stories", nil)
		if err != nil {
			panic(err)
		}
		r.Header.Set("Idempotency-Key", "1")
		resp, err := service.Client().Do(r)
		if err != nil {
			panic(err)
		}
		events, err := readAllOf(resp)
		fmt.Printf("%q %v %q\n", events, err, resp.Header.Get("Idempotent-Replayed"))
	}
	// Output:
	// "data: chapter 1\n\ndata: chapter 2\n\ndata: chapter 3\n\n" <nil> ""
	// "data: chapter 1\n\ndata: chapter 2\n\ndata: chapter 3\n\n" <nil> "true"
}
