// Package grpcidempotency makes unary methods of gRPC safe to repeat. When the same caller sends a call again, with the
// same idempotency-key in its metadata, it gets the first answer again, and the handler does not run a second time.
//
//	guard, err := grpcidempotency.New(runner, user, grpcidempotency.Options{})
//	...
//	grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, guard.Unary),
//		grpc.ChainStreamInterceptor(guard.Stream),
//	)
//
// It is the [idempotency.Runner] for gRPC. A key belongs to one caller ([UserFunc]) and one method. TTL, lease, waiting
// duplicates, what happens after a crash, and the observer are options of the Runner.
//
// # The answer
//
// What the handler returns is stored first and sent afterwards. This is the message, or the error with its details, and
// the header and trailer that it sets with [grpc.SetHeader], [grpc.SendHeader] and [grpc.SetTrailer]. A replay is equal
// to it, and has "idempotent-replayed: true" in its header. The message of a replay has the Go type that is registered
// under its name. If a new build of the service does not have that type, or if the method now returns another type, the
// replay is refused.
//
// OK and the errors that [DefaultStorable] names end the operation. Other errors are sent and not stored, so that the
// operation may be tried again. The handler can call [idempotency.Decide] to say otherwise. An observer and the store
// see the status of an answer as the HTTP status of its code: 200, 404, 503.
//
// # Refusals
//
// A refusal has an [errdetails.ErrorInfo] in its details. Its domain is [ErrorDomain], and its reason is one of those
// below. The field "retry" in its metadata is "same-key", "new-key" or "never". If waiting helps, the refusal also has
// an [errdetails.RetryInfo], and the trailer grpc-retry-pushback-ms, which tells the retry policy of gRPC how long to
// wait.
//
//	ABORTED              IN_PROGRESS
//	FAILED_PRECONDITION  KEY_REUSED, OUTCOME_UNKNOWN, NOT_REPLAYABLE
//	INVALID_ARGUMENT     KEY_MISSING, KEY_INVALID, BODY_INVALID
//	UNAUTHENTICATED      USER_UNKNOWN
//	RESOURCE_EXHAUSTED   QUOTA_EXCEEDED
//	UNAVAILABLE          STORE_UNAVAILABLE
//	INTERNAL             MESSAGE_UNSUPPORTED
//
// # The context of the handler
//
// If the client leaves, the handler goes on, and a repetition gets its answer. So neither the client's cancellation nor
// its deadline reaches the handler. The context of the handler ends when the claim is lost, with the cause
// [idempotency.ErrClaimLost], and when the handler has returned. Work that may take long needs its own deadline, in the
// handler or in an interceptor inside of this one. Options.CancelWithClient ties the context to the call.
//
// A handler whose client has left counts for [grpc.MaxConcurrentStreams] of its connection until it returns. A call
// that waits for another attempt (RunnerOptions.Wait) ends its wait when its client leaves.
//
// [grpc.SetSendCompressor] and [grpc.ClientSupportedCompressors] return an error in a guarded handler. Call them in an
// interceptor outside.
//
// # Stopping
//
// [grpc.Server.GracefulStop] waits for all handlers, also for those whose clients have left. [grpc.Server.Stop] waits
// for them only with [grpc.WaitForHandlers]. Without it, handlers go on while the program ends, and their claims lapse
// as after a crash. Then call [idempotency.Runner.Shutdown], and close the client of the store last.
package grpcidempotency
