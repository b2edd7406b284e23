package otelidempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
)

// A replay has its own trace, with a link to the span of the execution.
func Example() {
	exporter := tracetest.NewInMemoryExporter()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)) // stands for the provider of the service
	telemetry, err := otelidempotency.New(otelidempotency.Options{TracerProvider: traces})
	if err != nil {
		panic(err)
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Observer: telemetry.Observe})
	if err != nil {
		panic(err)
	}
	payments := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "charged") })
	service := otelhttp.NewHandler(idem.Handler(telemetry.Handler(payments)), "payments", otelhttp.WithTracerProvider(traces))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		service.ServeHTTP(httptest.NewRecorder(), r)
	}
	spans := exporter.GetSpans()
	for _, span := range spans {
		for _, attribute := range span.Attributes {
			if attribute.Key == "idempotency.outcome" {
				fmt.Println(attribute.Value.AsString(), "links:", len(span.Links))
			}
		}
	}
	fmt.Println(spans[1].Links[0].SpanContext.SpanID() == spans[0].SpanContext.SpanID())
	// Output:
	// executed links: 0
	// replayed links: 1
	// true
}

// The work of a Runner, for example in a queue consumer, calls Start, because there is no HTTP handler.
func ExampleTelemetry_Start() {
	telemetry, err := otelidempotency.New(otelidempotency.Options{})
	if err != nil {
		panic(err)
	}
	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		idempotency.RunnerOptions{Observer: telemetry.Observe})
	if err != nil {
		panic(err)
	}
	key := idempotency.Key{User: "billing", Endpoint: "invoices", ID: "message-1"}
	for range 2 {
		invoice, replayed, err := idempotency.DoJSON(context.Background(), runner, key, nil, func(ctx context.Context) (int, error) {
			defer telemetry.Start(ctx)()
			return 4711, nil
		})
		fmt.Println(invoice, replayed, err)
	}
	// Output:
	// 4711 false <nil>
	// 4711 true <nil>
}

// A service with another library for metrics distinguishes failures by ErrorType, as the metrics of this package do.
func ExampleErrorType() {
	opts := idempotency.Options{
		Required: true,
		Observer: func(_ context.Context, e idempotency.Event) { fmt.Println(e.Outcome, otelidempotency.ErrorType(e)) },
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/payments", nil) // without a key
	idem.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	// Output: rejected key_missing
}
