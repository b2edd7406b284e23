// Package idempotency makes net/http handlers safe to retry. If a caller sends a POST again with the same
// Idempotency-Key header, the caller gets the first answer again, with the same status and the same bytes, and the
// handler does not run a second time. The exceptions, such as a crash of the process, are in the section on leases
// below.
//
//	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or NewRedisStore
//	account := func(r *http.Request) (string, error) { ... } // the ID of the authenticated caller
//	idem, err := idempotency.New(store, account, idempotency.Options{})
//	...
//	mux.Handle("POST /payments", idem.Handler(payments))
//
// # The names for a service with HTTP
//
//   - To guard handlers: [New], [Middleware], [Options], [UserFunc], [SingleUser], and a store such as
//     [NewMemoryStore] or [NewRedisStore].
//   - To let clients ask what became of their keys: [Middleware.Status] and [KeyInfo].
//   - Within a handler: [FromContext] and [Operation], [Decide] with a [Verdict], [Annotate].
//   - For the options: [Abandoned], [DefaultEndpoint], [DefaultStorable], [Fingerprint], [FingerprintFunc],
//     [FingerprintRaw], [Key], [Response], [Fields], [ValidateUUID].
//   - For refused requests: [Error], [Retry], [WriteProblem], and the errors from [ErrKeyMissing] on.
//   - To observe: [Observer], [Event], [Outcome]. For access logs: [WithReport], [ReportTo], [Report].
//
// The names for services without HTTP, for operators, and for authors of stores are at the end of this page.
//
// # The model
//
// A [Key] has three parts: the user, the endpoint, and the value that the client sent as the key. The key identifies an
// [Operation], such as one payment. An operation may take several requests.
//
// A request claims its key in the [Store], in one atomic step. A request that gets the [Claim] owns the operation and
// runs the handler: one run is an attempt. Any other request gets the [Record] with the state of the operation:
//
//   - Completed: the stored answer is sent again, as a replay.
//   - Running: the request is refused as in progress, or waits (Options.Wait).
//   - Abandoned: Options.Abandoned decides, as explained below.
//
// A record has the [Fingerprint] of its request, a digest of the content. A request with the same key and another
// fingerprint is refused, because the client has reused the key. All terms are explained at
// https://github.com/idempotency-go/idempotency/blob/main/docs/guarantees.md#words.
//
// A claim has a lease: the claim ends after a time, unless the owner renews the lease. The owner renews the lease for
// as long as the handler runs. If the process dies, the lease lapses within Options.Lease, and the operation is
// abandoned. With [ReExecute], the next request takes over, with the next attempt number. With [Refuse], the next
// request is refused.
//
// An owner can lose its claim, for instance because its machine was paused. The context of the handler is then
// cancelled with the cause [ErrClaimLost], if possible a sixteenth of the lease before the lease ends. Once another
// attempt has taken over, the late owner cannot store its answer, because the store compares the secret token of the
// claim.
//
// # The answer
//
// The handler's answer is recorded as a [Response], and stored before the first byte is sent. The same function sends
// the first answer and every replay, so both are equal. The Response has only the header fields that the handler has
// changed. A replay adds these fields to the fields that outer middleware has set for the new request, such as a
// request ID or CORS. A replay is marked with "Idempotent-Replayed: true".
//
// Some answers leave the operation open. Options.Storable reports whether an answer is stored, and the default,
// [DefaultStorable], stores no answers that say "try again". The handler can call [Decide] with a verdict, and the
// verdict overrides Storable. An answer that is not stored is sent all the same, and the claim is released, so that the
// operation may be tried again. But with [Refuse], an attempt that panicked, gave up or decided [Unknown] leaves the
// operation abandoned, as after a crash: the lease ends at once, and the next request is refused.
//
// The store may fail to take an answer within Options.StoreTimeout. The client then gets the answer all the same,
// because the handler's effects exist, and the answer is stored later in the background. Call [Middleware.Shutdown]
// before the program ends.
//
// # The context of the handler
//
// The context outlives the client: the handler goes on, and a retry gets the answer. The context ends at the deadline
// of the request's context, when the claim is lost, and when the handler has returned. Further cancellations of the
// request's context have no effect. With Options.CancelWithClient or Options.Stream, the handler's context also ends
// with the request's context.
//
// A handler gives up by returning without an answer after the context has ended. Nothing is stored or written then, so
// that outer middleware can answer. But if the claim was lost, the request is refused as in progress. An attempt that
// gave up is treated like an attempt that panicked.
//
// # What a lease can and cannot do
//
// Of any number of concurrent and later requests with one key, the handler runs for one at a time. Once the answer is
// stored, the handler does not run again until the record expires.
//
// Effects are what the handler does outside of itself, such as charging a card. No lease can promise that effects
// happen exactly once. If the process dies after the effect and before the answer is stored, the next attempt cannot
// know whether the effect took place. [ReExecute] runs the handler again, so effects happen at least once. [Refuse]
// refuses the request, so effects happen at most once. There are two further limits:
//
//   - Effects may happen twice if the store forgets records that the store has acknowledged. [RedisStore.Check]
//     reports settings that allow such a loss.
//   - A late owner may still act on other systems. The token of the claim protects only the record.
//
// A handler can do better by dividing its work into steps, see package step: the next attempt goes on where the last
// attempt stopped. Rows in the database of the store are written exactly once by a step, because rows and result are
// committed together: see DoTx of modules pgxstore, mysqlstore and sqlitestore.
//
// Operation.ID follows from user, endpoint and key, so every attempt has the same ID, even if the store was down or has
// lost the record. The ID can be stored with the effect under a unique constraint. [Operation.DownstreamKey] derives an
// idempotency key for further systems from the ID.
//
// # Where to mount the middleware
//
//   - Inside authentication, because the middleware must tell the users apart. Otherwise one user may get the answer
//     to another.
//   - Inside the router, because redirects and 404s of the router are no answers of the handler.
//   - Inside middleware that acts on each request, such as compression, CORS, rate limits and http.TimeoutHandler.
//   - Outside everything that reads the request body.
//
// [Middleware.Handler] has the signature that routers expect of a middleware.
//
// # Without HTTP
//
// [Runner] does the same without HTTP: see [NewRunner], [RunnerOptions], [Runner.Do] and [DoJSON]. Adapters also use
// [ParseKey] and [Decided]. Package client adds keys to requests and retries the requests.
//
// # For operators
//
// Packages resolve and console, and the command idempotency, are built on these names:
//
//   - [Inspector] shows the [Entry] of an operation, with its [State], with the [EndReason] of the last attempt, and
//     with a [StepSize] for each step. List takes a [ListRequest] with a [ListOrder], and returns a [Listing] with a
//     [Total] for each state.
//   - [Resolver] ends an abandoned operation by a [Resolution]. The record keeps the resolution as [Resolved]; see
//     also [MaxOperator], [ErrNoRecord] and [ErrEntryChanged].
//   - [RedisStore.Check] reports each [UnsafeSetting] of the server, and [Findings] splits the report.
//
// # For authors of stores
//
// Only authors of stores and of wrappers around stores need the rest. Package idempotencytest checks a store against
// this contract, and also checks whether the routes of a service are guarded.
//
//   - [Store] and [Claim] are the contract. [Store.Begin] gets a [ClaimRequest], returns a [Record], and may fail
//     with a [ClaimInDoubtError]. [Claim].Release gets a [Release].
//   - [Checkpointer] adds steps, with [RecordLost]; [TxCheckpointer] adds steps in transactions, with [TxStep].
//   - [Validator] and [Immediate] describe a store. [As] finds an ability through wrappers.
//   - [Response.MarshalBinary], [NewFields], [ParseFields] and [Key.OperationID] are the stored forms.
//   - Stores return [ErrRestored], [ErrStoreFull], [ErrStoreBusy], [ErrUserQuota], [ErrClaimLost] and
//     [ErrRecordInvalid].
package idempotency
