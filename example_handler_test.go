package idempotency_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// How a service tests that a handler is guarded. Each test has a store of its own, so no test sees keys of another.
func TestPaymentIsChargedOnce(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	require.NoError(t, err)
	charges := 0
	payments := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "a receipt")
	}))
	send := func(key, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r)
		return w
	}

	first, again := send("k1", "amount=4200"), send("k1", "amount=4200")
	require.Equal(t, http.StatusCreated, first.Code)
	require.Equal(t, first.Body.String(), again.Body.String())
	require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	require.Equal(t, 1, charges)

	require.Equal(t, http.StatusConflict, send("k1", "amount=9900").Code, "the key of another payment")
	require.Equal(t, http.StatusBadRequest, send("", "amount=4200").Code, "no key")
	require.Equal(t, 1, charges)
}
