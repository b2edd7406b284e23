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

// shipping charges in a step, and then ships in another one, which fails for so many attempts.
func shipping(failures int) http.HandlerFunc {
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

// Each step is a span within that of the handler. It says whether an earlier attempt has run the step.
func TestSpansOfSteps(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		build    stack
		requests []int // the spans that steps are within, by their place
		steps    []int
	}{
		"otelhttp outside": {outside, []int{0, 3}, []int{1, 2, 4, 5}},
		"otelhttp inside":  {inside, []int{1, 5}, []int{2, 3, 6, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, row.build, shipping(1), idempotency.Options{})
			require.Equal(t, 503, s.send(t, key, "4200"))
			require.Equal(t, 201, s.send(t, key, "4200"))
			spans := s.spansOf(t, len(row.requests)+len(row.steps)+row.requests[0]*2)
			operation := s.events.all()[0].Operation.String()
			for i, want := range []struct{ step, found, attempt string }{
				{"charge", "false", "1"}, {"ship", "false", "1"}, {"charge", "true", "2"}, {"ship", "false", "2"},
			} {
				span, handler := spans[row.steps[i]], spans[row.requests[i/2]]
				require.Equal(t, "step "+want.step, span.Name)
				require.Equal(t, trace.SpanKindInternal, span.SpanKind)
				require.Equal(t, nameOf(handler), span.Parent.TraceID().String()+" "+span.Parent.SpanID().String())
				require.Equal(t, map[string]string{
					"step.name": want.step, "step.found": want.found, "operation.id": operation, "attempt": want.attempt,
				}, told(span))
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

// Work that has no Handler gets its spans by WithTracer. What runs within a step has the span of the step.
func TestSpansOfStepsInARunner(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.telemetry(t, otelidempotency.Options{})
	runner, err := idempotency.NewRunner(newStore(), idempotency.RunnerOptions{})
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
	span := s.spans.GetSpans()[0]
	require.Equal(t, "step charge", span.Name)
	require.Equal(t, span.SpanContext, within)
	require.False(t, span.Parent.IsValid(), "there is no other span")
}

// Nothing is traced of a request that is not sampled, and nothing where there are no traces at all.
func TestStepsThatAreNotTraced(t *testing.T) {
	t.Parallel()
	s := newService(t, outside, shipping(0), idempotency.Options{})
	s.tracer = sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()), sdktrace.WithSyncer(s.spans))
	s.server.Config.Handler = outside(s, shipping(0))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Empty(t, s.spans.GetSpans())

	off := newSDK(t)
	ctx, end := off.untraced(t, nil).Step(t.Context(), "charge")
	require.Equal(t, t.Context(), ctx)
	end(false, errDown)
	require.Empty(t, off.spans.GetSpans())
}

// The type of an error is told, and not its text.
func TestErrorTypesOfSteps(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.telemetry(t, otelidempotency.Options{})
	for err, want := range map[error]string{
		errDown: "_OTHER", context.DeadlineExceeded: "timeout", idempotency.ErrRecordInvalid: "record_invalid",
		fmt.Errorf("%w: charge", step.ErrUnknown): "outcome_unknown", step.ErrResult: "result_unusable",
		errors.Join(errDown, idempotency.ErrClaimLost): "claim_lost", idempotency.ErrUserQuota: "user_quota",
	} {
		s.spans.Reset()
		_, end := telemetry.Step(t.Context(), "charge")
		end(true, err)
		span := s.spans.GetSpans()[0]
		require.Equal(t, want, attributeOf(span, "error.type"))
		require.Equal(t, sdktrace.Status{Code: codes.Error, Description: want}, span.Status)
	}
}

func attributeOf(span tracetest.SpanStub, name string) string {
	for _, kv := range span.Attributes {
		if string(kv.Key) == name {
			return kv.Value.String()
		}
	}
	return ""
}

// The server removes the files of a form, although the handler has parsed it in a request of its own.
func TestFormOfATracedHandler(t *testing.T) {
	t.Parallel()
	var file *os.File
	s := newService(t, plain, func(w http.ResponseWriter, r *http.Request) {
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
