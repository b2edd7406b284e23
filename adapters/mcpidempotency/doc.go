// Package mcpidempotency makes tools of the Model Context Protocol act once. An agent that repeats a call with the same
// key gets the result of the first call, and the tool runs only once.
//
//	guard, err := mcpidempotency.New(runner, mcpidempotency.TokenUser, mcpidempotency.Options{Required: true})
//	...
//	server := mcp.NewServer(implementation, nil)
//	server.AddReceivingMiddleware(guard)
//
// The package connects an [idempotency.Runner] to the official SDK. The options of the Runner determine TTL, lease,
// waiting of duplicates, behavior after a crash, and the observer.
//
// # Keys
//
// A model can write only the arguments of a call, so the middleware adds an argument with the key to the listed input
// schema, and explains the key in the description of the tool. The tool gets its arguments without the key. A program
// around the model puts the key into _meta instead:
//
//	params := &mcp.CallToolParams{Name: "charge", Arguments: arguments, Meta: mcp.Meta{"idempotency-key": key}}
//
// A key names an operation of a user and a tool. For operators and observers, the endpoint of the tool charge is
// "tools/call charge". Servers that share a store share the operations of tools with the same name, so two different
// servers need two stores, for example with two prefixes.
//
// Two calls are the same if their arguments are equal as JSON, without the key. Options.ValidateKey can demand random
// keys, for example by [idempotency.ValidateUUID]: a model that sends "1" as the key of two equal actions gets the second
// action replayed.
//
// Tools with ReadOnlyHint or IdempotentHint pass unguarded, see [NeedsKey]. To see these hints, the middleware lists the
// tools of the server at each call. Middleware inside the guard thus sees a request for tools/list before each
// tools/call.
//
// # The result
//
// The result of the tool is stored first and sent afterwards: content, structured content, IsError and _meta. A replay
// repeats the result, and adds "idempotency": {"replayed": true} to _meta.
//
//	the tool                          the result       the operation
//	returns a result                  is stored        has ended
//	returns an error                  is not stored    may be tried again
//	asks the user for input           is not stored    goes on with the call that has the answer
//	is unknown, or its arguments      is not stored    has not begun: other arguments may have the same key
//	are invalid (-32602, or by
//	the input schema)
//	panics                            none             as after a crash: RunnerOptions.Abandoned decides
//
// An error is a result with IsError, or a JSON-RPC error. The tool or Options.Storable can decide differently about a
// result with IsError. With [idempotency.Decide] and [idempotency.Keep], the error is stored and replayed. Keep errors
// that the same call would always get. With [idempotency.Unknown], the next call is treated like a call after a crash.
// Observer and store see the status 200 for a result and 422 for an error.
//
// A tool that fails after a part of its work runs again as a whole, except for steps, see package step. Pass
// [idempotency.Operation.DownstreamKey] to systems that compare keys.
//
// RunnerOptions.Reconcile or an operator may resolve an operation with an unknown outcome. The body of such an answer is
// a result in JSON: {"content": [{"type": "text", "text": "charged"}]}.
//
// # Refusals
//
// A refusal is a result with IsError, whose text tells a model what has happened and what to do. The structured content
// has "code" and "retry", a value of the table below. If waiting helps, "retryAfter" is the number of seconds to wait.
// The member "idempotency" of _meta has the same object. If the tool has an output schema, only _meta has the object,
// because clients validate structured content against the schema.
//
//	key-missing        the call needs a key                          new-key
//	key-invalid        the key is malformed, or there are two        new-key
//	body-invalid       the arguments have no canonical form          never
//	user-unknown       the user function knows no user               same-key
//	in-progress        an earlier call is running                    same-key
//	key-reused         the key came with other arguments             new-key
//	not-replayable     the result was not kept                       never
//	outcome-unknown    an earlier call broke off                     never
//	quota-exceeded     the user's share of the store is used up      same-key
//	store-unavailable  the store does not work                       same-key
//
// # The context of the tool
//
// If the client cancels the call or leaves, the tool continues, so that a repetition of the call gets the result. The
// context of the tool ends when the tool has returned, or when the claim is lost, with the cause
// [idempotency.ErrClaimLost]. Long work needs a deadline of its own. Options.CancelWithClient ties the context to the
// call instead. Progress notifications reach the client that runs the tool.
//
// # Stopping
//
// The session of a server waits for its tools, including tools without a client. After the sessions, call
// [idempotency.Runner.Shutdown], and close the client of the store last.
package mcpidempotency
