// Telemetry is a service with metrics and traces: otelhttp outside of the middleware, the Telemetry of otelidempotency, and
// its metrics at /metrics. Clients pay, retry, misuse a key and meet a store that is down, and write down what they see.
// The metrics have the same numbers, and the trace of a retry has a link to that of the payment. It ends with the line
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

	demo.Check(traffic.Quiet(ctx, run))
	demo.Check(traffic.Misuse(ctx, run))
	demo.Check(traffic.StoreDown(ctx, run))
	counted := metrics(run.Shop.Addr)
	demo.Check(run.Shop.Close(ctx)) // waits for the spans

	ledger, sum := run.Ledger(), 0
	fmt.Println("outcome               clients  /metrics")
	for _, outcome := range slices.Sorted(maps.Keys(counted)) {
		fmt.Printf("%-20s  %7d  %8d\n", outcome, ledger.Requests[outcome], counted[outcome])
		sum += counted[outcome]
	}
	replays, links := linksOf(spans.GetSpans())
	fmt.Printf("requests: %d, counted by /metrics: %d, links from replays to their first execution: %d of %d\n",
		ledger.Sum(), sum, links, replays)
	if !maps.Equal(ledger.Requests, counted) || replays != ledger.Requests["replayed"] || links != replays {
		log.Fatal("this is broken")
	}
}

// metrics returns the requests that a service has counted, by outcome.
func metrics(addr string) map[string]int {
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

// linksOf counts the spans of replays, and those that have a link to the span of an execution.
func linksOf(spans tracetest.SpanStubs) (replays, links int) {
	executions := map[string]bool{}
	for _, span := range spans {
		if outcomeOf(span) == "executed" {
			executions[span.SpanContext.SpanID().String()] = true
		}
	}
	for _, span := range spans {
		if outcomeOf(span) != "replayed" {
			continue
		}
		replays++
		if len(span.Links) == 1 && executions[span.Links[0].SpanContext.SpanID().String()] {
			links++
		}
	}
	return replays, links
}

func outcomeOf(span tracetest.SpanStub) string {
	for _, attribute := range span.Attributes {
		if attribute.Key == "idempotency.outcome" {
			return attribute.Value.AsString()
		}
	}
	return ""
}
