package idempotency_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// A Key does not print what may be personal. Its digest is what stores use as their key.
func ExampleKey() {
	key := idempotency.Key{User: "alice@example.com", Endpoint: "POST /payments", ID: "order-1"}
	fmt.Println(strings.Contains(fmt.Sprintf("%+v", key), "alice"))
	other := key
	other.User = "bob@example.com"
	fmt.Println(key.Digest() == other.Digest())
	// Output:
	// false
	// false
}

// A store keeps a long part of a key in a shortened form. Bounded returns the key as the store has it.
func ExampleKey_Bounded() {
	key := idempotency.Key{User: "alice", Endpoint: "POST /" + strings.Repeat("a", 300), ID: "order-1"}
	bounded := key.Bounded()
	fmt.Println(len(key.Endpoint), len(bounded.Endpoint), bounded.ID)
	// Output: 306 257 order-1
}

// A service that wants UUIDs as keys sets ValidateUUID as Options.ValidateKey.
func ExampleValidateUUID() {
	fmt.Println(idempotency.ValidateUUID("5f3a1c52-6ed1-4f0c-b7f6-1f8de5f9ca12"))
	fmt.Println(idempotency.ValidateUUID("order-1"))
	// Output:
	// <nil>
	// a UUID has 36 characters, not 7
}

// ValidateKey refuses keys that the service does not want. The client sees the text of the error.
func ExampleOptions_validateKey() {
	opts := idempotency.Options{
		ValidateKey: func(id string) error {
			if !strings.HasPrefix(id, "order-") {
				return errors.New("a key begins with order-")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
			http.Error(w, e.Detail, e.Status)
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "1")
	w := httptest.NewRecorder()
	idem.Handler(http.HandlerFunc(createPayment)).ServeHTTP(w, r)
	fmt.Println(w.Code, strings.Contains(w.Body.String(), "Reason: a key begins with order-."))
	// Output: 400 true
}

// Every attempt at the operation sends the same key to another system. Each call that the handler makes has a name.
func ExampleOperation_DownstreamKey() {
	op := idempotency.Operation{ID: uuid.MustParse("8f0f4d6e-9f3c-4b57-9b8a-0c7b8d0d6c11"), Attempt: 2}
	fmt.Println(op.DownstreamKey("charge"))
	fmt.Println(op.DownstreamKey("mail"))
	// Output:
	// 3d8cefeb-f384-53fe-a710-ac3811c1bede
	// 762c31e5-02ce-52da-9c8f-d53a78b6c910
}
