package idempotency_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// Sealing begins in a store that has answers in the clear, and then its key is rotated. Each step is a new version of
// the same service, with the same store.
func ExampleSeal() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or one that outlives a version
	pay := func(version string, opts idempotency.SealOptions, key string) {
		sealed, err := idempotency.Seal(store, opts)
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
	type keys = []idempotency.SealKey
	key2026 := idempotency.SealKey{ID: "2026", Secret: bytes.Repeat([]byte("6"), 32)} // random, and kept as a secret
	key2027 := idempotency.SealKey{ID: "2027", Secret: bytes.Repeat([]byte("7"), 32)}

	// The first version opens what is sealed, for the time when the second one runs beside it.
	version1 := idempotency.SealOptions{Keys: keys{key2026}, OpenOnly: true}
	version2 := idempotency.SealOptions{Keys: keys{key2026}, AllowClear: true}
	pay("version 1", version1, "a")
	pay("version 2", version2, "a")
	pay("version 2", version2, "b")
	pay("version 1", version1, "b")

	// A TTL later, there are no answers in the clear any more. A new key is made known before it seals.
	version3 := idempotency.SealOptions{Keys: keys{key2026, key2027}}
	version4 := idempotency.SealOptions{Keys: keys{key2027, key2026}}
	pay("version 3", version3, "a")
	pay("version 4", version4, "b")
	pay("version 4", version4, "c")
	pay("version 3", version3, "c")

	// A TTL later, the old key can go.
	version5 := idempotency.SealOptions{Keys: keys{key2027}}
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
