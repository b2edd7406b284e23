// Package idempotency makes net/http handlers safe to retry. A client that sends a POST again, with the same
// Idempotency-Key header, gets the first answer again, byte for byte, and the handler does not run a second time.
//
//	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or NewRedisStore
//	idem, err := idempotency.New(store, account, idempotency.Options{})
//	...
//	mux.Handle("POST /payments", idem.Handler(payments))
//
// # The model
//
// A [Key] is made of the user, the endpoint and what the client sent as its key. It names an [Operation]: one payment,
// however many requests and attempts it takes.
//
// A request claims its key in the [Store], in one atomic step. Who gets the [Claim] runs the handler; it is an attempt
// at the operation. Everybody else is shown the [Record] that holds the key, and gets the stored answer if the
// operation is completed, or is told that it is in progress (or waits, with Options.Wait). A request whose content has
// another [Fingerprint] than the first one reuses the key, and is refused.
//
// A claim is a lease. It is renewed for as long as the handler runs, and lapses within Options.Lease when its process
// dies. Then Options.Abandoned decides about the next request: it takes over, with the same operation ID and the next
// attempt number, or is refused. An owner that was overtaken, say after a pause of its machine, cannot settle the
// record any more: the store knows each claim by a secret token. Its context is cancelled with the cause
// [ErrClaimLost].
//
// The handler writes into a [Response]. It is stored, and only then sent, by the same function that sends it to whoever
// comes later: the first answer is a replay as well. Stored is what the handler made of the header, as a difference, so
// that a replay keeps the fresh request ID or CORS fields of outer middleware. A replay is marked with
// "Idempotent-Replayed: true". Answers that say "try again" (see [DefaultStorable]) and broken ones are not stored but
// release the claim, and so does a panic, unless the choice is [Refuse].
//
// # What a lease can and cannot do
//
// Among any number of concurrent and later requests with one key, the handler runs once at a time, and not again once
// its answer is stored, until the record expires.
//
// No lease can promise that the effects happen exactly once. If the process dies after the effect and before its
// record, nobody can tell whether the effect took place. [ReExecute] runs the handler again: at least once. [Refuse]
// does not: at most once. A handler can do better, because it knows its effects: Operation.ID is the same for every
// attempt, so it can be stored with the effect under a unique constraint, and [Operation.DownstreamKey] derives from it
// what to send to other systems as their idempotency key. The same holds if the store forgets what it has acknowledged,
// or cannot be reached when the handler is done; [RedisStore.Check] and Options.Observer tell of that. Nor does a lease
// stop an owner that is late: the token keeps it from the record, but not from other systems.
//
// Exactly once is what the transactional store of module pgxstore gives for effects in PostgreSQL: they commit together
// with the record.
//
// # Where it belongs
//
// Inside of authentication, which tells the users apart: otherwise one user may be shown the answer to another. Inside
// of the router, whose redirects and 404s are not the handler's answers, and of everything that belongs to one
// request, such as compression, CORS, rate limits and http.TimeoutHandler. [Middleware.Handler] has the form
// that routers expect of a middleware.
//
// [Runner] is the same engine without HTTP, and [Transport] the client's half. Package idempotencytest checks a Store of one's own.
package idempotency
