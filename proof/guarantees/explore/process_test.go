package explore

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	idemstep "github.com/idempotency-go/idempotency/step"
)

// process serves requests with a Middleware, or executes operations with a Runner. A process is also the Store of its Middleware
// or Runner.
type process struct {
	world            *world
	name             string
	requests         []*request
	openRequests     int // number of requests that have not ended
	serveRequest     func(*request)
	shutdown         func(context.Context) error
	isStopping       bool
	hasStopped       bool
	bypassesExplorer bool // every call succeeds at once, without a choice of the explorer

	hasCrashed bool
	crashed    chan struct{} // closed when hasCrashed is set
}

func newProcess(w *world, name string) *process {
	p := &process{world: w, name: name, crashed: make(chan struct{})}
	opts := idempotency.RunnerOptions{
		Lease: leaseDuration, StoreTimeout: shortTimeout, Abandoned: w.abandonedPolicy(),
		Logger: silentLogger, Observer: p.recordOutcome,
	}
	if w.LongTimeout {
		opts.StoreTimeout = leaseDuration * 4 / 5
	}
	if w.UsesRunner {
		p.useRunner(opts)
	} else {
		p.useMiddleware(opts)
	}
	return p
}

// shortTimeout is the usual StoreTimeout. The Runner has time to repeat Complete once.
const shortTimeout = 30 * time.Millisecond

var silentLogger = slog.New(slog.DiscardHandler)

func (p *process) useRunner(opts idempotency.RunnerOptions) {
	runner, err := idempotency.NewRunner(p, opts)
	if err != nil {
		panic(err)
	}
	p.shutdown = runner.Shutdown
	p.serveRequest = func(r *request) {
		k := idempotency.Key{User: "user", Endpoint: "POST /", ID: r.key.name}
		resp, _, err := runner.Do(r.newContext(), k, nil, func(ctx context.Context) (idempotency.Response, error) {
			defer r.leaveHandler()
			answer, err := r.runHandler(ctx)
			return idempotency.Response{Status: 200, Body: []byte(answer)}, err
		})
		r.recordAnswer(string(resp.Body), err)
	}
}

// maxStoredBytes is MaxResponse of the Middleware.
const maxStoredBytes = 8

func (p *process) useMiddleware(opts idempotency.RunnerOptions) {
	m, err := idempotency.New(p, idempotency.SingleUser, idempotency.Options{
		Lease: opts.Lease, StoreTimeout: opts.StoreTimeout, Abandoned: opts.Abandoned,
		Logger: opts.Logger, Observer: opts.Observer, MaxResponse: maxStoredBytes,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err *idempotency.Error) {
			requestIn(r.Context()).refusalErr = err
			w.WriteHeader(err.Status)
		},
	})
	if err != nil {
		panic(err)
	}
	p.shutdown = m.Shutdown
	handler := m.Handler(http.HandlerFunc(p.handleRequest))
	p.serveRequest = func(r *request) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, r.buildHTTPRequest())
		switch {
		case recorder.Code == http.StatusOK:
			r.recordAnswer(strings.TrimRight(recorder.Body.String(), "\x00"), nil)
		case r.refusalErr != nil:
			r.recordAnswer("", r.refusalErr)
		default:
			r.recordAnswer("", errHandler)
		}
	}
}

var errHandler = errors.New("the handler fails")

// handleRequest is the handler.
func (p *process) handleRequest(w http.ResponseWriter, req *http.Request) {
	r := requestIn(req.Context())
	defer r.leaveHandler()
	answer, err := r.runHandler(req.Context())
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte(answer))
	if p.world.AnswerTooLarge {
		_, _ = w.Write(make([]byte, maxStoredBytes))
		_, _ = r.makeCall(context.Background(), handlerRest, func() error { return nil })
	}
}

