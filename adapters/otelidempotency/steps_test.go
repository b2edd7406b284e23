package otelidempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
	"github.com/idempotency-go/idempotency/step"
)

// newShippingHandler returns a handler with the steps charge and ship. The step ship fails in the first attempts, as many
// as failures says.
func newShippingHandler(failures int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, err := step.Do(r.Context(), "charge", func(context.Context) (string, error) { return "ch_secret", nil })
		if err == nil {
			_, err = step.Do(r.Context(), "ship", func(context.Context) (string, error) {
				if failures--; failures >= 0 {
					return "", fmt.Errorf("%w; it quotes %s", errDown, user)
				}
				return "sh_secret", nil
			})
		}
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		charge(w, r)
	}
}

// Each step has a span inside the span of the handler. The span says whether an earlier attempt has executed the step.
func TestSpansOfSteps(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		build              stack
		requestSpanIndexes []int // of the spans around steps
		stepSpanIndexes    []int
	}{
		"otelhttp outside": {wrapOtelhttpOutside, []int{0, 3}, []int{1, 2, 4, 5}},
		"otelhttp inside":  {wrapOtelhttpInside, []int{1, 5}, []int{2, 3, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, row.build, newShippingHandler(1), idempotency.Options{})
			require.Equal(t, 503, s.send(t, key, "4200"))
			require.Equal(t, 201, s.send(t, key, "4200"))
			spans := s.awaitSpans(t, len(row.requestSpanIndexes)+len(row.stepSpanIndexes)+row.requestSpanIndexes[0]*2)
			operation := s.events.all()[0].Operation.String()
			for i, want := range []struct{ stepName, isFound, attempt string }{
				{"charge", "false", "1"}, {"ship", "false", "1"}, {"charge", "true", "2"}, {"ship", "false", "2"},
			} {
				span, handler := spans[row.stepSpanIndexes[i]], spans[row.requestSpanIndexes[i/2]]
				require.Equal(t, "step "+want.stepName, span.Name)
				require.Equal(t, trace.SpanKindInternal, span.SpanKind)
				require.Equal(t, spanID(handler), span.Parent.TraceID().String()+" "+span.Parent.SpanID().String())
				require.Equal(t, map[string]string{
					"step.name": want.stepName, "step.found": want.isFound, "operation.id": operation, "attempt": want.attempt,
				}, ownAttributes(span))
				if i == 1 {
					require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "_OTHER"}, span.Status)
				} else {
					require.Equal(t, sdktrace.Status{Code: codes.Unset}, span.Status)
				}
				said, err := json.Marshal([]any{span.Name, span.Attributes, span.Events, span.Status})
				require.NoError(t, err)
				for _, secret := range []string{user, key, "quotes", "secret"} {
					require.NotContains(t, string(said), secret)
				}
			}
		})
	}
}

// Work without a Handler gets spans for its steps by WithTracer. The context of a step contains the span of the step.
func TestSpansOfStepsInARunner(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.newTelemetry(t, otelidempotency.Options{})
	runner, err := idempotency.NewRunner(newFaultyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	var within trace.SpanContext
	_, _, err = runner.Do(t.Context(), idempotency.Key{ID: key}, nil, func(ctx context.Context) (idempotency.Response, error) {
		_, err := step.Do(step.WithTracer(ctx, telemetry.Step), "charge", func(ctx context.Context) (int, error) {
			within = trace.SpanContextFromContext(ctx)
			return 0, nil
		})
		return idempotency.Response{}, err
	})
	require.NoError(t, err)
	span := s.spanExporter.GetSpans()[0]
	require.Equal(t, "step charge", span.Name)
	require.Equal(t, span.SpanContext, within)
	require.False(t, span.Parent.IsValid(), "no span surrounds the step")
}

// Steps have no spans if the request is not sampled, or if the service has no traces.
func TestStepsThatAreNotTraced(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapOtelhttpOutside, newShippingHandler(0), idempotency.Options{})
	s.tracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()), sdktrace.WithSyncer(s.spanExporter))
	s.server.Config.Handler = wrapOtelhttpOutside(s, newShippingHandler(0))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Empty(t, s.spanExporter.GetSpans())

	off := newSDK(t)
	ctx, end := off.newUntracedTelemetry(t, nil).Step(t.Context(), "charge")
	require.Equal(t, t.Context(), ctx)
	end(false, errDown)
	require.Empty(t, off.spanExporter.GetSpans())
}

// The span of a failed step has the type of the error, and not the text.
func TestErrorTypesOfSteps(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.newTelemetry(t, otelidempotency.Options{})
	for err, want := range map[error]string{
		errDown: "_OTHER", context.DeadlineExceeded: "timeout", idempotency.ErrRecordInvalid: "record_invalid",
		fmt.Errorf("%w: charge", step.ErrUnknown): "outcome_unknown", step.ErrResult: "result_unusable",
		errors.Join(errDown, idempotency.ErrClaimLost): "claim_lost", idempotency.ErrUserQuota: "user_quota",
	} {
		s.spanExporter.Reset()
		_, end := telemetry.Step(t.Context(), "charge")
		end(true, err)
		span := s.spanExporter.GetSpans()[0]
		require.Equal(t, want, attributeValue(span, "error.type"))
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: want}, span.Status)
	}
}

// attributeValue returns the value of the attribute of span.
func attributeValue(span tracetest.SpanStub, name string) string {
	for _, kv := range span.Attributes {
		if string(kv.Key) == name {
			return kv.Value.String()
		}
	}
	return ""
}

// The server removes the files of a multipart form, although the handler has parsed the form in a copy of the request.
func TestFormOfATracedHandler(t *testing.T) {
	t.Parallel()
	var file *os.File
	s := newService(t, wrapWithoutOtelhttp, func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, r.ParseMultipartForm(1))
		upload, err := r.MultipartForm.File["upload"][0].Open()
		require.NoError(t, err)
		defer upload.Close()
		file = upload.(*os.File)
		charge(w, r)
	}, idempotency.Options{})
	body := "--b\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"f\"\r\n\r\n" +
		strings.Repeat("x", 100) + "\r\n--b--\r\n"
	r, err := http.NewRequest(http.MethodPost, s.server.URL+"/payments", strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	resp, err := s.server.Client().Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 201, resp.StatusCode)
	s.server.Close()
	_, err = os.Stat(file.Name())
	require.ErrorIs(t, err, os.ErrNotExist)
}
