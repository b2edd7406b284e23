// Package otelidempotency makes OpenTelemetry metrics and traces of what package idempotency reports.
//
//	telemetry, err := otelidempotency.New(otelidempotency.Options{})
//	...
//	idem, err := idempotency.New(store, account, idempotency.Options{Observer: telemetry.Observe})
//	...
//	mux.Handle("POST /payments", idem.Handler(telemetry.Handler(payments)))
//
// # Metrics
//
// Durations are in seconds. A histogram has a value only for requests in which the step took place.
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
// All but idempotency.leases.lost and idempotency.operations.active have the attribute idempotency.outcome, one of the
// values of [idempotency.Outcome]. Requests also have idempotency.from_cache=true if a cache answered a replay, and
// idempotency.omitted=true if an answer was stored without its content, so that it cannot be replayed.
//
// The counters have all their series from the beginning, at zero. So the increase in Prometheus sees the first event of
// a kind, too. Errors are told apart by error.type, see [ErrorType].
//
// # Traces
//
// If the context of an event has a span that is recorded, as inside of otelhttp, these attributes are set on it:
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
// The span also gets four span events: idempotency.waiting when a wait began, idempotency.claimed when the claim was
// granted, idempotency.handled when the handler had returned, and idempotency.outcome when all was settled. The last
// one has error.type if something went wrong. If Reconcile has ended the operation before, idempotency.resolved comes
// first, with idempotency.outcome.
//
// If the context has no span, or a span that has ended, Observe makes a span, "idempotency replayed" for example. It
// lasts from when the store was first asked to the event, and has the same attributes and events. If the span of the
// context is not sampled, nothing is traced.
//
// # Steps
//
// Each step of package step is a span, "step charge" for example, within that of the handler. So no name of a step
// should have the ID of something in it. The span has the attributes idempotency.operation.id, idempotency.attempt and
// these:
//
//	idempotency.step.name   string
//	idempotency.step.found  bool, whether an earlier attempt has run the step
//	error.type              string, if the step has returned an error
//
// The status of the span is then an error. Besides the values of [ErrorType], error.type may be outcome_unknown
// (step.ErrUnknown), result_unusable (step.ErrResult), claim_lost or user_quota. An error of the service's own is
// _OTHER.
//
// # The trace of the first execution
//
// [Telemetry.Handler] and [Telemetry.Start] attach the traceparent of the current span to the operation
// ([idempotency.Annotate]), if it is sampled. It is stored with the answer. The span of a replay gets a link to it.
// There is no link if the handler attaches its own note, because the last note counts, or if the answer was not kept.
//
// # Where otelhttp goes
//
// Outside of idem.Handler, every request has one span, with its outcome:
//
//	otelhttp.NewHandler(authenticate(idem.Handler(telemetry.Handler(payments))), "payments")
//
// Inside, only requests that run the handler have a span of otelhttp. Put [Telemetry.Handler] inside of it. The outcome
// of each request is then on a span that Observe makes: a root span with a link to the span of the execution:
//
//	authenticate(idem.Handler(otelhttp.NewHandler(telemetry.Handler(payments), "payments")))
//
// # What is not told
//
// No metric, attribute or event has a key, a user or an endpoint, nor the text of an error, which may quote them. The
// service can add attributes to metrics by Options.Attributes.
package otelidempotency
