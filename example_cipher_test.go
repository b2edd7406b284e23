package idempotency_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// aead is a Cipher on an AEAD of the standard library. A service that has a key management service calls it here.
type aead struct{ cipher.AEAD }

func (a aead) Encrypt(_ context.Context, plain, aad []byte) ([]byte, error) {
	return a.Seal(nil, nil, plain, aad), nil
}

func (a aead) Decrypt(_ context.Context, sealed, aad []byte) ([]byte, error) {
	return a.Open(nil, nil, sealed, aad)
}

// The answers in the inner store are encrypted by a Cipher. Only the store that Seal returns can read them.
func ExampleCipher() {
	block, _ := aes.NewCipher(bytes.Repeat([]byte("6"), 32)) // random, and kept as a secret
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		log.Fatal(err)
	}
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	sealed, err := idempotency.Seal(inner, idempotency.SealOptions{Keys: []idempotency.SealKey{
		{ID: "2026", Secret: bytes.Repeat([]byte("7"), 32), Cipher: aead{gcm}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	idem, err := idempotency.New(sealed, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/keys", nil)
	r.Header.Set("Idempotency-Key", "1")
	idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "sk_live_4711")
	})).ServeHTTP(httptest.NewRecorder(), r)

	listing, err := inner.List(context.Background(), idempotency.ListRequest{})
	if err != nil {
		log.Fatal(err)
	}
	key := listing.Entries[0].Key
	stored, err := inner.Inspect(context.Background(), key)
	fmt.Println("in the clear:", bytes.Contains(stored.Response.Body, []byte("sk_live")), err)
	opened, err := sealed.(idempotency.Inspector).Inspect(context.Background(), key)
	fmt.Printf("opened: %s %v\n", opened.Response.Body, err)
	// Output:
	// in the clear: false <nil>
	// opened: sk_live_4711 <nil>
}
