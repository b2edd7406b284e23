// Package grpcidempotency makes unary methods of gRPC safe to repeat. A caller that repeats a call with the same idempotency-key
// in the metadata gets the answer to the first call, and the handler runs only once.
//
//	guard, err := grpcidempotency.New(runner, user, grpcidempotency.Options{})
//	...
//	grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, guard.Unary),
//		grpc.ChainStreamInterceptor(guard.Stream),
//	)
//
// The package connects an [idempotency.Runner] to gRPC. A key belongs to a caller ([UserFunc]) and a method. The options of the
// Runner determine TTL, lease, waiting of duplicates, behavior after a crash, and the observer.
//
// # The answer
//
// The answer of the handler is stored first and sent afterwards. The answer consists of the message, or the error with its
// details, and of the header and trailer from [grpc.SetHeader], [grpc.SendHeader] and [grpc.SetTrailer]. A replay repeats the
// answer, and adds "idempotent-replayed: true" to the header. The message of a replay has the Go type that is registered under
// the name of the message. A replay is refused if a new build of the service lacks the type, or if the method now returns a
// different type.
//
// OK and the errors of [DefaultStorable] end the operation. All other errors are sent but not stored, so the operation may be
// tried again. The handler can decide differently with [idempotency.Decide]. Observer and store see the HTTP status for the
// gRPC code of an answer, such as 200, 404 or 503.
//
// # Refusals
//
// A refusal has an [errdetails.ErrorInfo] in the details, with the domain [ErrorDomain] and a reason of the table below. The
// field "retry" in the metadata of the ErrorInfo is "same-key", "new-key" or "never". If waiting helps, the refusal also has an
// [errdetails.RetryInfo], and the trailer grpc-retry-pushback-ms with the delay for the retry policy of gRPC.
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
// If the client leaves, the handler continues, so that a repetition of the call gets an answer. Cancellation and deadline of the
// client do not reach the handler. The context of the handler ends when the handler has returned, or when the claim is lost,
// with the cause [idempotency.ErrClaimLost]. Long work needs a deadline of its own, in the handler or in an interceptor inside
// the guard. Options.CancelWithClient ties the context to the call instead.
//
// A handler without a client counts for [grpc.MaxConcurrentStreams] of its connection until the handler returns. A call that
// waits for another attempt (RunnerOptions.Wait) stops waiting when the client leaves.
//
// [grpc.SetSendCompressor] and [grpc.ClientSupportedCompressors] return an error in a guarded handler. Call both functions in an
// interceptor outside the guard.
//
// # Stopping
//
// [grpc.Server.GracefulStop] waits for all handlers, including handlers without a client. [grpc.Server.Stop] waits for handlers
// only with the option [grpc.WaitForHandlers]. Without the option, handlers continue while the program ends, and their leases
// expire as after a crash. After the server, call [idempotency.Runner.Shutdown], and close the client of the store last.
package grpcidempotency
