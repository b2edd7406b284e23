package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"sync"
)

// UserFunc returns the ID of the authenticated caller of a request. Different users never share a key. An error or an
// empty ID refuses the request with user-unknown.
//
// If the error is or wraps an [*Error], that is the answer: for example 503 if authentication is down, or 401 with a
// WWW-Authenticate field of another scheme than Bearer. The error that ErrorHandler and [Observer] get wraps both the
// returned error and [ErrUserUnknown], whatever the status.
type UserFunc func(*http.Request) (string, error)

// SingleUser is the UserFunc of a service that has one caller only, or that cannot tell its callers apart. If there are
// several callers, they share their keys, and one may get the answer to another. One user may otherwise take only a
// share of MaxBodies and of the work in the background. With this function itself, the one user may take all of it.
func SingleUser(*http.Request) (string, error) { return "single", nil }

// Middleware makes handlers safe to retry. It is safe for concurrent use.
type Middleware struct {
	runner   *Runner
	user     UserFunc
	opts     Options
	events   *reporter
	unstored unstoredFields
	bodies   shares // bytes of request bodies
	waits    shares // requests that wait
	waiting  waitingBodies
}

// New returns a Middleware that keeps its records in store and calls user for the caller of each guarded request.
// The error reports every fault at once.
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
	m := &Middleware{
		runner: runner, user: user, opts: opts, events: &runner.events, unstored: newUnstoredFields(opts.OmitHeaders),
		waits: shares{total: math.MaxInt64, each: mostWaiting},
	}
	if opts.MaxBodies > 0 {
		m.bodies.total, m.bodies.each = opts.MaxBodies, opts.MaxBodies
	}
	if !isSingleUser(user) {
		m.bodies.each = min(m.bodies.each, max(opts.MaxBodies/2, room(opts.MaxBody)))
		runner.backlog.divide()
	}
	return m, nil
}

