package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// UserFunc returns the ID of the authenticated caller of a request. Different users never share a key. If the ID is
// empty or UserFunc fails, the request is refused with 401 user-unknown.
//
// If the error is or wraps an [*Error], the client gets that Error: for example 503 because authentication is down, or
// 401 with a WWW-Authenticate field of a scheme other than Bearer. The error passed to ErrorHandler and [Observer]
// wraps both the returned error and [ErrUserUnknown], whatever the status.
type UserFunc func(*http.Request) (string, error)

// SingleUser is the UserFunc of a service with a single caller, or of a service without a way to tell its callers
// apart. In the latter case all callers share their keys, so one caller could get the answer to another. Set
// Options.MaxUserBodies to MaxBodies, because the single user need not leave room for others.
func SingleUser(*http.Request) (string, error) { return "single", nil }

// Middleware makes handlers safe to retry. A Middleware is safe for concurrent use.
type Middleware struct {
	runner         *Runner
	inspector      Inspector // for Status; nil if the store has none
	userFunc       UserFunc
	opts           Options
	eventReporter  *eventReporter
	unstoredFields unstoredFields
	bodyBudget     bounds.Shares // bytes of request bodies
}

// New returns a Middleware that keeps its records in store and calls user to get the caller of each guarded request.
// The error lists all faults of the options, including the options of the store.
func New(store Store, user UserFunc, opts Options) (*Middleware, error) {
	opts = opts.withDefaults()
	runner, err := NewRunner(store, opts.runnerOptions())
	err = errors.Join(err, opts.validate())
	if user == nil {
		err = errors.Join(err, errors.New("idempotency: UserFunc is nil: use SingleUser if there is one caller only"))
	}
	inspector, missing := findAbility[Inspector](store, "Status")
	if opts.KeyInfo.StatusURL != "" {
		err = errors.Join(err, missing)
	}
	if err != nil {
		return nil, err
	}
	runner.waitingRequests.userShares = bounds.Shares{Total: math.MaxInt64, Each: maxWaitingPerUser}
	runner.readsRemaining = opts.KeyInfo.KeptUntilField != ""
	return &Middleware{
		runner: runner, inspector: inspector, userFunc: user, opts: opts, eventReporter: &runner.eventReporter,
		unstoredFields: newUnstoredFields(slices.Concat(opts.OmitHeaders, opts.KeyInfo.fieldNames())),
		bodyBudget:     bounds.Shares{Total: cmp.Or(opts.MaxBodies, math.MaxInt64), Each: opts.MaxUserBodies},
	}, nil
}

// maxWaitingPerUser bounds how many HTTP requests of one user wait at a time. Each waiting request holds a connection
// and a header, and the header may be large.
const maxWaitingPerUser = 128

// Shutdown waits until the answers that the store did not take in time are stored, and until the claims are released
// for which the store's reply was lost, as [Runner.Shutdown] does. Call Shutdown after [http.Server.Shutdown], and
// before closing the client of the store.
func (m *Middleware) Shutdown(ctx context.Context) error { return m.runner.Shutdown(ctx) }

// Handler guards next. Routers such as chi and gorilla/mux take the method value m.Handler as a middleware.
//
// Mount the guarded handler inside authentication, because the Middleware has to know the user, and inside the router,
// because redirects and 404s of the router are no answers of next. Outer middleware must leave the request body unread.
// Requests with an unguarded method reach next untouched, and so do requests without a key unless Required is set. If
// a handler is guarded twice with the same store, the inner Middleware passes a request with the same key through.
//
// The context of next outlives the client, see Options.CancelWithClient. If the context has ended and next returns
// without writing, the Middleware stores and writes nothing, so that outer middleware can answer, unless the handler has
// decided Keep or Tombstone, which completes the operation. But if the context ended because the claim was lost, the
// request is refused with in-progress.
//
// The frameworks echo and gin answer after their handlers have returned. If next writes nothing inside echo or gin, the
// Middleware stores and writes nothing, so that the framework can answer, and warns the Logger. Keep and Tombstone store
// status 200. Use the adapters echoidempotency, echo4idempotency and ginidempotency instead, because the adapters record
// every kind of answer.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	methods, headers := m.opts.Methods, m.opts.Headers
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		if !m.opts.Required && !hasKey(r.Header, headers) {
			next.ServeHTTP(w, r)
			return
		}
		if key, err := m.serveGuarded(next, w, r); err != nil {
			m.writeRefusal(w, r, key, err)
		}
	})
}

