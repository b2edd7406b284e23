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
	waits    bounds.Shares // requests that wait
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
	m := &Middleware{
		runner: runner, user: user, opts: opts, events: &runner.events, unstored: newUnstoredFields(opts.OmitHeaders),
		bodies: bounds.Shares{Total: cmp.Or(opts.MaxBodies, math.MaxInt64), Each: opts.MaxUserBodies},
		waits:  bounds.Shares{Total: math.MaxInt64, Each: mostWaiting},
	}
	return m, nil
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
	e.execution.runner, e.execution.key, e.execution.request, e.execution.caller = m.runner, key, r.Context(), e
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

// exchange is a guarded request and its answer. It serves the next request, and so do its buffers.
type exchange struct {
	m         *Middleware
	next      http.Handler
	w         http.ResponseWriter
	r         *http.Request
	body      *bounds.Buffer // of the request
	execution execution

	*handed  // nil: no handler runs
	recorder recorder
	answer   Response // as Storable judges it
	ending   ending   // of the handler
	ended    error    // why the context of a silent handler had ended
}

// handed is what a handler or the server gets, and may keep for as long as it likes.
type handed struct {
	attempt attempt
	writer  writer
	reader  bodyReader
	values  [8]string // of the header
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// ending says how a handler ended.
type ending int8

const (
	interrupted ending = iota // it panicked, or called runtime.Goexit
	silent                    // it returned without an answer, after its context had ended
	leftOpen                  // it returned without an answer, and a framework around it answersLater
	brokenOff                 // its answer is shorter than its Content-Length
	answered
)

// close takes everything away from the handler, which may have left goroutines behind.
func (e *exchange) close() {
	e.dropBody()
	if e.handed != nil {
		e.writer.close()
		e.recorder.body.Free()
	}
	*e = exchange{}
	exchanges.Put(e)
}

// dropBody takes the body of the request away from the handler, and gives it back. It is called before the answer goes
// out: a client that reads slowly must not use up the budget of bodies.
func (e *exchange) dropBody() {
	if e.handed != nil {
		e.reader.Close()
	}
	if e.body != nil {
		e.m.bodies.GiveBack(e.execution.key.User, int64(cap(e.body.B)))
		e.body.Free()
	}
	e.body = nil
}

// fingerprint reads the body of the request and returns what tells the request from others with its key.
func (e *exchange) fingerprint() (Fingerprint, error) {
	var err error
	e.body, err = readBody(e.r, e.m.opts.MaxBody, &e.m.bodies, e.execution.key.User)
	switch {
	case err != nil:
		return Fingerprint{}, err
	case consumed(e.r, len(e.body.B)):
		return Fingerprint{}, ErrBodyConsumed
	}
	fp, err := e.m.opts.Fingerprint(e.r, e.body.B)
	if err != nil {
		return fp, fmt.Errorf("%w: %w", ErrBodyInvalid, err)
	}
	return fp.withSelectors(e.r.Header, e.m.opts.FingerprintHeaders), nil
}

// mostWaiting bounds the HTTP requests of one user that wait at a time: each of them holds a connection and a header, which
// may be large.
const mostWaiting = 128

// mayWait implements caller.
func (e *exchange) mayWait() bool { return e.m.waits.Take(e.execution.key.User, 1) }

// waited implements caller.
func (e *exchange) waited() { e.m.waits.GiveBack(e.execution.key.User, 1) }

// mayReplay implements caller.
func (e *exchange) mayReplay(resp *Response) error {
	if err := resp.check(e.r.Method); err != nil {
		return fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	if e.m.opts.Replay == nil {
		return nil
	}
	reader := new(bodyReader) // not the handler's
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
	e.record()
	ctx, cancel := e.context()
	defer cancel()
	refusal := e.execution.execute(ctx, e.work)
	if refusal == nil {
		refusal = e.recorder.refused
	}
	switch {
	case refusal != nil && e.recorder.sending: // there is nothing to add
		return nil
	case refusal != nil:
		return refusal
	case e.ending == silent && e.ended == ErrClaimLost:
		return ErrClaimLost
	case e.ending == silent:
		<-e.r.Context().Done() // by its own timer, which may be a moment behind
		e.handOver()
	case e.ending == leftOpen:
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
	rec.w, rec.r, rec.unstored, rec.limit, rec.body = e.w, e.r, e.m.unstored, e.m.opts.MaxResponse, bounds.NewBuffer(streamChunk)
	rec.stream, rec.owner = e.m.opts.Stream, e
	e.handed = new(handed)
	e.execution.attempt = &e.handed.attempt
	e.writer.outer, e.writer.rec = e.w, rec
	rec.values = e.values[:0]
}

// work runs the handler, and concludes what it has come to. It is called at most once: for the owner of the operation, or
// with FailOpen for nobody.
func (e *exchange) work(ctx context.Context) {
	defer e.writer.close()
	r := e.withBody(ctx, &e.reader)
	defer e.takeForm(r)
	e.next.ServeHTTP(&e.writer, r)
	e.dropBody()

	var wrote, whole bool
	e.answer, wrote, whole = e.writer.finish()
	if e.execution.fate == fateKept { // by outgrown
		return
	}
	decided := e.execution.operation.decided()
	e.ending = e.endingOf(ctx, decided, wrote, whole)
	status := e.answer.Status
	kept := e.keptOf(decided)
	e.execution.conclude(status, fateKept, kept, nil) // which is true even if Storable panics
	f, cause := e.fate(decided)
	if e.ending == leftOpen && f != fateKept {
		e.execution.event.untouched = decided != undecided && turnsAway(e.w)
		status = 0
	}
	e.execution.conclude(status, f, kept, cause)
}

// endingOf says how a handler ended that has returned.
func (e *exchange) endingOf(ctx context.Context, decided Verdict, wrote, whole bool) ending {
	if !wrote && !decided.ends() {
		e.ended = context.Cause(ctx)
	}
	switch {
	case e.ended != nil:
		return silent
	case !wrote && answersLater(e.w):
		return leftOpen
	case !whole:
		return brokenOff
	default:
		return answered
	}
}

// keptOf returns what is stored of the answer if it is kept. Of the answer itself it leaves what Storable may see.
func (e *exchange) keptOf(decided Verdict) Response {
	answer := &e.answer
	answer.Trailer = e.m.unstored.strip(answer.Trailer)
	if e.ending != answered || !e.canKeep(answer) {
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

// canKeep reports whether an answer can be stored whole and sent again. One that would be refused as a record cannot: a
// 101, after which the connection goes on in another protocol, or two lengths that differ. Nothing else of it can be wrong.
func (e *exchange) canKeep(resp *Response) bool {
	hasLength := strings.Contains(string(resp.Header), "Content-Length") || strings.Contains(string(resp.Trailer), "Content-Length")
	return int64(len(resp.Body)) <= e.m.opts.MaxResponse && len(resp.Header)+len(resp.Trailer) <= mostFields &&
		resp.Status >= 200 && (!hasLength || resp.check(e.r.Method) == nil)
}

// Why an answer does not end the operation.
var (
	errGaveUp      = errors.New("idempotency: handler returned without an answer after its context had ended")
	errBroken      = errors.New("idempotency: answer shorter than its Content-Length")
	errNotStorable = errors.New("idempotency: answer not storable")
	errNotKept     = errors.New("idempotency: the handler decided not to keep its answer")
)

// fate says what becomes of the record. Where the answer is not kept, the error is the reason.
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
// A handler that has decided to keep its silence has answered, with status 200 and no body.
func (e *exchange) fate(decided Verdict) (fate, error) {
	switch {
	case decided.ends():
		return fateKept, nil
	case decided == Free:
		return fateFreed, errNotKept
	case decided == Unknown:
		return fateUnknown, errNotKept
	case e.ending == silent:
		return fateUnknown, errGaveUp
	case e.ending == leftOpen:
		return fateUnknown, errAnsweredLater
	case e.ending == brokenOff:
		return fateFailed, errBroken
	case e.m.opts.Storable(&e.answer):
		return fateKept, nil
	case refused(e.answer.Status):
		return fateFreed, errNotStorable
	default:
		return fateFailed, errNotStorable
	}
}

// outgrown is called before an answer is sent that cannot be kept whole. If the answer is kept, its status is stored first.
func (e *exchange) outgrown(resp Response) error {
	x := &e.execution
	if x.claim == nil || e.m.opts.Stream {
		return nil
	}
	e.answer, e.ending = resp, answered
	x.conclude(resp.Status, fateKept, resp.tombstone(), nil) // a panic says nothing about the operation any more
	if f, _ := e.fate(x.operation.decided()); f != fateKept {
		x.conclude(0, fateUnknown, Response{}, errInterrupted) // until it is known how the handler ends
		return nil
	}
	defer x.endSteps() // although the handler goes on
	return x.complete()
}