// isSingleUser reports whether user is SingleUser. Then there is nobody else to leave room for.
func isSingleUser(user UserFunc) bool {
	return reflect.ValueOf(user).Pointer() == reflect.ValueOf(SingleUser).Pointer()
}

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
// nothing is stored or written, so that the framework can answer, and the Logger is told. With a transactional store
// the request is refused with rolled-back instead. Use the adapters echoidempotency, echo4idempotency and
// ginidempotency: with them, every way to answer is recorded.
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
	e.execution.runner, e.execution.key, e.execution.request = m.runner, key, r.Context()
	e.execution.caller = e
	defer e.close()
	fp, err := e.fingerprint()
	if err != nil {
		return m.reject(r, key, err)
	}
	replay, err := e.execution.admit(fp)
	switch {
	case err != nil:
		return err
	case replay != nil:
		e.dropBody()
		m.unstored.filter(replay).replay(w)
		e.unseen = true
		return nil
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
	refusal := refusalFor(err)
	if errors.Is(err, ErrKeyReused) {
		refusal.Status = m.opts.ReuseStatus
	}
	m.opts.ErrorHandler(w, r, refusal)
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

// exchange is a guarded request and its answer. Its buffers serve the next request. The handler may keep parts of the rest
// for as long as it likes. An exchange that no handler has seen serves the next request as a whole, because a replay
// costs little else: an exchange of its own would make it about 5 % dearer over HTTP.
type exchange struct {
	m         *Middleware
	next      http.Handler
	w         http.ResponseWriter
	r         *http.Request
	body      *buffer     // of the request
	shared    *sharedBody // not nil: others that wait for the operation hold the same body
	execution execution

	recorder recorder
	writer   writer
	reader   bodyReader
	unseen   bool     // by a handler
	answer   Response // as Storable judges it
	kept     Response // what is stored of it
	outgrew  bool     // the answer is to be kept, is too large to be kept whole, and has begun to go out
	silence  error    // why the context of a handler had ended that returned without an answer
	unheard  bool     // the handler wrote nothing, and a framework answers later
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// close takes everything away from the handler, which may have left goroutines behind.
func (e *exchange) close() {
	e.dropBody()
	e.writer.close()
	if e.recorder.body != nil {
		e.recorder.body.free()
	}
	if e.unseen {
		*e = exchange{}
		exchanges.Put(e)
	}
}

// dropBody takes the body of the request away from the handler, and gives it back once nobody holds it. It is called
// before the answer goes out: a client that reads slowly must not use up the budget of bodies.
func (e *exchange) dropBody() {
	e.reader.Close()
	if e.body != nil && (e.shared == nil || e.m.waiting.leave(e.execution.key, e.shared)) {
		e.giveBodyBack()
	}
	e.body, e.shared = nil, nil
}

func (e *exchange) giveBodyBack() {
	e.m.bodies.giveBack(e.execution.key.User, int64(cap(e.body.b)))
	e.body.free()
}

// fingerprint reads the body of the request and returns what tells the request from others with its key.
func (e *exchange) fingerprint() (Fingerprint, error) {
	var err error
	e.body, err = readBody(e.r, e.m.opts.MaxBody, &e.m.bodies, e.execution.key.User)
	switch {
	case err != nil:
		return Fingerprint{}, err
	case consumed(e.r, len(e.body.b)):
		return Fingerprint{}, ErrBodyConsumed
	}
	fp, err := e.m.opts.Fingerprint(e.r, e.body.b)
	if err != nil {
		return fp, fmt.Errorf("%w: %w", ErrBodyInvalid, err)
	}
	return fp.withSelectors(e.r.Header, e.m.opts.FingerprintHeaders), nil
}

// mayWait implements caller.
func (e *exchange) mayWait() bool {
	if !e.m.waits.take(e.execution.key.User, 1) {
		return false
	}
	e.shareBody()
	return true
}

// waited implements caller.
func (e *exchange) waited() { e.m.waits.giveBack(e.execution.key.User, 1) }

// shareBody lets the request hold its body together with others that wait for the same operation.
func (e *exchange) shareBody() {
	e.shared = e.m.waiting.join(e.execution.key, e.body)
	if e.shared != nil && e.shared.buffer != e.body {
		e.giveBodyBack()
		e.body = e.shared.buffer
	}
}

// mayReplay implements caller.
func (e *exchange) mayReplay(resp *Response) error {
	if err := resp.check(e.r.Method); err != nil {
		return err
	}
	if e.m.opts.Replay == nil {
		return nil
	}
	reader := new(bodyReader) // not that of the exchange, which serves the next request
	defer reader.Close()
	r := e.withBody(e.r.Context(), reader)
	defer e.takeForm(r)
	if err := e.m.opts.Replay(r, e.m.unstored.filter(resp)); err != nil {
		return refuseAs(ErrReplayRefused, err)
	}
	return nil
}

// withBody returns the request with ctx, and with a body that is read from its start by way of reader.
func (e *exchange) withBody(ctx context.Context, reader *bodyReader) *http.Request {
	r := e.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		reader.unread = e.body.b
		r.Body = reader
	}
	return r
}

// takeForm takes over the form that was parsed in a copy of the request, so that the server removes its files.
func (e *exchange) takeForm(r *http.Request) { e.r.MultipartForm = r.MultipartForm }

// execute answers the request by running the handler.
func (e *exchange) execute() error {
	e.record()
	ctx, cancel := e.context()
	defer cancel()
	_, err := e.m.runner.execute(ctx, &e.execution, e.work)
	switch {
	case e.recorder.sending && err != nil: // there is nothing to add
		return nil
	case err != nil:
		return err
	case e.silence == ErrClaimLost:
		return e.silence
	case e.silence != nil && ctx.Err() == nil: // it was the store that ended the context
		return fmt.Errorf("%w: %w", ErrClaimLost, e.silence)
	case e.silence != nil: // outer middleware answers, as it would without a key
		<-e.r.Context().Done() // by its own timer, which may be a moment behind
		e.handOver()
		return nil
	case e.unheard && e.bound() && e.execution.operation.decided() == undecided:
		return undone()
	case e.unheard:
		e.handOver()
		return nil
	default:
		e.recorder.send()
		return nil
	}
}

// handOver lets a framework that answersLater answer, with the header as the handler has left it.
func (e *exchange) handOver() {
	if answersLater(e.w) {
		e.recorder.setHeader()
		e.writer.handOver()
	}
}

// bound reports whether the effects of the handler are bound to the record.
func (e *exchange) bound() bool { return e.execution.begun.claim != nil && !e.execution.leased() }

// context returns the context of the handler. A client that leaves decides nothing about it, but a deadline of outer
// middleware does.
func (e *exchange) context() (context.Context, context.CancelFunc) {
	ctx := e.r.Context()
	if e.m.opts.CancelWithClient || e.recorder.stream {
		return ctx, func() {}
	}
	free := e.execution.detached()
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(free, deadline)
	}
	return free, func() {}
}

