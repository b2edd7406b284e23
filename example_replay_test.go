package idempotency_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// Rights may change while an answer is in the store. A user whose right was withdrawn does not get the answer again,
// and the handler does not run either.
func ExampleOptions_replay() {
	mayReadKeys := map[string]bool{"alice": true}
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	opts := idempotency.Options{
		Replay: func(r *http.Request, _ *idempotency.Response) error {
			if !mayReadKeys[r.Header.Get("X-User")] {
				return errors.New("may not read API keys any more")
			}
			return nil
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, opts)
	if err != nil {
		panic(err)
	}
	create := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "the new API key")
	}))
	send := func() {
		r := httptest.NewRequest("POST", "/keys", nil)
		r.Header.Set("X-User", "alice")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		create.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body.String() == "the new API key")
	}
	send()
	send()
	mayReadKeys["alice"] = false
	send()
	// Output:
	// 200 true
	// 200 true
	// 403 false
}
