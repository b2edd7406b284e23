package console_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
)

// The console is on the listener for administration, behind a proxy that has let its people log in. Nobody gets there but
// through the proxy, which removes these fields from what a browser sends, and sets them itself.
func Example() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // that of the service
	admin, err := console.New(store, console.Options{
		Operator: func(r *http.Request) (string, error) {
			if name := r.Header.Get("X-Forwarded-User"); name != "" {
				return name, nil
			}
			return "", errors.New("not logged in")
		},
		Show: func(r *http.Request) bool { return r.Header.Get("X-Forwarded-Groups") == "payments-support" },
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/idempotency/", admin)
	server := &http.Server{Addr: "127.0.0.1:8081", Handler: mux, ReadHeaderTimeout: 10 * time.Second} // server.ListenAndServe()

	r := httptest.NewRequest(http.MethodGet, "/admin/idempotency/", nil)
	w := httptest.NewRecorder()
	server.Handler.ServeHTTP(w, r)
	fmt.Println(w.Code)
	r.Header.Set("X-Forwarded-User", "alice")
	w = httptest.NewRecorder()
	server.Handler.ServeHTTP(w, r)
	page, _ := io.ReadAll(w.Body)
	fmt.Println(w.Code, strings.Contains(string(page), "<h1>Abandoned operations</h1>"))
	// Output:
	// 403
	// 200 true
}
