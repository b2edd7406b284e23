package sqlitestore_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// After a restart, a service still has the answers from before.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "idempotency.db")
	for range 2 {
		serveOnce(path)
	}
	// Output:
	// charging the card
	// 201 charged, replayed: false
	// 201 charged, replayed: true
}

// serveOnce opens the store, serves one request, and closes the store.
func serveOnce(path string) {
	store, err := sqlitestore.Open(context.Background(), path, sqlitestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	user := func(*http.Request) (string, error) { return "alice", nil }
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("charging the card")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "charged")
	}))
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Printf("%d %s, replayed: %t\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed") == "true")
}