// serveGuarded answers a guarded request, or returns the key, if it is known, and an error for the caller to answer.
// serveGuarded does the cheapest checks first: the header, next the body, and at last the record in the store.
func (m *Middleware) serveGuarded(next http.Handler, w http.ResponseWriter, r *http.Request) (key Key, refusal error) {
	key, err := m.readKey(r, r)
	if err != nil {
		return key, m.rejectRequest(r, key, err)
	}
	if isWithinOperation(r.Context(), m.runner.store, key) { // an outer Middleware guards the request already
		next.ServeHTTP(w, r)
		return key, nil
	}
	e := exchangePool.Get().(*exchange)
	e.middleware, e.next, e.w, e.r = m, next, w, r
	e.runner, e.key, e.ctx = m.runner, key, r.Context()
	defer e.close()
	if err := e.readFingerprint(); err != nil {
		return key, m.rejectRequest(r, key, err)
	}
	replay, err := e.admitRequest()
	switch {
	case err != nil:
		return key, err
	case replay != nil:
		return key, e.sendReplay(replay)
	default:
		return key, e.executeHandler()
	}
}

// rejectRequest reports a request that is refused before the store is asked, and returns the refusal.
func (m *Middleware) rejectRequest(r *http.Request, key Key, err error) error {
	m.eventReporter.deliverEvent(r.Context(), &Event{Outcome: OutcomeRejected, Key: key, Err: err})
	return refusalFor(err)
}

// writeRefusal sets the problem type, the instance, the address of Status, and the status of a reused key, in a copy of
// the refusal, and passes the copy to ErrorHandler.
func (m *Middleware) writeRefusal(w http.ResponseWriter, r *http.Request, key Key, err error) {
	refusal := *refusalFor(err) // a copy, because the service may share one Error among requests
	refusal.Type = cmp.Or(refusal.Type, problemType(m.opts.ProblemBase, refusal.Code))
	if key != (Key{}) {
		refusal.Instance = cmp.Or(refusal.Instance, "urn:uuid:"+key.OperationID().String())
	}
	if errors.Is(err, ErrKeyReused) {
		refusal.Status = m.opts.ReuseStatus
	}
	if m.opts.KeyInfo.StatusURL != "" && (errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotReplayable)) {
		refusal.StatusURL = cmp.Or(refusal.StatusURL, m.opts.KeyInfo.questionURL(r))
	}
	m.opts.ErrorHandler(w, r, &refusal)
}

// readKey returns the key with the ID and the user of request r and the endpoint of request target, or the reason to
// refuse r.
func (m *Middleware) readKey(r, target *http.Request) (Key, error) {
	id, err := findKey(r.Header, m.opts.Headers)
	if err != nil {
		return Key{}, err
	}
	if m.opts.ValidateKey != nil {
		if err := m.opts.ValidateKey(id); err != nil {
			return Key{}, &keyError{err}
		}
	}
	user, err := m.userFunc(r)
	if err != nil {
		return Key{}, refuseAs(ErrUserUnknown, err)
	}
	if user == "" {
		return Key{}, ErrUserUnknown
	}
	return newKey(target, user, id, m.opts.Endpoint), nil
}

