package seal_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// Sealing begins in a store that has answers in the clear, and then its key is rotated. Each step is a new version of
// the same service, with the same store.
func ExampleNew() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or one that outlives a version
	pay := func(version string, opts seal.Options, key string) {
		sealed, err := seal.New(store, opts)
		if err != nil {
			panic(err)
		}
		idem, err := idempotency.New(sealed, idempotency.SingleUser, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			panic(err)
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", key)
		idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "paid in "+version)
		})).ServeHTTP(w, r)
		answer := w.Body.String()
		if w.Code != http.StatusOK {
			answer = http.StatusText(w.Code)
		}
		fmt.Printf("%s, order %s: %s\n", version, key, answer)
	}
	type keys = []seal.Key
	key2026 := seal.Key{ID: "2026", Secret: bytes.Repeat([]byte("6"), 32)} // random, and kept as a secret
	key2027 := seal.Key{ID: "2027", Secret: bytes.Repeat([]byte("7"), 32)}

	// The first version opens what is sealed, for the time when the second one runs beside it.
	version1 := seal.Options{Keys: keys{key2026}, OpenOnly: true}
	version2 := seal.Options{Keys: keys{key2026}, AllowClear: true}
	pay("version 1", version1, "a")
	pay("version 2", version2, "a")
	pay("version 2", version2, "b")
	pay("version 1", version1, "b")

	// A TTL later, there are no answers in the clear any more. A new key is made known before it seals.
	version3 := seal.Options{Keys: keys{key2026, key2027}}
	version4 := seal.Options{Keys: keys{key2027, key2026}}
	pay("version 3", version3, "a")
	pay("version 4", version4, "b")
	pay("version 4", version4, "c")
	pay("version 3", version3, "c")

	// A TTL later, the old key can go.
	version5 := seal.Options{Keys: keys{key2027}}
	pay("version 5", version5, "b")
	pay("version 5", version5, "c")

	// Output:
	// version 1, order a: paid in version 1
	// version 2, order a: paid in version 1
	// version 2, order b: paid in version 2
	// version 1, order b: paid in version 2
	// version 3, order a: Service Unavailable
	// version 4, order b: paid in version 2
	// version 4, order c: paid in version 4
	// version 3, order c: paid in version 4
	// version 5, order b: Service Unavailable
	// version 5, order c: paid in version 4
}

// aead is a Cipher on an AEAD of the standard library. A service that has a key management service calls it here.
type aead struct{ cipher.AEAD }

func (a aead) Encrypt(_ context.Context, plain, aad []byte) ([]byte, error) {
	return a.Seal(nil, nil, plain, aad), nil
}

func (a aead) Decrypt(_ context.Context, sealed, aad []byte) ([]byte, error) {
	return a.Open(nil, nil, sealed, aad)
}

// The answers in the inner store are encrypted by a Cipher. Only the sealed store can read them.
func ExampleCipher() {
	block, _ := aes.NewCipher(bytes.Repeat([]byte("6"), 32)) // random, and kept as a secret
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		log.Fatal(err)
	}
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	sealed, err := seal.New(inner, seal.Options{Keys: []seal.Key{
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
	opened, err := sealed.Inspect(context.Background(), key)
	fmt.Printf("opened: %s %v\n", opened.Response.Body, err)
	// Output:
	// in the clear: false <nil>
	// opened: sk_live_4711 <nil>
}
