// Package idempotency makes net/http handlers safe to retry. When the same caller sends a POST again, with the same
// Idempotency-Key header, it gets the first answer again, byte for byte, and the handler does not run a second time.
//
//	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or NewRedisStore
//	idem, err := idempotency.New(store, account, idempotency.Options{})
//	...
//	mux.Handle("POST /payments", idem.Handler(payments))
//
// # The model
//
// A [Key] has three parts: the user, the endpoint, and what the client sent as its key. It names an [Operation]: one
// payment, however many requests and attempts it takes.
//
// A request claims its key in the [Store], in one atomic step. If it gets the [Claim], it is the owner of the operation
// and runs the handler: this is an attempt. Any other request gets the [Record], which is what the store holds for the
// key. If the operation is completed, its stored answer is sent again: this is a replay. If the operation is running,
// the request is refused as in progress, or waits (Options.Wait). A record has the [Fingerprint] of its request, a
// digest of the content. A request with another fingerprint reuses the key, and is refused.
//
// A claim has a lease, a time after which it lapses. The owner renews the lease for as long as the handler runs. If the
// process dies, the lease lapses within Options.Lease. Then Options.Abandoned decides about the next request: it takes
// over, with the same operation ID and the next attempt number, or it is refused.
//
// An owner can lose its claim, for instance because its machine was paused. The context of the handler is then
// cancelled with the cause [ErrClaimLost], if possible a sixteenth of the lease before the lease ends. Once another
// attempt has taken over, the late owner cannot store its answer: the store knows each claim by a secret token.
//
// # The answer
//
// The handler writes into a [Response]. The response is stored first, and sent afterwards. The first answer and every
// replay are sent by the same function, so they are equal. Of the header, only the handler's changes are stored. A
// replay applies them to the header of its own request. So the fields of outer middleware, such as a request ID or
// CORS, are fresh. A replay is marked with "Idempotent-Replayed: true".
//
// Not every answer completes the operation. Options.Storable judges the whole response. Its default, [DefaultStorable],
// does not store answers that say "try again". The handler itself can call [Decide], which outranks Storable. An answer
// that is not stored is sent as it is, and its claim is released, so that the operation may be tried again. With
// [Refuse], a panic or the verdict [Unknown] leaves the claim to lapse instead, as a crash does.
//
// If the store does not take an answer within Options.StoreTimeout, the client gets the answer all the same, because
// its effects exist. The answer is then stored in the background. Call [Middleware.Shutdown] before the program ends.
//
// # The context of the handler
//
// The context does not end when the client leaves: the handler goes on, and a retry gets its answer. It ends at the
// deadline that it inherited, when the claim is lost, and when the handler has returned. Other cancellations of the
// request's context do not reach it. Options.CancelWithClient and Options.Stream tie it to the request's context.
//
// If the context has ended and the handler returns without writing, it has given up. Nothing is stored or written, so
// that outer middleware can answer. If the claim was lost, however, the request is refused as in progress. An attempt
// that gave up counts as one that panicked.
//
// # What a lease can and cannot do
//
// Among any number of concurrent and later requests with one key, the handler runs once at a time, and not again once
// its answer is stored, until the record expires.
//
// No lease can promise that the effects happen exactly once. If the process dies after the effect and before its
// record, nobody can tell whether the effect took place. [ReExecute] runs the handler again: at least once. [Refuse]
// does not: at most once. Effects may also happen twice if the store forgets what it has acknowledged;
// [RedisStore.Check] reports settings that allow this. A lease does not stop a late owner either: its token keeps it
// from the record, but not from other systems.
//
// A handler can do better, because it knows its effects. Operation.ID is the same for every attempt, so it can be
// stored with the effect under a unique constraint. [Operation.DownstreamKey] derives an idempotency key for other
// systems.
//
// The transactional stores of modules pgxstore, mysqlstore and sqlitestore give exactly once for effects in their
// databases: these commit together with the record.
//
// # Where it belongs
//
// Mount it inside authentication, which tells the users apart. Otherwise one user may get the answer to another. Mount
// it inside the router, whose redirects and 404s are not the handler's answers. Mount it inside per-request middleware,
// such as compression, CORS, rate limits and http.TimeoutHandler, but outside whatever reads the request body.
// [Middleware.Handler] has the form that routers expect of a middleware.
//
// [Runner] is the same engine without HTTP, and [Transport] is the client's half. Package idempotencytest checks a
// Store of your own, and whether the routes of a service are guarded.
package idempotency