// exchange carries a guarded request through admission, attempt, settlement and answer. Afterwards the exchange
// goes back to exchangePool, and its buffers go back to the pools of package bounds.
type exchange struct {
	middleware  *Middleware
	next        http.Handler
	w           http.ResponseWriter
	r           *http.Request
	requestBody *bounds.Buffer

	settlement      // with the admission, the attempt and its outcome
	*handlerState   // nil if the request runs no handler
	answerRecorder  answerRecorder
	overflowSettler overflowSettler
}

// handlerState holds everything that a handler or the server may use after the request has ended. For that reason a
// handlerState never goes back to a pool.
type handlerState struct {
	attempt      attempt
	answerWriter answerWriter
	bodyReader   bodyReader
	headerValues [8]string // memory for the first values of the header; the server keeps the values
}

var exchangePool = sync.Pool{New: func() any { return new(exchange) }}

// close ends the handler's access to the request body and to the answer, because the handler may have left goroutines
// behind. After that the buffers are free for the next request.
func (e *exchange) close() {
	e.releaseBody()
	if e.handlerState != nil {
		e.answerWriter.close()
		e.answerRecorder.bodyState.buffer.Free()
	}
	*e = exchange{}
	exchangePool.Put(e)
}

// releaseBody ends the handler's access to the request body and gives the buffer back. The exchange releases the body
// before sending an answer from memory, because a client that reads slowly must leave the budget for bodies to other requests.
func (e *exchange) releaseBody() {
	if e.handlerState != nil {
		e.bodyReader.Close()
	}
	if e.requestBody != nil {
		e.middleware.bodyBudget.GiveBack(e.key.User, int64(cap(e.requestBody.B)))
		e.requestBody.Free()
	}
	e.requestBody = nil
}

// readFingerprint reads the request body and computes the fingerprint. The body stays in memory until releaseBody,
// because the handler reads the body again.
func (e *exchange) readFingerprint() error {
	var err error
	e.requestBody, err = readBody(e.r, e.middleware.opts.MaxBody, &e.middleware.bodyBudget, e.key.User)
	switch {
	case err != nil:
		return err
	case isBodyConsumed(e.r, len(e.requestBody.B)):
		return ErrBodyConsumed
	}
	fp, err := e.middleware.opts.Fingerprint(e.r, e.requestBody.B)
	if err != nil {
		return refuseAs(ErrBodyInvalid, err)
	}
	e.fingerprint = fp.withSelectors(e.r.Header, e.middleware.opts.FingerprintHeaders)
	return nil
}

// sendReplay sends the stored response, unless the request may not get the response.
func (e *exchange) sendReplay(replay *Response) (refusal error) {
	if err := e.checkReplay(replay); err != nil {
		return e.refuseRequest(outcomeOf(err), err)
	}
	e.reportEvent(e.ctx)
	e.releaseBody()
	e.middleware.opts.KeyInfo.setFields(e.w.Header(), e.record.Created, e.record.Remaining)
	e.middleware.unstoredFields.filterResponse(replay).sendAsReplay(e.w)
	return nil
}

// checkReplay returns an error if the stored response is damaged, or if Options.Replay denies the request the
// response.
func (e *exchange) checkReplay(replay *Response) error {
	if err := replay.checkSendable(e.r.Method); err != nil {
		return fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	if e.middleware.opts.Replay == nil {
		return nil
	}
	reader := new(bodyReader) // separate from the handler's reader, because no handler runs
	defer reader.Close()
	r := e.requestWithBody(e.ctx, reader)
	defer e.adoptForm(r)
	return e.middleware.askReplay(r, e.middleware.unstoredFields.filterResponse(replay))
}

// askReplay returns a refusal if Options.Replay denies request r the answer.
func (m *Middleware) askReplay(r *http.Request, answer *Response) (refusal error) {
	if m.opts.Replay == nil {
		return nil
	}
	if err := m.opts.Replay(r, answer); err != nil {
		return refuseAs(ErrReplayRefused, err)
	}
	return nil
}

// setFields sets the fields of an answer that is stored. The operation began at began, and the store keeps the record
// for remaining. A zero is unknown.
func (i KeyInfo) setFields(h http.Header, began time.Time, remaining time.Duration) {
	if i.BeganField != "" && !began.IsZero() {
		h[i.BeganField] = []string{began.UTC().Format(http.TimeFormat)}
	}
	if i.KeptUntilField != "" && remaining > 0 {
		h[i.KeptUntilField] = []string{time.Now().Add(remaining).UTC().Format(http.TimeFormat)}
	}
}

// requestWithBody returns a copy of the request with ctx. The body of the copy is reader, which begins with the first
// byte of the request body.
func (e *exchange) requestWithBody(ctx context.Context, reader *bodyReader) *http.Request {
	r := e.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		reader.unreadBody = e.requestBody.B
		r.Body = reader
	}
	return r
}

