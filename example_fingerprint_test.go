package idempotency_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// Two ways to write one JSON document have the same fingerprint.
func ExampleFingerprintJSON() {
	var fingerprints []idempotency.Fingerprint
	for _, body := range []string{`{"amount":4200,"currency":"EUR"}`, `{ "currency": "EUR", "amount": 4200 }`} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Content-Type", "application/json")
		fp, err := idempotency.FingerprintJSON(r, []byte(body))
		if err != nil {
			log.Fatal(err)
		}
		fingerprints = append(fingerprints, fp)
	}
	fmt.Println(fingerprints[0] == fingerprints[1])
	// Output: true
}

// The default compares the bytes of the body, the query and the media type.
func ExampleFingerprintRaw() {
	r := httptest.NewRequest("POST", "/payments", nil)
	compact, _ := idempotency.FingerprintRaw(r, []byte(`{"amount":4200}`))
	spaced, _ := idempotency.FingerprintRaw(r, []byte(`{"amount": 4200}`))
	fmt.Println(compact == spaced)
	// Output: false
}

// A client that writes the time of sending into its body sends another body each time. The fingerprint leaves it out.
func ExampleFingerprintFunc() {
	type payment struct {
		Amount int
		SentAt string
	}
	withoutTime := func(_ *http.Request, body []byte) (idempotency.Fingerprint, error) {
		var p payment
		if err := json.Unmarshal(body, &p); err != nil {
			return idempotency.Fingerprint{}, err // the client gets 400, body-invalid
		}
		return sha256.Sum256(fmt.Append(nil, p.Amount)), nil
	}
	opts := idempotency.Options{Fingerprint: withoutTime}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for _, body := range []string{
		`{"Amount": 4200, "SentAt": "10:00"}`,
		`{"Amount": 4200, "SentAt": "10:01"}`,
		`{"Amount": 9900, "SentAt": "10:02"}`,
		`4200`,
	} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 200
	// 409
	// 400
}

// The field Stripe-Account selects for whom a request acts. A key that comes back for another account is refused.
func ExampleOptions_fingerprintHeaders() {
	opts := idempotency.Options{FingerprintHeaders: []string{"Stripe-Account"}}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for _, account := range []string{"acct_1", "acct_1", "acct_2"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		r.Header.Set("Stripe-Account", account)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(account, w.Code)
	}
	// Output:
	// acct_1 200
	// acct_1 200
	// acct_2 409
}
