package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// The classic mistake: the middleware stands outside of authentication, and believes the name that a request claims.
// Whoever knows or guesses a key is then shown the answer to somebody else's request, without any password. The right
// order is authenticate(idem.Handler(handler)), with a UserFunc that asks for whom authentication has let in.
func ExampleMiddleware_Handler_incorrectOutsideAuthentication() {
	claimed := func(r *http.Request) (string, error) {
		name, _, _ := r.BasicAuth() // nobody has checked the password
		return name, nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), claimed, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "card 4242, balance 1000")
	})
	incorrect := idem.Handler(authenticate(handler))

	for _, password := range []string{"secret", "no idea"} {
		r := httptest.NewRequest("POST", "/cards", nil)
		r.SetBasicAuth("alice", password)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 card 4242, balance 1000
	// 200 card 4242, balance 1000
}
