// Package gqlgenidempotency makes mutations of GraphQL safe to send again, for servers that gqlgen has generated. When the
// same user sends a mutation field again with the same key, it gets the first result again, and the resolver does not run
// a second time.
//
//	guard, err := gqlgenidempotency.New(runner, user, gqlgenidempotency.Options{})
//	...
//	server := handler.New(generated.NewExecutableSchema(config))
//	server.Use(guard)
//
// It is the [idempotency.Runner] for GraphQL. TTL, lease, waiting duplicates, what happens after a crash, and the observer
// are options of the Runner. Queries and subscriptions are left alone.
//
// # Keys
//
// All mutations have one URL, and one document may have several. So a key belongs to a field, as in the Admin API of
// Shopify. The schema declares the directive, and gqlgen.yml says that no code is generated for it:
//
//	directive @idempotent(key: String!) on FIELD
//
//	directives:
//	  idempotent:
//	    skip_runtime: true
//
// A client writes it behind the arguments of a mutation field:
//
//	mutation($key: String!) { pay(input: {cents: 4200}) @idempotent(key: $key) { id } }
//
// If a document has one mutation field only, and it has no directive, the header field Idempotency-Key is its key. A
// document with more fields of which one has no directive is refused if it comes with that header field. In the header of
// a WebSocket a key would be that of every mutation: use the directive there.
//
// A key names one operation of one user and one field of the schema: with the same key, two fields are two operations.
// Fields of a document are executed one after the other, and each is settled for itself.
//
// Two requests are the same if the arguments are equal after coercion: variables and default values are in their place,
// and neither order nor spelling counts. An argument that is left out is equal to one with the default value. So a new
// argument with a default value changes nothing. The content of an uploaded file counts.
//
// # The answer
//
// What is stored is the result of the field, as it is sent: the data that was selected, and the errors in it. The
// resolvers of the fields below run within the operation, before it is stored. A replay runs none of them, and is equal,
// but for "idempotency": {"replayed": ["pay"]} in the extensions of the response.
//
// A retry must select the same fields with the same arguments in the same order. How it writes them makes no difference.
// With another selection it is refused as NOT_REPLAYABLE, because nobody has resolved these fields at the time. To resolve
// them now would run resolvers again, and might show another state than the first answer. Query what is missing instead.
//
//	the resolver        the answer                               the operation
//	returns a result    is kept, also if a field below failed    has ended
//	returns an error    is not kept                              may be tried again
//	panics              is not kept: that of gqlgen              as after a crash: RunnerOptions.Abandoned decides
//	is not reached      is not kept: an argument is not valid    has not begun
//
// The resolver can call [idempotency.Decide] to say otherwise. With [idempotency.Keep], an error is stored and replayed:
// do so for those that the same request would always get. Better still, make them a part of the result. An observer and
// the store see the status 200 for a result and 422 for an error.
//
// Use the extension first: then it is outermost. For a replay, neither the interceptors inside of it nor the directives of the
// schema run. So check outside whether a user may still see the answer.
//
// RunnerOptions.Reconcile, or an operator, may end an operation whose outcome is unknown. The body that they give
// is {"data": {"id": "7"}}, with "errors" if there are any. It is the answer to any selection.
//
// # Refusals
//
// A refusal is an error with the path of its field, whose data is null. In its extensions, "code" is one of those below,
// and "retry" is "same-key", "new-key" or "never". If waiting helps, "retryAfter" has the seconds to wait.
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
// The first two refuse the document before anything of it is executed. By GraphQL over HTTP, such a document is answered
// like an invalid one: with 400, or with 422 to a client that wants application/json. All others have the status 200, as every
// answer of a document that was executed. An ErrorPresenter finds the [*idempotency.Error] in the error by [errors.As].
//
// # The context of the resolver
//
// If the client leaves, the resolver goes on, and a retry gets its answer. So neither the client's cancellation nor a
// deadline of the request reaches it. Its context ends when the claim is lost, with the cause [idempotency.ErrClaimLost].
// Work that may take long needs a deadline of its own.
package gqlgenidempotency
