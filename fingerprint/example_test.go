package fingerprint_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// Two ways to write one JSON document have the same fingerprint.
func ExampleJSON() {
	var fingerprints []idempotency.Fingerprint
	for _, body := range []string{`{"amount":4200,"currency":"EUR"}`, `{ "currency": "EUR", "amount": 4200 }`} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Content-Type", "application/json")
		fp, err := fingerprint.JSON(r, []byte(body))
		if err != nil {
			log.Fatal(err)
		}
		fingerprints = append(fingerprints, fp)
	}
	fmt.Println(fingerprints[0] == fingerprints[1])
	// Output: true
}

// A form with a file has another boundary each time that a client builds it. Multipart leaves it out.
func ExampleMultipart() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Fingerprint: fingerprint.Multipart, MaxBody: 20 << 20, MaxBodies: 400 << 20})
	if err != nil {
		panic(err)
	}
	documents := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, header, err := r.FormFile("file")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer file.Close()
		fmt.Fprint(w, header.Filename, " ", header.Size)
	}))
	for range 2 {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		part, err := form.CreateFormFile("file", "scan.png")
		if err != nil {
			panic(err)
		}
		fmt.Fprint(part, "a page")
		form.Close()
		r := httptest.NewRequest("POST", "/documents", &body)
		r.Header.Set("Content-Type", form.FormDataContentType())
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		documents.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// 200 scan.png 6 []
	// 200 scan.png 6 [true]
}

// A payment is the same if amount, currency and articles are. Whatever else the client sends may change.
func ExampleJSONOnly() {
	same, err := fingerprint.JSONOnly("/amount", "/currency", "/items/*/sku")
	if err != nil {
		panic(err)
	}
	compare(same, "application/json",
		`{"amount":4200,"currency":"EUR","items":[{"sku":"a"}],"sentAt":"10:05"}`,
		`{"amount":4200,"currency":"EUR","items":[{"sku":"a","gift":true}],"sentAt":"10:06"}`,
		`{"amount":4200,"currency":"EUR","items":[{"sku":"b"}],"sentAt":"10:06"}`)
	// Output:
	// same request: true
	// same request: false
}

// The client writes into the body when it sends it. All else counts, also what it will send next year.
func ExampleJSONWithout() {
	same := fingerprint.Must(fingerprint.JSONWithout("/sentAt", "/device"))
	compare(same, "application/json", `{"amount":4200,"sentAt":"10:05"}`,
		`{"amount":4200,"sentAt":"10:06","device":"phone"}`, `{"amount":4200,"sentAt":"10:06","tip":100}`)
	// Output:
	// same request: true
	// same request: false
}

// Two fields of the form say what is paid.
func ExampleFormOnly() {
	same := fingerprint.Must(fingerprint.FormOnly("amount", "currency"))
	compare(same, "application/x-www-form-urlencoded", "amount=4200&currency=EUR&csrf=1",
		"currency=EUR&amount=4200&csrf=2", "currency=EUR&amount=4200&amount=1")
	// Output:
	// same request: true
	// same request: false
}

// A form has a new token each time that it is shown.
func ExampleFormWithout() {
	same := fingerprint.Must(fingerprint.FormWithout("csrf"))
	compare(same, "application/x-www-form-urlencoded", "amount=4200&csrf=1", "amount=4200&csrf=2", "amount=42%30%30&tip=1")
	// Output:
	// same request: true
	// same request: false
}

// The key alone tells requests apart.
func ExampleNone() {
	compare(fingerprint.None, "application/json", `{"event":1}`, `{"event": 1}`, `{"event":2}`)
	// Output:
	// same request: true
	// same request: true
}

// The owner of a service can find out what differs in a request that is refused because its key was reused: in what an
// Observer makes of it, and in the console, at the operation.
func ExampleParts() {
	parts, err := fingerprint.NewParts(fingerprint.JSON, "/amount", "/currency")
	if err != nil {
		panic(err)
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	admin, err := console.New(store, console.Options{
		Operator:    func(*http.Request) (string, error) { return "bob", nil }, // never so: see the example of package console
		Differences: parts.Differences,
	})
	if err != nil {
		panic(err)
	}
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Fingerprint: parts.Fingerprint,
		Observer: func(ctx context.Context, e idempotency.Event) {
			admin.Observe(ctx, e)
			if e.Outcome == idempotency.OutcomeKeyReused {
				fmt.Printf("key reused, differs in: %s\n", strings.Join(parts.Differences(e), ", "))
			}
		},
	})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, body := range []string{`{"amount":4200,"currency":"EUR"}`, `{"amount":4300,"currency":"EUR","tip":true}`} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// key reused, differs in: the rest of the body, /amount
	// 409
}

// compare prints whether each other body makes the same request as the first one.
func compare(f idempotency.FingerprintFunc, media, first string, others ...string) {
	of := func(body string) idempotency.Fingerprint {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Content-Type", media)
		fp, err := f(r, []byte(body))
		if err != nil {
			panic(err)
		}
		return fp
	}
	for _, other := range others {
		fmt.Println("same request:", of(other) == of(first))
	}
}
