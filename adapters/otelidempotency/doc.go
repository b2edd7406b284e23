// Package otelidempotency turns the events of package idempotency into OpenTelemetry metrics and traces.
//
//	telemetry, err := otelidempotency.New(otelidempotency.Options{})
//	...
//	idem, err := idempotency.New(store, account, idempotency.Options{Observer: telemetry.Observe})
//	...
//	mux.Handle("POST /payments", idem.Handler(telemetry.Handler(payments)))
//
// # Metrics
//
// Durations are in seconds. A histogram counts only requests that have reached the step.
//
//	idempotency.requests             counter        {request}    requests with a key, each once, by outcome
//	idempotency.recoveries           counter        {answer}     unrecorded answers that were settled later, by outcome
//	idempotency.resolutions          counter        {operation}  abandoned operations that were ended, by outcome
//	idempotency.errors               counter        {error}      rejected requests and failures of the store, by error.type
//	idempotency.leases.lost          counter        {lease}      attempts that lost their claim while they ran
//	idempotency.operations.active    updowncounter  {operation}  attempts that run now; needs Handler or Start
//	idempotency.claim.duration       histogram      s            the first question to the store
//	idempotency.wait.duration        histogram      s            waiting for another attempt
//	idempotency.handler.duration     histogram      s            the handler, or the work of a Runner
//	idempotency.completion.duration  histogram      s            settling the claim, with repetitions
//	idempotency.stored.size          histogram      By           header, trailer and body of an answer that was stored
//
// All metrics except idempotency.leases.lost and idempotency.operations.active have the attribute idempotency.outcome with a value
// of [idempotency.Outcome]. Requests also have idempotency.from_cache=true if a cache answered a replay, and
// idempotency.omitted=true if an answer was stored without the content and cannot be replayed.
//
// All series of the counters begin at zero, so the function increase of Prometheus counts the first event of a series, too. Errors
// have the attribute error.type (see [ErrorType]).
//
// # Traces
//
// If the context of an event has a recording span, for example inside otelhttp, the span gets these attributes:
//
//	idempotency.outcome          string
//	idempotency.replayed         bool
//	idempotency.operation.id     string, the same for all requests of an operation; if it is known
//	idempotency.attempt          int, if it is known
//	idempotency.from_cache       bool, if true
//	idempotency.omitted          bool, if true
//	idempotency.stored.size      int, bytes, if an answer was stored or replayed
//	idempotency.lease.remaining  float64, seconds, if the request was refused because another attempt holds the key
//
// The span also gets span events:
//
//	idempotency.resolved  Reconcile has resolved the operation; with idempotency.outcome
//	idempotency.waiting   the wait for another attempt has begun
//	idempotency.claimed   the store has granted the claim
//	idempotency.handled   the handler has returned
//	idempotency.outcome   the request is settled; with error.type after an error
//
// If the context has no span, or a span that has ended, Observe makes a span, for example "idempotency replayed". The span begins
// with the first call of the store and ends with the event, and has the same attributes and span events. If the span of the
// context is unsampled, Observe records no trace.
//
// # Steps
//
// Each step of package step is a span within the span of the handler, for example "step charge". Names of steps should therefore
// be free of IDs. The span has the attributes idempotency.operation.id and idempotency.attempt, and also:
//
//	idempotency.step.name   string
//	idempotency.step.found  bool, whether an earlier attempt has run the step
//	error.type              string, if the step has returned an error
//
// If the step has returned an error, the status of the span is Error. The values of error.type are the values of [ErrorType], and
// also outcome_unknown (step.ErrUnknown), result_unusable (step.ErrResult), claim_lost and user_quota. Errors of the service itself
// are _OTHER.
//
// # The trace of the first execution
//
// [Telemetry.Handler] and [Telemetry.Start] attach the traceparent of the current span to the operation ([idempotency.Annotate]) if
// the span is sampled. The store keeps the traceparent with the answer, and the span of a replay gets a link to the span of the
// execution. The link is missing if the answer was not kept, or if the handler attaches a note of its own, because the last note
// counts.
//
// # Where otelhttp goes
//
// Outside idem.Handler, otelhttp makes a span for every request, and the span has the outcome:
//
//	otelhttp.NewHandler(authenticate(idem.Handler(telemetry.Handler(payments))), "payments")
//
// Inside idem.Handler, otelhttp makes a span only for requests that run the handler. Put [Telemetry.Handler] inside otelhttp.
// Observe then makes a root span with the outcome of each request, and a link to the span of the execution:
//
//	authenticate(idem.Handler(otelhttp.NewHandler(telemetry.Handler(payments), "payments")))
//
// # Secrets
//
// Metrics, attributes and events are free of keys, users and endpoints, and of the texts of errors, which may quote a key. A service
// can add attributes to metrics with Options.Attributes.
package otelidempotency
