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

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// UserFunc returns the ID of the authenticated caller of a request. Different users never share a key. An error or an
// empty ID refuses the request with user-unknown.
//
// If the error is or wraps an [*Error], that is the answer: for example 503 if authentication is down, or 401 with a
// WWW-Authenticate field of another scheme than Bearer. The error that ErrorHandler and [Observer] get wraps both the
// returned error and [ErrUserUnknown], whatever the status.
type UserFunc func(*http.Request) (string, error)

// SingleUser is the UserFunc of a service that has one caller only, or that cannot tell its callers apart. If there are
// several callers, they share their keys, and one may get the answer to another. Set Options.MaxUserBodies to MaxBodies,
// because there is no other user to leave room for.
func SingleUser(*http.Request) (string, error) { return "single", nil }

// Middleware makes handlers safe to retry. It is safe for concurrent use.
type Middleware struct {
	runner   *Runner
	user     UserFunc
	opts     Options
	events   *reporter
	unstored unstoredFields
	bodies   bounds.Shares // bytes of request bodies
}

// New returns a Middleware that keeps its records in store and calls user for the caller of each guarded request.
// The error reports every fault at once, also those of the store's own options.
func New(store Store, user UserFunc, opts Options) (*Middleware, error) {
	opts = opts.withDefaults()
	runner, err := NewRunner(store, opts.runner())
	err = errors.Join(err, opts.validate())
	if user == nil {
		err = errors.Join(err, errors.New("idempotency: UserFunc is nil: use SingleUser if there is one caller only"))
	}
	if err != nil {
		return nil, err
	}
	runner.waiters.shares = bounds.Shares{Total: math.MaxInt64, Each: mostWaiting}
	return &Middleware{
		runner: runner, user: user, opts: opts, events: &runner.events, unstored: newUnstoredFields(opts.OmitHeaders),
		bodies: bounds.Shares{Total: cmp.Or(opts.MaxBodies, math.MaxInt64), Each: opts.MaxUserBodies},
	}, nil
}

// mostWaiting bounds the HTTP requests of one user that wait at a time: each of them holds a connection and a header, which
// may be large.
const mostWaiting = 128

// Shutdown waits for the answers that the store did not take in time, and for the claims that are still to be released,
// as [Runner.Shutdown] does. Call it after [http.Server.Shutdown], and before you close the client of the store.
func (m *Middleware) Shutdown(ctx context.Context) error { return m.runner.Shutdown(ctx) }

// Handler guards next. Routers such as chi and gorilla/mux take the method value m.Handler as a middleware.
//
// Mount it inside authentication, which tells the users apart. Mount it inside the router, because the router's own
// answers (redirects, 404) are not the handler's. Nothing outside of it may read the request body. Requests of other
// methods reach next untouched. So do requests without a key, unless Required is set. A handler that is guarded twice,
// with the same store and key, runs once.
//
// The context of next outlives the client, see Options.CancelWithClient. If that context has ended and next returns
// without writing, nothing is stored. Nothing is written either, so that outer middleware can answer. If the claim was
// lost, however, the request is refused with in-progress.
//
// The frameworks echo and gin answer after their handlers have returned. If next writes nothing inside one of them,
// nothing is stored or written, so that the framework can answer, and the Logger is told. Use the adapters
// echoidempotency, echo4idempotency and ginidempotency: with them, every way to answer is recorded.
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
		if err := m.serve(next, w, r); err != nil {
			m.writeRefusal(w, r, err)
		}
	})
}

// serve answers a guarded request, unless it returns an error to be answered. What can be known from the header is
// checked before the body is read, and the body before the store is asked.
func (m *Middleware) serve(next http.Handler, w http.ResponseWriter, r *http.Request) error {
	key, err := m.key(r)
	if err != nil {
		return m.reject(r, key, err)
	}
	if carriesOut(r.Context(), m.runner.store, key) {
		next.ServeHTTP(w, r)
		return nil
	}
	e := exchanges.Get().(*exchange)
	e.m, e.next, e.w, e.r = m, next, w, r
	e.runner, e.key, e.ctx = m.runner, key, r.Context()
	defer e.close()
	if err := e.readFingerprint(); err != nil {
		return m.reject(r, key, err)
	}
	replay, err := e.admit()
	switch {
	case err != nil:
		return err
	case replay != nil:
		return e.sendReplay(replay)
	default:
		return e.execute()
	}
}

