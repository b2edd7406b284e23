// Telemetry is a service with metrics and traces: otelhttp wraps the middleware, the middleware reports to the Telemetry of
// otelidempotency, and Prometheus can read the metrics at /metrics. Clients pay, retry, misuse a key, and call the service
// while the store is down. The program compares the clients' counts with the metrics, and checks that the trace of each
// replay has a link to the trace of the first execution. The output ends with the line
//
//	requests: 80, counted by /metrics: 80, links from replays to their first execution: 40 of 40
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/telemetry/traffic"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	spans := tracetest.NewInMemoryExporter() // stands for the exporter to a collector
	traces := trace.NewTracerProvider(trace.WithSyncer(spans))
	run, err := traffic.Open(traffic.Scenario{}, traces)
	demo.Check(err)

	demo.Check(traffic.PlayQuiet(ctx, run))
	demo.Check(traffic.PlayMisuse(ctx, run))
	demo.Check(traffic.PlayStoreDown(ctx, run))
	counted := scrapeRequestCounts(run.Shop.Addr)
	demo.Check(run.Shop.Close(ctx)) // waits until all spans are exported

	ledger, sum := run.Ledger(), 0
	fmt.Println("outcome               clients  /metrics")
	for _, outcome := range slices.Sorted(maps.Keys(counted)) {
		fmt.Printf("%-20s  %7d  %8d\n", outcome, ledger.Requests[outcome], counted[outcome])
		sum += counted[outcome]
	}
	replays, links := countLinks(spans.GetSpans())
	fmt.Printf("requests: %d, counted by /metrics: %d, links from replays to their first execution: %d of %d\n",
		ledger.Sum(), sum, links, replays)
	if !maps.Equal(ledger.Requests, counted) || replays != ledger.Requests["replayed"] || links != replays {
		log.Fatal("this is broken")
	}
}

// scrapeRequestCounts returns the numbers of requests by outcome from the metrics of the service at addr.
func scrapeRequestCounts(addr string) map[string]int {
	resp, err := http.Get("http://" + addr + "/metrics")
	demo.Check(err)
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	demo.Check(err)
	requests := families["idempotency_requests_total"]
	if requests == nil {
		demo.Check(errors.New("no metrics"))
	}
	counts := map[string]int{}
	for _, metric := range requests.Metric {
		for _, label := range metric.Label {
			if n := int(metric.Counter.GetValue()); label.GetName() == "idempotency_outcome" && n > 0 {
				counts[label.GetValue()] += n
			}
		}
	}
	return counts
}

// countLinks returns the number of spans of replays, and how many of these spans have a link to the span of an execution.
func countLinks(spans tracetest.SpanStubs) (replays, links int) {
	executions := map[string]bool{}
	for _, span := range spans {
		if readOutcome(span) == "executed" {
			executions[span.SpanContext.SpanID().String()] = true
		}
	}
	for _, span := range spans {
		if readOutcome(span) != "replayed" {
			continue
		}
		replays++
		if len(span.Links) == 1 && executions[span.Links[0].SpanContext.SpanID().String()] {
			links++
		}
	}
	return replays, links
}

// readOutcome returns the outcome in the attributes of span, and "" for a span without an outcome.
func readOutcome(span tracetest.SpanStub) string {
	for _, attribute := range span.Attributes {
		if attribute.Key == "idempotency.outcome" {
			return attribute.Value.AsString()
		}
	}
	return ""
}
