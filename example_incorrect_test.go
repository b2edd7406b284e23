package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// The mistake: the middleware stands outside of authentication, and believes the name that a request claims. Somebody
// who knows or guesses a key then gets the answer to another user's request, without a password. The right way is
// authenticate(idem.Handler(handler)), with a UserFunc that returns the account that authentication has let in.
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
