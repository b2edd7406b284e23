package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
)

// OrderTwice orders so many pieces from handler twice, with one key, and prints the answers. It ends the program if they
// are not one answer and its replay, with the status that is expected.
func OrderTwice(handler http.Handler, pieces, status int) {
	key := rand.Text()
	first, retry := order(handler, key, pieces), order(handler, key, pieces)
	fmt.Printf("%d pieces: %d %s\n", pieces, first.Code, strings.TrimSpace(first.Body.String()))
	expect(first.Code == status, "the answer is "+strconv.Itoa(status))
	replayed := retry.Header().Get("Idempotent-Replayed") == "true"
	expect(replayed && retry.Code == status && retry.Body.String() == first.Body.String(), "a retry gets the same answer")
}

// Order orders so many pieces from handler without a key, and prints the answer. It ends the program if the status is
// another one.
func Order(handler http.Handler, pieces, status int) {
	answer := order(handler, "", pieces)
	fmt.Printf("%d pieces, no key: %d %s\n", pieces, answer.Code, strings.TrimSpace(answer.Body.String()))
	expect(answer.Code == status, "the answer is "+strconv.Itoa(status))
}

func order(handler http.Handler, key string, pieces int) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(strconv.Itoa(pieces)))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// ErrTooFew is the error of an order of more pieces than there are.
var ErrTooFew = errors.New("there are not so many")

// HandleOrders returns a handler of orders. Function book books an order of so many pieces, and the answer is made from its
// result.
func HandleOrders[T any](book func(ctx context.Context, pieces int) (T, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pieces, err := Pieces(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		order, err := book(r.Context(), pieces)
		switch {
		case errors.Is(err, ErrTooFew):
			http.Error(w, err.Error(), http.StatusUnprocessableEntity) // stored, rolled back
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable) // not stored
		default:
			w.WriteHeader(http.StatusCreated) // stored, committed
			fmt.Fprintf(w, "order %+v", order)
		}
	})
}

// Pieces returns how many pieces a request orders.
func Pieces(r *http.Request) (pieces int, err error) {
	_, err = fmt.Fscan(r.Body, &pieces)
	return pieces, err
}
