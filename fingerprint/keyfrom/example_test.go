package keyfrom_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// Clients have the key in their JSON, and write the JSON anew for each attempt.
func Example() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := keyfrom.New(store, idempotency.SingleUser, idempotency.Options{Required: true}, keyfrom.JSON("/idempotency_key"))
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(charge))
	const media = "application/json"
	send(payments, "/payments", media, `{"idempotency_key":"8e03978e","amount":4200}`)
	send(payments, "/payments", media, `{ "amount": 4200, "idempotency_key": "8e03978e" }`)
	send(payments, "/payments", media, `{"idempotency_key":"8e03978e","amount":9900}`)
	send(payments, "/payments", media, `{"amount":9900}`)
	// Output:
	// 201
	// 201 replayed
	// 409 key-reused
	// 400 key-missing
}

// A page has the key in a hidden field, and a partner has the key in the address.
func ExampleForm() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := keyfrom.New(store, idempotency.SingleUser, idempotency.Options{Required: true},
		keyfrom.Form("idempotency-key"), keyfrom.Query("key"))
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(charge))
	const media = "application/x-www-form-urlencoded"
	send(payments, "/payments", media, "amount=4200&idempotency-key=8e03978e")
	send(payments, "/payments", media, "amount=4200&idempotency-key=8e03978e")
	send(payments, "/payments?key=8e03978e", media, "amount=4200")
	// Output:
	// 201
	// 201 replayed
	// 201 replayed
}

// Old clients send no key, and their users press twice. For two minutes, a cart can be paid once with a card.
func ExampleContent() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	same := fingerprint.Must(fingerprint.JSONOnly("/cart", "/card"))
	idem, err := keyfrom.New(store, idempotency.SingleUser, idempotency.Options{Wait: 10 * time.Second},
		keyfrom.JSON("/key"), keyfrom.Content(2*time.Minute, same))
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(charge))
	const media = "application/json"
	send(payments, "/payments", media, `{"cart":7,"card":"visa","pressed":"10:05:01"}`)
	send(payments, "/payments", media, `{"cart":7,"card":"visa","pressed":"10:05:02"}`)
	send(payments, "/payments", media, `{"cart":7,"card":"visa","key":"once-more"}`) // wants to pay again, and says so
	// Output:
	// 201
	// 201 replayed
	// 201
}

// A function finds the key in a format that only the service knows.
func ExampleBody() {
	find := func(_ *http.Request, body []byte) (string, error) {
		key, _, _ := strings.Cut(string(body), ";")
		return key, nil
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := keyfrom.New(store, idempotency.SingleUser, idempotency.Options{Required: true}, keyfrom.Body(find))
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(charge))
	send(payments, "/payments", "text/csv", "8e03978e;4200")
	send(payments, "/payments", "text/csv", "8e03978e;4200")
	// Output:
	// 201
	// 201 replayed
}

func charge(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

// send prints the answer to a request: its status, and the code of a refusal or the mark of a replay.
func send(service http.Handler, target, media, body string) {
	r := httptest.NewRequest("POST", target, strings.NewReader(body))
	r.Header.Set("Content-Type", media)
	w := httptest.NewRecorder()
	service.ServeHTTP(w, r)
	line := fmt.Sprint(w.Code)
	if _, code, isRefusal := strings.Cut(strings.Split(w.Body.String(), `",`)[0], "#"); isRefusal {
		line += " " + code
	}
	if w.Header().Get("Idempotent-Replayed") == "true" {
		line += " replayed"
	}
	fmt.Println(line)
}