// reject reports and returns why a request is refused before the store is asked.
func (m *Middleware) reject(r *http.Request, key Key, err error) error {
	m.events.report(r.Context(), &Event{Outcome: OutcomeRejected, Key: key, Err: err})
	return refusalFor(err)
}

func (m *Middleware) writeRefusal(w http.ResponseWriter, r *http.Request, err error) {
	refusal := *refusalFor(err) // which may be an Error of the service's, that other requests get, too
	refusal.Type = cmp.Or(refusal.Type, typeOf(m.opts.ProblemBase, refusal.Code))
	if errors.Is(err, ErrKeyReused) {
		refusal.Status = m.opts.ReuseStatus
	}
	m.opts.ErrorHandler(w, r, &refusal)
}

func (m *Middleware) key(r *http.Request) (Key, error) {
	id, err := findKey(r.Header, m.opts.Headers)
	if err != nil {
		return Key{}, err
	}
	if m.opts.ValidateKey != nil {
		if err := m.opts.ValidateKey(id); err != nil {
			return Key{}, &keyError{err}
		}
	}
	user, err := m.user(r)
	if err != nil {
		return Key{}, refuseAs(ErrUserUnknown, err)
	}
	if user == "" {
		return Key{}, ErrUserUnknown
	}
	return newKey(r, user, id, m.opts.Endpoint), nil
}

// exchange is a guarded request and its answer: first its admission, then an attempt and the settlement of its outcome, at last the
// answer. The exchange serves the next request after its end, and so do its buffers.
type exchange struct {
	m    *Middleware
	next http.Handler
	w    http.ResponseWriter
	r    *http.Request
	body *bounds.Buffer // of the request

	settlement
	*handed  // nil: no handler runs
	recorder recorder
	overflow overflow
}

// handed is what a handler or the server gets, and may keep for as long as it likes.
type handed struct {
	attempt attempt
	writer  writer
	reader  bodyReader
	values  [8]string // of the header
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// close takes everything away from the handler, which may have left goroutines behind.
func (e *exchange) close() {
	e.dropBody()
	if e.handed != nil {
		e.writer.close()
		e.recorder.body.buffer.Free()
	}
	*e = exchange{}
	exchanges.Put(e)
}

// dropBody takes the body of the request away from the handler, and gives its buffer back. That is done before the answer goes
// out, because a client that reads slowly must not use up the budget of bodies.
func (e *exchange) dropBody() {
	if e.handed != nil {
		e.reader.Close()
	}
	if e.body != nil {
		e.m.bodies.GiveBack(e.key.User, int64(cap(e.body.B)))
		e.body.Free()
	}
	e.body = nil
}

// readFingerprint reads the body of the request and computes the fingerprint, which tells the request from others with its key.
func (e *exchange) readFingerprint() error {
	var err error
	e.body, err = readBody(e.r, e.m.opts.MaxBody, &e.m.bodies, e.key.User)
	switch {
	case err != nil:
		return err
	case consumed(e.r, len(e.body.B)):
		return ErrBodyConsumed
	}
	fp, err := e.m.opts.Fingerprint(e.r, e.body.B)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBodyInvalid, err)
	}
	e.fingerprint = fp.withSelectors(e.r.Header, e.m.opts.FingerprintHeaders)
	return nil
}

// sendReplay sends the stored response, unless the request may not get it.
func (e *exchange) sendReplay(replay *Response) (refusal error) {
	if err := e.checkReplay(replay); err != nil {
		return e.refuse(outcomeOf(err), err)
	}
	e.report(e.ctx)
	e.dropBody()
	e.m.unstored.filter(replay).replay(e.w)
	return nil
}

// checkReplay returns the refusal of a request that may not be answered with a response from the store.
func (e *exchange) checkReplay(replay *Response) error {
	if err := replay.check(e.r.Method); err != nil {
		return fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	if e.m.opts.Replay == nil {
		return nil
	}
	reader := new(bodyReader) // not the handler's
	defer reader.Close()
	r := e.withBody(e.ctx, reader)
	defer e.takeForm(r)
	if err := e.m.opts.Replay(r, e.m.unstored.filter(replay)); err != nil {
		return refuseAs(ErrReplayRefused, err)
	}
	return nil
}

// withBody returns the request with ctx, and with a body that is read from its start by way of reader.
func (e *exchange) withBody(ctx context.Context, reader *bodyReader) *http.Request {
	r := e.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		reader.unread = e.body.B
		r.Body = reader
	}
	return r
}