// adoptForm copies the multipart form from r, a copy of the request, to the original. The server removes the temporary
// files of the original's form only.
func (e *exchange) adoptForm(r *http.Request) { e.r.MultipartForm = r.MultipartForm }

// executeHandler runs the handler and answers the request. The answer follows from the claim and from the ending of the
// handler:
//
//	claim lost                            the refusal, unless a part of the answer was sent before
//	gave up, because the claim was lost   in-progress
//	gave up for another reason            nothing: outer middleware answers, as for a request without a key
//	left to the framework                 the framework's answer
//	truncated, answered                   the handler's answer
func (e *exchange) executeHandler() error {
	e.prepareRecorder()
	ctx, cancel := e.handlerContext()
	defer cancel()
	refusal := e.executeAttempt(ctx, e.serveHandler)
	refusal = cmp.Or(refusal, e.answerRecorder.overflowRefusal) // set while the handler ran
	switch {
	case refusal != nil && e.answerRecorder.isSending: // too late for a refusal
		return nil
	case refusal != nil:
		return refusal
	case e.outcome.ending == endingGaveUp && e.outcome.giveUpCause == ErrClaimLost:
		return ErrClaimLost
	case e.outcome.ending == endingGaveUp:
		<-e.r.Context().Done() // outer middleware must find its context ended, whose timer may fire a moment later
		e.answerByFramework()
	case e.outcome.ending == endingLeftToFramework:
		e.answerByFramework()
	default:
		e.answerRecorder.sendRemaining()
	}
	return nil
}

// answerByFramework lets a framework like echo or gin answer. The framework finds the header as the handler has left
// it.
func (e *exchange) answerByFramework() {
	if answersAfterHandler(e.w) {
		e.answerRecorder.setHeader()
		e.answerWriter.passThrough()
	}
}

// handlerContext returns the context of the handler. With CancelWithClient or Stream, the context ends with the
// request. Otherwise the context outlives the client, and ends at a deadline of outer middleware.
func (e *exchange) handlerContext() (context.Context, context.CancelFunc) {
	if e.middleware.opts.CancelWithClient || e.middleware.opts.Stream {
		return e.ctx, func() {}
	}
	detached := e.detachedContext()
	if deadline, ok := e.ctx.Deadline(); ok {
		return context.WithDeadline(detached, deadline)
	}
	return detached, func() {}
}

// prepareRecorder makes the handlerState, whose attempt executeAttempt uses, and connects the writer of the handler with the
// recorder, and the recorder with the settlement.
func (e *exchange) prepareRecorder() {
	e.handlerState = new(handlerState)
	e.settlement.attempt = &e.handlerState.attempt
	e.overflowSettler = overflowSettler{
		&e.settlement, answerJudge{&e.middleware.opts, e.middleware.unstoredFields, e.w, e.r.Method},
	}
	rec := &e.answerRecorder
	rec.w, rec.r, rec.overflowSettler = e.w, e.r, &e.overflowSettler
	opts := &e.middleware.opts
	rec.rules = recorderRules{unstoredFields: e.middleware.unstoredFields, bodyLimit: opts.MaxResponse, isStreamed: opts.Stream}
	rec.bodyState.buffer, rec.headState.valueBuffer = bounds.NewBuffer(sendThreshold), e.headerValues[:0]
	e.answerWriter.outerWriter, e.answerWriter.answerRecorder = e.w, rec
}

