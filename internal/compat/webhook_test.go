package compat_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	stripe "github.com/stripe/stripe-go/v83/webhook"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/webhook"
)

// What Stripe's library signs is accepted if it accepts it, too, and runs once for each event.
func TestStripeSigns(t *testing.T) {
	t.Parallel()
	const old, secret = "whsec_old", "whsec_new"
	runs := 0
	hooks, err := webhook.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), webhook.Stripe(old, secret), idempotency.Options{})
	require.NoError(t, err)
	endpoint := hooks.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs++ }))
	event := []byte(`{"id":"evt_test_webhook","object":"event"}`)
	for _, test := range []struct {
		delivery stripe.UnsignedPayload
		status   int
	}{
		{stripe.UnsignedPayload{Payload: event, Secret: old}, 200},
		{stripe.UnsignedPayload{Payload: event, Secret: secret}, 200},
		{stripe.UnsignedPayload{Payload: event, Secret: secret, Timestamp: time.Now().Add(-4 * time.Minute)}, 200},
		{stripe.UnsignedPayload{Payload: event, Secret: secret, Timestamp: time.Now().Add(-6 * time.Minute)}, 401},
		{stripe.UnsignedPayload{Payload: event, Secret: secret, Scheme: "v0"}, 401},
		{stripe.UnsignedPayload{Payload: event, Secret: "whsec_other"}, 401},
	} {
		signed := stripe.GenerateTestSignedPayload(&test.delivery)
		r := httptest.NewRequest("POST", "/webhooks/stripe", strings.NewReader(string(signed.Payload)))
		r.Header.Set("Stripe-Signature", signed.Header)
		w := httptest.NewRecorder()
		endpoint.ServeHTTP(w, r)
		require.Equal(t, test.status, w.Code, signed.Header)
		valid := stripe.ValidatePayload(signed.Payload, signed.Header, old) == nil ||
			stripe.ValidatePayload(signed.Payload, signed.Header, secret) == nil
		require.Equal(t, valid, test.status == 200)
	}
	require.Equal(t, 1, runs)
}
