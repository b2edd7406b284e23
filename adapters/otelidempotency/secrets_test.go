package otelidempotency_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Metrics and traces of all outcomes contain neither the user nor the key nor the text of an error.
func TestNothingSecretIsTold(t *testing.T) {
	t.Parallel()
	for _, build := range []stack{wrapWithoutOtelhttp, wrapOtelhttpOutside, wrapOtelhttpInside} {
		s := newService(t, build, charge, idempotency.Options{StoreTimeout: 10 * time.Millisecond, FailOpen: true})
		require.Equal(t, 201, s.send(t, key, "4200"))
		require.Equal(t, 201, s.send(t, key, "4200"))
		require.Equal(t, 409, s.send(t, key, "9900"))
		require.Equal(t, 400, s.send(t, key+" is invalid", "4200"))
		failWith(&s.store.completeErr, errDown)
		require.Equal(t, 201, s.send(t, key+"-unrecorded", "4200"))
		failWith(&s.store.completeErr, idempotency.ErrClaimLost)
		require.Equal(t, http.StatusConflict, s.send(t, key+"-lost", "4200"))
		failWith(&s.store.beginErr, errDown)
		require.Equal(t, 201, s.send(t, key+"-unprotected", "4200"))
		s.store.completeErr.Store(nil)
		require.NoError(t, s.guard.Shutdown(t.Context()))

		var all bytes.Buffer
		require.NoError(t, json.NewEncoder(&all).Encode(s.collectMetrics(t)))
		for _, span := range s.spanExporter.GetSpans() {
			require.NoError(t, json.NewEncoder(&all).Encode(map[string]any{
				"name": span.Name, "attributes": span.Attributes, "events": span.Events, "links": span.Links, "status": span.Status,
			}))
		}
		require.Contains(t, all.String(), "unprotected")
		for _, secret := range []string{user, key, "quotes"} {
			require.NotContains(t, all.String(), secret)
		}
	}
}