// takeForm takes over the form that was parsed in a copy of the request, so that the server removes its files.
func (e *exchange) takeForm(r *http.Request) { e.r.MultipartForm = r.MultipartForm }

// execute answers the request by running the handler. What the client gets follows from what became of the claim, and
// from how the handler ended:
//
//	claim was lost                        the refusal that says so, unless an answer has begun to go out
//	silent, because the claim was lost    in-progress
//	silent, because of an outer deadline  nothing: outer middleware answers, as it would without a key
//	leftOpen                              what the framework answers
//	brokenOff, answered                   the answer
func (e *exchange) execute() error {
	e.prepareRecorder()
	ctx, cancel := e.handlerContext()
	defer cancel()
	refusal := cmp.Or(e.executeAttempt(ctx, e.serveHandler), e.recorder.refused)
	switch {
	case refusal != nil && e.recorder.isSending: // there is nothing to add
		return nil
	case refusal != nil:
		return refusal
	case e.outcome.ending == silent && e.outcome.endCause == ErrClaimLost:
		return ErrClaimLost
	case e.outcome.ending == silent:
		<-e.r.Context().Done() // by its own timer, which may be a moment behind
		e.handOver()
	case e.outcome.ending == leftOpen:
		e.handOver()
	default:
		e.recorder.send()
	}
	return nil
}

// handOver lets a framework that answersLater answer, with the header as the handler has left it.
func (e *exchange) handOver() {
	if answersLater(e.w) {
		e.recorder.setHeader()
		e.writer.handOver()
	}
}

// handlerContext returns the context of the handler. Without CancelWithClient or Stream, the context outlives the client, but not a
// deadline of outer middleware.
func (e *exchange) handlerContext() (context.Context, context.CancelFunc) {
	if e.m.opts.CancelWithClient || e.m.opts.Stream {
		return e.ctx, func() {}
	}
	free := e.detachedContext()
	if deadline, ok := e.ctx.Deadline(); ok {
		return context.WithDeadline(free, deadline)
	}
	return free, func() {}
}

// prepareRecorder sets up what the handler writes to.
func (e *exchange) prepareRecorder() {
	e.handed = new(handed)
	e.settlement.attempt = &e.handed.attempt
	e.overflow = overflow{&e.settlement, answerJudge{&e.m.opts, e.m.unstored, e.w, e.r.Method}}
	rec := &e.recorder
	rec.w, rec.r, rec.overflow = e.w, e.r, &e.overflow
	rec.rules = recorderRules{unstored: e.m.unstored, limit: e.m.opts.MaxResponse, isStreamed: e.m.opts.Stream}
	rec.body.buffer, rec.head.values = bounds.NewBuffer(streamChunk), e.values[:0]
	e.writer.outer, e.writer.rec = e.w, rec
}

// serveHandler runs the handler, and judges the answer. It is called at most once: for the owner of the operation, or with FailOpen
// for a request without a claim.
func (e *exchange) serveHandler(ctx context.Context) {
	defer e.writer.close()
	r := e.withBody(ctx, &e.reader)
	defer e.takeForm(r)
	e.next.ServeHTTP(&e.writer, r)
	e.dropBody()

	answer, wrote, isWhole := e.writer.finish()
	if e.outcome.fate == fateKept { // by the overflow
		return
	}
	decided := e.operation.decided()
	o := &e.outcome
	o.answer = answer
	if !wrote && !decided.ends() {
		o.endCause = context.Cause(ctx)
	}
	switch {
	case o.endCause != nil:
		o.ending = silent
	case !wrote && answersLater(e.w):
		o.ending = leftOpen
	case !isWhole:
		o.ending = brokenOff
	default:
		o.ending = answered
	}
	e.overflow.judge.judgeAnswer(o, decided)
}

// ending says how a handler ended.
type ending int8

const (
	interrupted ending = iota // it panicked, or called runtime.Goexit
	silent                    // it returned without an answer, after its context had ended
	leftOpen                  // it returned without an answer, and a framework around it answersLater
	brokenOff                 // its answer is shorter than its Content-Length
	answered
)

// Why an answer does not end the operation.
var (
	errGaveUp      = errors.New("idempotency: handler returned without an answer after its context had ended")
	errBroken      = errors.New("idempotency: answer shorter than its Content-Length")
	errNotStorable = errors.New("idempotency: answer not storable")
	errNotKept     = errors.New("idempotency: the handler decided not to keep its answer")
)