// crash ends the process. Later calls of the process have no effect.
func (p *process) crash() {
	if p.hasCrashed {
		return
	}
	p.hasCrashed = true
	close(p.crashed)
	for _, pt := range append([]*pendingCall(nil), p.world.pendingCalls...) {
		if pt.request.process == p && pt.stage != callDelayed {
			p.world.removeCall(pt)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { _ = p.shutdown(ended) }() // ends the work in the background
}

// isPausing reports whether the process is at work without a call that waits for the explorer.
func (p *process) isPausing() bool {
	if p.hasCrashed {
		return false
	}
	waits := 0
	for _, r := range p.requests {
		if r.isBeingServed() && r.pendingCount == 0 {
			return true
		}
		waits += r.pendingCount
	}
	return p.isStopping && !p.hasStopped && waits == 0
}

// shutDown waits for the work of the process in the background.
func (p *process) shutDown() {
	err := p.shutdown(context.Background())
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.hasStopped = true
	p.world.checkPromise(err == nil || p.hasCrashed, "process %s leaves something behind: %v", p.name, err)
	p.world.signalChange()
}

// request is a single try of a client.
type request struct {
	process      *process
	world        *world
	name         string
	key          *key
	hasBegun     bool
	hasEnded     bool
	beginOutcome *outcome // the outcome of Begin; nil once Begin was called
	pendingCount int      // number of calls that wait for the explorer
	callCount    int
	wasHarmed    bool // a fault has struck a call

	claimToken, attemptNumber int             // of the claim
	handlerCtx                context.Context // nil unless the handler runs
	hasEntered                bool
	effectCount               int
	outcomes                  []idempotency.Outcome
	answer                    string
	refusalErr                error
}

// isBeingServed reports whether the process serves the request.
func (r *request) isBeingServed() bool { return r.hasBegun && !r.hasEnded && !r.process.hasCrashed }

// ownLease returns the lease of the request's claim.
func (r *request) ownLease() *grantedLease { return &r.key.grantedLeases[r.claimToken-1] }

type requestKey struct{}

func (r *request) newContext() context.Context {
	return context.WithValue(context.Background(), requestKey{}, r)
}

func requestIn(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

var targetURL = &url.URL{Path: "/"}

func (r *request) buildHTTPRequest() *http.Request {
	post := &http.Request{
		Method: http.MethodPost, URL: targetURL, RequestURI: "/", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Idempotency-Key": {r.key.name}}, Body: http.NoBody,
	}
	return post.WithContext(r.newContext())
}

// startServing lets the request arrive. The outcome of Begin will be o.
func (r *request) startServing(o outcome) {
	r.hasBegun, r.beginOutcome = true, &o
	go func() {
		defer r.finishServing()
		r.process.serveRequest(r)
	}()
}

func (r *request) finishServing() {
	w, p := r.world, r.process
	w.mu.Lock()
	defer w.mu.Unlock()
	r.hasEnded = true
	if p.openRequests--; p.openRequests == 0 && !p.hasCrashed {
		p.isStopping = true
		go p.shutDown()
	}
	w.signalChange()
}

// makeCall waits until the explorer has decided the outcome of a call, and carries out that outcome.
func (r *request) makeCall(ctx context.Context, c call, effect func() error) (sent bool, err error) {
	w, p := r.world, r.process
	w.mu.Lock()
	if p.bypassesExplorer {
		defer w.mu.Unlock()
		return true, effect()
	}
	pt := &pendingCall{request: r, call: c, applyEffect: effect, resume: make(chan struct{}, 1)}
	if !p.hasCrashed {
		w.addCall(pt)
		if r.beginOutcome != nil {
			o := *r.beginOutcome
			r.beginOutcome = nil
			w.decideCall(pt, o)
		}
	}
	w.mu.Unlock()
	select {
	case <-pt.resume:
	case <-p.crashed:
		runtime.Goexit()
	case <-ctx.Done():
		return w.abandonCall(ctx, pt)
	}
	if pt.handlerExits {
		runtime.Goexit()
	}
	return pt.mayHaveEffect, pt.replyErr
}

// runHandler does the work of the handler. The answer names the request that had the effect. runHandler ignores a lost claim.
func (r *request) runHandler(ctx context.Context) (answer string, err error) {
	r.enterHandler(ctx)
	act := func(context.Context) (string, error) {
		_, err := r.makeCall(context.Background(), handlerEffect, r.countEffect)
		return r.name, err
	}
	switch {
	case r.world.EffectIsRow:
		return r.writeRow(ctx)
	case !r.world.EffectIsStep:
		return act(ctx)
	}
	answer, err = idemstep.Do(ctx, "effect", act)
	if err != nil && r.markStepInterrupted() {
		idempotency.Decide(ctx, idempotency.Unknown)
	}
	return answer, err
}

// writeRow writes the row of the effect in a step in a transaction, and repeats a failed step once.
func (r *request) writeRow(ctx context.Context) (answer string, err error) {
	for range 2 {
		answer, err = idemstep.DoTx(ctx, "effect", func(tx *transaction) (string, error) {
			_, err := r.makeCall(context.Background(), handlerEffect, func() error {
				r.world.checkPromise(tx.isOpen, "%s writes in a transaction that has ended", r.name)
				return nil
			})
			return r.name, err
		})
		if err == nil {
			break
		}
	}
	return answer, err
}

// markStepInterrupted reports whether the step has had its effect although its result is not stored. In that case the lease is
// marked as interrupted, because the next attempt may repeat the effect.
func (r *request) markStepInterrupted() bool {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	if r.effectCount > 0 {
		r.ownLease().wasInterrupted = true
	}
	return r.effectCount > 0
}
