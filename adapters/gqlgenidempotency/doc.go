// Package gqlgenidempotency makes GraphQL mutations safe to repeat in servers by gqlgen. A user who repeats a mutation field with
// the same key gets the first result, and the resolver runs only once.
//
//	guard, err := gqlgenidempotency.New(runner, user, gqlgenidempotency.Options{})
//	...
//	server := handler.New(generated.NewExecutableSchema(config))
//	server.Use(guard)
//
// The package connects an [idempotency.Runner] to GraphQL. The options of the Runner determine TTL, lease, waiting of duplicates,
// behavior after a crash, and the observer. Queries and subscriptions run unguarded.
//
// # Keys
//
// A key belongs to a mutation field, as in the Admin API of Shopify, because all mutations have the same URL and a document may
// have several mutations. The schema declares a directive for the key, and gqlgen.yml turns off code generation for the directive:
//
//	directive @idempotent(key: String!) on FIELD
//
//	directives:
//	  idempotent:
//	    skip_runtime: true
//
// A client writes the directive after the arguments of a mutation field:
//
//	mutation($key: String!) { pay(input: {cents: 4200}) @idempotent(key: $key) { id } }
//
// If a document has a single mutation field without the directive, the key is the header field Idempotency-Key. A document with
// the header field and several mutation fields is refused if any field lacks the directive. On a WebSocket, use the directive,
// because a key in the header would be the key of every mutation.
//
// A key names an operation of a user and a field of the schema, so two fields with the same key are two operations. The fields of
// a document run sequentially, and the operation of each field is completed or released independently.
//
// Two requests are the same if their arguments are equal after coercion, with variables and default values filled in. Order and
// spelling of the arguments are irrelevant. A missing argument equals an argument with the default value, so a new argument with
// a default value leaves earlier requests the same. Files are compared by name, type and content.
//
// # The answer
//
// The store keeps the result of the field as sent to the client: the selected data, and the errors of the field. The resolvers of
// the selected fields run within the operation, before the result is stored. A replay runs no resolver, returns the same result,
// and adds "idempotency": {"replayed": ["pay"]} to the extensions of the response.
//
// A retry must select the same fields with the same arguments in the same order, in any layout. A retry with a different
// selection is refused with NOT_REPLAYABLE, because the stored result lacks the other fields. Resolving the other fields now
// would run resolvers again, and might show a newer state than the first answer. Query the missing fields instead.
//
//	the resolver        the answer                               the operation
//	returns a result    is kept, also if a field below failed    has ended
//	returns an error    is not kept                              may be tried again
//	panics              is not kept: that of gqlgen              as after a crash: RunnerOptions.Abandoned decides
//	is not reached      is not kept: an argument is not valid    has not begun
//
// The resolver can decide differently with [idempotency.Decide]. With [idempotency.Keep], an error is stored and replayed. Keep
// errors that the same request would always get or, better, make such errors a part of the result. Observer and store see the
// status 200 for a result and 422 for an error.
//
// Pass the extension to Use before all other extensions, so that the extension is outermost. Interceptors inside the extension
// and directives of the schema are skipped for a replay. Check outside whether a user may still see the answer.
//
// RunnerOptions.Reconcile or an operator may resolve an operation with an unknown outcome. The body of such an answer is
// {"data": {"id": "7"}}, with "errors" if there are any. The answer is valid for any selection.
//
// # Refusals
//
// A refusal is an error with the path of the field, and the data of the field is null. In the extensions of the error, "code" is
// a code of the table below, and "retry" is "same-key", "new-key" or "never". If waiting helps, "retryAfter" is the number of
// seconds to wait.
//
//	KEY_MISSING        a field that needs a key has none            new-key
//	KEY_INVALID        malformed, or not on a mutation field        new-key
//	BODY_INVALID       an argument has no canonical form            never
//	USER_UNKNOWN       the user function knows no user              same-key
//	IN_PROGRESS        an earlier attempt is running                same-key
//	KEY_REUSED         the key came with other arguments            new-key
//	NOT_REPLAYABLE     the answer was not kept, or selects          never
//	                   other fields
//	OUTCOME_UNKNOWN    an earlier attempt broke off                 never
//	QUOTA_EXCEEDED     the user's share of the store is used up     same-key
//	STORE_UNAVAILABLE  the store does not work                      same-key
//
// KEY_MISSING and KEY_INVALID refuse the document before the execution of any field. GraphQL over HTTP answers such a document
// like an invalid document, with 400, or with 422 to a client that accepts application/json. All other refusals have the status
// 200, like every executed document. An ErrorPresenter finds the [*idempotency.Error] in the error with [errors.As].
//
// # The context of the resolver
//
// If the client leaves, the resolver continues, so that a retry gets an answer. Cancellation by the client and the deadline of
// the request do not reach the resolver. The context of the resolver ends when the claim is lost, with the cause
// [idempotency.ErrClaimLost]. Long work needs a deadline of its own.
package gqlgenidempotency