// record sets up what the handler writes to.
func (e *exchange) record() {
	rec := &e.recorder
	rec.w, rec.r, rec.unstored, rec.limit, rec.body = e.w, e.r, e.m.unstored, e.m.opts.MaxResponse, newBuffer(streamChunk)
	if !e.bound() { // else not a byte may go out before the record is stored, however many there are
		rec.stream, rec.owner = e.m.opts.Stream, e
	}
	e.writer.outer, e.writer.rec = e.w, rec
}

// work runs the handler. It is called at most once: for the owner of the operation, or with FailOpen for nobody.
func (e *exchange) work(ctx context.Context) (Response, Verdict, error) {
	defer e.writer.close()
	r := e.withBody(ctx, &e.reader)
	defer e.takeForm(r)
	e.next.ServeHTTP(&e.writer, r)
	e.dropBody()

	resp, wrote, complete := e.writer.finish()
	decided := e.execution.operation.decided()
	if !wrote && !decided.ends() {
		e.silence = context.Cause(ctx)
	}
	e.unheard = !wrote && e.silence == nil && answersLater(e.w)
	e.answer = resp
	e.answer.Trailer = e.m.unstored.strip(resp.Trailer)
	if !complete || e.unheard || !e.canKeep(&e.answer) {
		e.answer.Body, e.answer.Omitted = nil, true
	}
	e.kept = e.answer
	if e.answer.Omitted || decided == Tombstone {
		e.kept = resp.tombstone()
	}
	e.execution.answered = &e.kept
	verdict, cause := e.judge(&e.answer, complete)
	if e.unheard && verdict != Keep {
		e.execution.event.untouched = decided != undecided && turnsAway(e.w)
		return Response{}, verdict, cause
	}
	return e.kept, verdict, cause
}

// mostFields bounds the header and the trailer that are stored of an answer, together. Servers and clients seldom accept
// more.
const mostFields = 64 << 10

// canKeep reports whether an answer can be stored whole and sent again. One that would be refused as a record cannot: a
// 101, after which the connection goes on in another protocol, or two lengths that differ.
func (e *exchange) canKeep(resp *Response) bool {
	return int64(len(resp.Body)) <= e.m.opts.MaxResponse && len(resp.Header)+len(resp.Trailer) <= mostFields &&
		resp.check(e.r.Method) == nil
}

// Why an answer does not end the operation.
var (
	errGaveUp      = errors.New("idempotency: handler returned without an answer after its context had ended")
	errBroken      = errors.New("idempotency: answer shorter than its Content-Length")
	errNotStorable = errors.New("idempotency: answer not storable")
	errNotKept     = errors.New("idempotency: the handler decided not to keep its answer")
)

// judge says what an answer means for the operation. Where it is not kept, the error is the reason.
func (e *exchange) judge(resp *Response, complete bool) (Verdict, error) {
	decided := e.execution.operation.decided()
	switch {
	case decided.ends() || e.outgrew:
		return Keep, nil
	case decided != undecided:
		return decided, errNotKept
	case e.silence != nil:
		return Unknown, errGaveUp
	case e.unheard:
		return Unknown, errAnsweredLater
	case !complete:
		return failed, errBroken
	case e.m.opts.Storable(resp):
		return Keep, nil
	case refused(resp.Status):
		return Release, errNotStorable
	default:
		return failed, errNotStorable
	}
}

// outgrown is called before an answer is sent that cannot be kept whole.
func (e *exchange) outgrown(resp Response) error {
	if e.execution.begun.claim == nil || e.m.opts.Stream {
		return nil
	}
	e.kept = resp.tombstone()
	e.execution.answered = &e.kept // a panic says nothing about the operation any more
	if verdict, _ := e.judge(&resp, true); verdict != Keep {
		e.execution.answered = nil
		return nil
	}
	e.outgrew = true
	return e.execution.tryComplete(e.kept)
}