// serveHandler runs the handler and judges the answer. executeAttempt calls serveHandler once: for the owner of the
// operation, or without a claim if FailOpen allows an unprotected run.
func (e *exchange) serveHandler(ctx context.Context) {
	defer e.answerWriter.close()
	r := e.requestWithBody(ctx, &e.bodyReader)
	defer e.adoptForm(r)
	e.next.ServeHTTP(&e.answerWriter, r)
	e.releaseBody()

	answer, wrote, isComplete := e.answerWriter.finishRecording()
	if e.outcome.recordAction == actionComplete { // overflowSettler has decided to complete the record: later events do not count
		return
	}
	verdict := e.operation.loadVerdict()
	outcome := &e.outcome
	outcome.answer = answer
	if !wrote && !verdict.completesOperation() {
		outcome.giveUpCause = context.Cause(ctx)
	}
	switch {
	case outcome.giveUpCause != nil:
		outcome.ending = endingGaveUp
	case !wrote && answersAfterHandler(e.w):
		outcome.ending = endingLeftToFramework
	case !isComplete:
		outcome.ending = endingTruncated
	default:
		outcome.ending = endingAnswered
	}
	e.overflowSettler.answerJudge.judgeAnswer(outcome, verdict)
}

// ending is the way in which a handler ended.
type ending int8

const (
	endingInterrupted     ending = iota // the handler panicked or called runtime.Goexit
	endingGaveUp                        // the handler returned without an answer, after the context had ended
	endingLeftToFramework               // the handler returned without an answer, inside a framework like echo or gin
	endingTruncated                     // the answer is shorter than its Content-Length
	endingAnswered
)

// These errors say why an answer does not complete the operation.
var (
	errGaveUp      = errors.New("idempotency: the handler returned without an answer after its context had ended")
	errTruncated   = errors.New("idempotency: the answer is shorter than its Content-Length")
	errNotStorable = errors.New("idempotency: the answer is not storable")
	errNotKept     = errors.New("idempotency: the handler decided not to keep its answer")
)

// answerJudge decides from the handler's answer how the attempt leaves the record.
type answerJudge struct {
	opts           *Options
	unstoredFields unstoredFields
	w              http.ResponseWriter
	requestMethod  string
}

// judgeAnswer chooses the action on the record, and the response to store, by the ending of the handler and the
// verdict:
//
//	ending \ verdict                  none       Keep, Tombstone   Free    Unknown
//	interrupted (crashOutcome)        abandon    abandon           abandon abandon
//	gave up                           abandon    never             free    abandon
//	left to the framework             abandon    store status 200  free    abandon
//	truncated                         release    store the status  free    abandon
//	answered, Storable                complete   complete          free    abandon
//	answered, a refusal by status     free       complete          free    abandon
//	answered, anything else           release    complete          free    abandon
//
// A handler that returns without an answer after the verdict Keep or Tombstone has answered with status 200 and no
// body. If Storable panics, the action stays complete, because the panic says nothing about the operation, also for an
// answer that is too large, which is judged while the handler is still writing.
func (j *answerJudge) judgeAnswer(outcome *attemptOutcome, verdict Verdict) {
	outcome.storedResponse = j.makeStoredResponse(outcome, verdict)
	outcome.status, outcome.recordAction, outcome.notStoredCause = outcome.answer.Status, actionComplete, nil
	outcome.recordAction, outcome.notStoredCause = j.chooseAction(outcome, verdict)
	if outcome.ending == endingLeftToFramework && outcome.recordAction != actionComplete { // the framework answers later
		// After a verdict, a 4xx of the framework is no fault of the mounting, so the Logger is not warned.
		outcome.status, outcome.hadNoEffect = 0, verdict != undecided && hasRefusalStatus(j.w)
	}
}

