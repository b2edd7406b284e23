package idempotency_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// An ErrorHandler writes refusals in the form that the API has for its errors. It leaves the others to WriteProblem.
func ExampleOptions_errorHandler() {
	opts := idempotency.Options{
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			if !errors.Is(e, idempotency.ErrKeyReused) {
				idempotency.WriteProblem(w, r, e)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(e.Status)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": e.Code, "retry": string(e.Retry)})
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "paid") }))
	for _, amount := range []string{"42.00", "99.00"} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(amount))
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 paid
	// 409 {"error":"key-reused","retry":"new-key"}
}

// A client sees a refusal as a problem document (RFC 9457).
func ExampleWriteProblem() {
	w := httptest.NewRecorder()
	idempotency.WriteProblem(w, nil, &idempotency.Error{
		Status: http.StatusForbidden,
		Title:  "The account is closed",
		Retry:  idempotency.RetryNever,
	})
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	fmt.Println(w.Body)
	// Output:
	// 403 application/problem+json
	// {"type":"about:blank","title":"The account is closed","status":403,"retry":"never"}
}
