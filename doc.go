// Package idempotency makes net/http handlers safe to retry. If the same caller sends a POST again with the same
// Idempotency-Key header, it gets the first answer again, with the same status and the same bytes. The handler does not
// run a second time.
//
//	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or NewRedisStore
//	account := func(r *http.Request) (string, error) { ... } // the ID of the authenticated caller
//	idem, err := idempotency.New(store, account, idempotency.Options{})
//	...
//	mux.Handle("POST /payments", idem.Handler(payments))
//
// # The model
//
// A [Key] has three parts: the user, the endpoint, and the value that the client sent as its key. It names an
// [Operation], such as one payment. An operation may take several requests.
//
// A request claims its key in the [Store], in one atomic step. If it gets the [Claim], it is the owner of the operation
// and runs the handler: one run is an attempt. Any other request gets the [Record]: the state of the operation, and its
// answer. If the operation is completed, the stored answer is sent again: this is a replay. If the operation is running,
// the request is refused as in progress, or waits (Options.Wait). A record has the [Fingerprint] of its request, a
// digest of the content. A request with another fingerprint reuses the key, and is refused. All words are explained at
// https://github.com/idempotency-go/idempotency/blob/main/docs/guarantees.md#words.
//
// A claim has a lease: the claim ends after a time, unless the owner renews it. The owner renews it for as long as the
// handler runs. If the process dies, the lease lapses within Options.Lease. Then Options.Abandoned decides about the
// next request. With [ReExecute] the request takes over, with the next attempt number. With [Refuse] it is refused.
//
// An owner can lose its claim, for instance because its machine was paused. The context of the handler is then
// cancelled with the cause [ErrClaimLost], if possible a sixteenth of the lease before the lease ends. Once another
// attempt has taken over, the late owner cannot store its answer: the store knows each claim by a secret token.
//
// # The answer
//
// The handler's answer is recorded as a [Response]. It is stored first, and sent afterwards. The same function sends the
// first answer and every replay, so they are equal. Only those header fields are stored that the handler has changed.
// A replay adds them to the fields that outer middleware has set for the new request, such as a request ID or CORS. So
// these are fresh. A replay is marked with "Idempotent-Replayed: true".
//
// Not every answer completes the operation. Options.Storable reports whether an answer is stored. Its default,
// [DefaultStorable], does not store answers that say "try again". The handler can call [Decide] with a verdict, which
// overrides Storable. If an answer is not stored, it is sent as it is, and the claim is released, so that the operation
// may be tried again. But with [Refuse], the claim of an attempt that panicked, or decided [Unknown], is left to lapse, as
// after a crash.
//
// The store may fail to take an answer within Options.StoreTimeout. The client then gets the answer all the same,
// because the handler's effects exist. The answer is stored later, in the background. Call [Middleware.Shutdown] before
// the program ends.
//
// # The context of the handler
//
// The context does not end when the client leaves: the handler goes on, and a retry gets its answer. The context ends at
// the deadline of the request's context, when the claim is lost, and when the handler has returned. Other cancellations
// of the request's context do not reach it. With Options.CancelWithClient or Options.Stream, the handler's context also
// ends with the request's context.
//
// A handler may return without writing after its context has ended: it has given up. Then nothing is stored or written,
// so that outer middleware can answer. But if the claim was lost, the request is refused as in progress. An attempt that
// gave up is treated like one that panicked.
//
// # What a lease can and cannot do
//
// There may be any number of concurrent and later requests with one key. The handler runs for one of them at a time.
// Once its answer is stored, it does not run again until the record expires.
//
// Effects are what the handler does outside of itself, such as charging a card. No lease can promise that they happen
// exactly once. If the process dies after the effect and before the answer is stored, nobody can tell whether the effect
// took place. [ReExecute] runs the handler again: at least once. [Refuse] does not: at most once. Effects may also happen
// twice if the store forgets records that it has acknowledged; [RedisStore.Check] reports settings that allow this. A
// lease does not stop a late owner either: its token keeps it from the record, but not from other systems.
//
// A handler can do better, because it knows its effects. Each effect can be a step, see package step: the next attempt goes on
// where the last one has stopped. Rows in the database of the store are a step that happens exactly once, because rows and result
// are committed together: see DoTx of modules pgxstore, mysqlstore and sqlitestore.
//
// Operation.ID follows from user, endpoint and key, so every attempt has the same ID, even if the store was down or has lost the
// record. The ID can be stored with the effect under a unique constraint. [Operation.DownstreamKey] derives an idempotency key
// for other systems from it.
//
// # Where it belongs
//
// Mount it inside authentication, which tells the users apart. Otherwise one user may get the answer to another. Mount
// it inside the router, because redirects and 404s of the router are not answers of the handler. Mount it inside
// middleware that acts on each request, such as compression, CORS, rate limits and http.TimeoutHandler. Mount it outside
// everything that reads the request body. [Middleware.Handler] has the form that routers expect of a middleware.
//
// [Runner] does the same without HTTP. Package client adds keys to requests and retries them. Package idempotencytest
// checks a Store of your own, and whether the routes of a service are guarded.
package idempotency
