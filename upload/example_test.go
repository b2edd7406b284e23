package upload_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/upload"
)

// The client sends a scan of many pages with its digest. The connection breaks in the middle, so the client sends the
// scan again with the same key. A further request for the answer needs no scan.
func Example() {
	idem, err := upload.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	archive := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body) // to a temporary object
		if err != nil {
			fmt.Printf("dropped after %d bytes: %v\n", n, err)
			http.Error(w, "the scan did not arrive", http.StatusBadRequest)
			return
		}
		fmt.Printf("archived %d bytes\n", n) // now that all of it has arrived as it was sent
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "scan 1")
	}
	handler := idem.Handler(http.MaxBytesHandler(http.HandlerFunc(archive), 1<<30))

	scan := strings.Repeat("a page of the scan\n", 1<<18)
	digest := sha256.Sum256([]byte(scan))
	send := func(body io.Reader) {
		r := httptest.NewRequest("POST", "/scans", body)
		r.Header.Set("Idempotency-Key", "scan-1")
		r.Header.Set("Content-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(digest[:])+":")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header()["Idempotent-Replayed"])
	}
	send(strings.NewReader(scan[:1<<20]))
	send(strings.NewReader(scan))
	send(http.NoBody)
	// Output:
	// dropped after 1048576 bytes: the body differs from its Content-Digest
	// 400 []
	// archived 4980736 bytes
	// 201 []
	// 201 [true]
}