// chooseAction returns the action on the record and, unless the answer is stored, the reason.
func (j *answerJudge) chooseAction(outcome *attemptOutcome, verdict Verdict) (recordAction, error) {
	switch {
	case verdict.completesOperation():
		return actionComplete, nil
	case verdict == Free:
		return actionFree, errNotKept
	case verdict == Unknown:
		return actionAbandon, errNotKept
	case outcome.ending == endingGaveUp:
		return actionAbandon, errGaveUp
	case outcome.ending == endingLeftToFramework:
		return actionAbandon, errLeftToFramework
	case outcome.ending == endingTruncated:
		return actionRelease, errTruncated
	case j.opts.Storable(&outcome.answer):
		return actionComplete, nil
	case isRefusalStatus(outcome.answer.Status):
		return actionFree, errNotStorable
	default:
		return actionRelease, errNotStorable
	}
}

// makeStoredResponse returns the response to store if the action is complete. As a side effect, the answer for Storable
// loses unstored trailer fields, and a body that cannot be stored whole. The answer to the client keeps both.
func (j *answerJudge) makeStoredResponse(outcome *attemptOutcome, verdict Verdict) Response {
	answer := &outcome.answer
	answer.Trailer = j.unstoredFields.stripFields(answer.Trailer)
	if outcome.ending != endingAnswered || !j.canStoreWhole(answer) {
		answer.Body, answer.Omitted = nil, true
	}
	if answer.Omitted || verdict == Tombstone {
		return answer.toTombstone()
	}
	return *answer
}

// maxFieldBytes bounds the stored header and trailer together. Servers and clients seldom accept more.
const maxFieldBytes = 64 << 10

// canStoreWhole reports whether the answer can be stored whole and sent again. Two kinds of answers could be stored but
// would be refused as a replay: a 101, because the connection goes on in another protocol, and an answer with an
// invalid Content-Length. Only the latter needs the full check, so the check runs only if the header or the trailer
// mentions a Content-Length.
func (j *answerJudge) canStoreWhole(answer *Response) bool {
	hasLength := strings.Contains(string(answer.Header), "Content-Length") ||
		strings.Contains(string(answer.Trailer), "Content-Length")
	return int64(len(answer.Body)) <= j.opts.MaxResponse && len(answer.Header)+len(answer.Trailer) <= maxFieldBytes &&
		answer.Status >= 200 && (!hasLength || answer.checkSendable(j.requestMethod) == nil)
}

// overflowSettler settles the claim of an answer that is too large to store, before the first byte of the answer is
// sent. A crash after the first byte must leave a completed record, because the client may have seen a part of the
// answer.
type overflowSettler struct {
	settlement  *settlement
	answerJudge answerJudge
}

// setKeyInfo sets the fields of KeyInfo for a first answer that the store has.
func (v *overflowSettler) setKeyInfo(h http.Header) {
	if s := v.settlement; s.event.Outcome == OutcomeExecuted || s.event.Outcome == OutcomeRestored {
		v.answerJudge.opts.KeyInfo.setFields(h, s.record.Created, s.runner.opts.TTL)
	}
}

// settleOverflow completes the record with the status of the answer if the answer completes the operation. Otherwise,
// with Stream, or without a claim, the outcome stays crashOutcome until the handler ends. A refusal means that the
// attempt has lost the claim, and nothing may be sent.
func (v *overflowSettler) settleOverflow(answer Response) (refusal error) {
	s := v.settlement
	if s.claim == nil || v.answerJudge.opts.Stream {
		return nil
	}
	s.outcome.answer, s.outcome.ending = answer, endingAnswered
	v.answerJudge.judgeAnswer(&s.outcome, s.operation.loadVerdict())
	if s.outcome.recordAction != actionComplete {
		s.outcome = crashOutcome
		return nil
	}
	defer s.endSteps() // the handler goes on writing, but the operation is completed
	s.event.Status = s.outcome.status
	return s.completeRecord()
}