// answerJudge decides what the answer of a handler means for the record.
type answerJudge struct {
	opts     *Options
	unstored unstoredFields
	w        http.ResponseWriter
	method   string // of the request
}

// judgeAnswer sets the fate of the record, and what is stored of the answer, from the ending of the handler and from its verdict:
//
//	ending \ verdict             none            Keep, Tombstone   Free       Unknown
//	interrupted                  unknown         unknown           unknown    unknown
//	silent                       unknown         (answered)        freed      unknown
//	leftOpen                     unknown         kept as status    freed      unknown
//	brokenOff                    failed          kept as status    freed      unknown
//	answered, Storable           kept            kept              freed      unknown
//	answered, not, refused       freed           kept              freed      unknown
//	answered, not                failed          kept              freed      unknown
//
// A handler that has decided to keep its silence has answered, with status 200 and no body. If Storable panics, the answer is kept,
// because the handler has returned.
func (j *answerJudge) judgeAnswer(o *attemptOutcome, decided Verdict) {
	o.kept = j.storedForm(o, decided)
	o.status, o.fate, o.cause = o.answer.Status, fateKept, nil
	o.fate, o.cause = j.fateOf(o, decided)
	if o.ending == leftOpen && o.fate != fateKept {
		o.status, o.isUntouched = 0, decided != undecided && turnsAway(j.w)
	}
}

// fateOf returns the fate of the record and, where the answer is not kept, the reason.
func (j *answerJudge) fateOf(o *attemptOutcome, decided Verdict) (fate, error) {
	switch {
	case decided.ends():
		return fateKept, nil
	case decided == Free:
		return fateFreed, errNotKept
	case decided == Unknown:
		return fateUnknown, errNotKept
	case o.ending == silent:
		return fateUnknown, errGaveUp
	case o.ending == leftOpen:
		return fateUnknown, errAnsweredLater
	case o.ending == brokenOff:
		return fateFailed, errBroken
	case j.opts.Storable(&o.answer):
		return fateKept, nil
	case refused(o.answer.Status):
		return fateFreed, errNotStorable
	default:
		return fateFailed, errNotStorable
	}
}

// storedForm returns what is stored of the answer if it is kept. Of the answer itself it leaves what Storable may see.
func (j *answerJudge) storedForm(o *attemptOutcome, decided Verdict) Response {
	answer := &o.answer
	answer.Trailer = j.unstored.strip(answer.Trailer)
	if o.ending != answered || !j.canKeep(answer) {
		answer.Body, answer.Omitted = nil, true
	}
	if answer.Omitted || decided == Tombstone {
		return answer.tombstone()
	}
	return *answer
}

// mostFields bounds the header and the trailer that are stored of an answer, together. Servers and clients seldom accept
// more.
const mostFields = 64 << 10

// canKeep reports whether an answer can be stored whole and sent again. An answer that would be refused as a record cannot: a
// 101, after which the connection goes on in another protocol, or two lengths that differ. Nothing else of an answer can be wrong.
func (j *answerJudge) canKeep(answer *Response) bool {
	hasLength := strings.Contains(string(answer.Header), "Content-Length") || strings.Contains(string(answer.Trailer), "Content-Length")
	return int64(len(answer.Body)) <= j.opts.MaxResponse && len(answer.Header)+len(answer.Trailer) <= mostFields &&
		answer.Status >= 200 && (!hasLength || answer.check(j.method) == nil)
}

// overflow settles the outcome of an answer that is too large to be kept whole, before its first byte is sent.
type overflow struct {
	settlement *settlement
	judge      answerJudge
}

// settle stores the status of an answer that is kept. Otherwise, or with Stream, the outcome is open until the handler ends. The error is
// the refusal of an attempt that has lost its claim: nothing may be sent.
func (v *overflow) settle(answer Response) (refusal error) {
	s := v.settlement
	if s.claim == nil || v.judge.opts.Stream {
		return nil
	}
	s.outcome.answer, s.outcome.ending = answer, answered
	v.judge.judgeAnswer(&s.outcome, s.operation.decided())
	if s.outcome.fate != fateKept {
		s.outcome = crashed
		return nil
	}
	defer s.endSteps() // although the handler goes on
	s.event.Status = s.outcome.status
	return s.completeRecord()
}
