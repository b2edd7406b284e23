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

// process serves requests with a Middleware, or does operations with a Runner. It is also the Store of that.
type process struct {
	world    *world
	name     string
	requests []*request
	open     int // requests that have not ended
	serve    func(*request)
	shutdown func(context.Context) error
	stopping bool
	stopped  bool
	alone    bool // nothing is left to the explorer

	died bool
	dead chan struct{} // closed when died
}

func newProcess(w *world, name string) *process {
	p := &process{world: w, name: name, dead: make(chan struct{})}
	opts := idempotency.RunnerOptions{
		Lease: lease, StoreTimeout: moment, Abandoned: w.abandoned(),
		Logger: silent, Observer: p.observe,
	}
	if w.Patient {
		opts.StoreTimeout = lease * 4 / 5
	}
	if w.Runner {
		p.useRunner(opts)
	} else {
		p.useMiddleware(opts)
	}
	return p
}

// moment is how long the store may take. The Runner has time to repeat Complete once.
const moment = 30 * time.Millisecond

var silent = slog.New(slog.DiscardHandler)

func (p *process) useRunner(opts idempotency.RunnerOptions) {
	runner, err := idempotency.NewRunner(p, opts)
	if err != nil {
		panic(err)
	}
	p.shutdown = runner.Shutdown
	p.serve = func(r *request) {
		k := idempotency.Key{User: "user", Endpoint: "POST /", ID: r.key.name}
		resp, _, err := runner.Do(r.context(), k, nil, func(ctx context.Context) (idempotency.Response, error) {
			defer r.leave()
			answer, err := r.work(ctx)
			return idempotency.Response{Status: 200, Body: []byte(answer)}, err
		})
		r.end(string(resp.Body), err)
	}
}

// mostKept is how much of an answer is stored.
const mostKept = 8

func (p *process) useMiddleware(opts idempotency.RunnerOptions) {
	m, err := idempotency.New(p, idempotency.SingleUser, idempotency.Options{
		Lease: opts.Lease, StoreTimeout: opts.StoreTimeout, Abandoned: opts.Abandoned,
		Logger: opts.Logger, Observer: opts.Observer, MaxResponse: mostKept,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err *idempotency.Error) {
			requestIn(r.Context()).refusal = err
			w.WriteHeader(err.Status)
		},
	})
	if err != nil {
		panic(err)
	}
	p.shutdown = m.Shutdown
	handler := m.Handler(http.HandlerFunc(p.handle))
	p.serve = func(r *request) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, r.post())
		switch {
		case recorder.Code == http.StatusOK:
			r.end(strings.TrimRight(recorder.Body.String(), "\x00"), nil)
		case r.refusal != nil:
			r.end("", r.refusal)
		default:
			r.end("", errHandler)
		}
	}
}

var errHandler = errors.New("the handler fails")

// handle is the handler.
func (p *process) handle(w http.ResponseWriter, req *http.Request) {
	r := requestIn(req.Context())
	defer r.leave()
	answer, err := r.work(req.Context())
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte(answer))
	if p.world.Outgrows {
		_, _ = w.Write(make([]byte, mostKept))
		_, _ = r.do(context.Background(), rest, func() error { return nil })
	}
}

// die ends a process: nothing that it does has an effect any more.
func (p *process) die() {
	if p.died {
		return
	}
	p.died = true
	close(p.dead)
	for _, pt := range append([]*point(nil), p.world.points...) {
		if pt.request.process == p && pt.stage != underway {
			p.world.remove(pt)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { _ = p.shutdown(ended) }() // ends what goes on in the background
}

// pauses reports whether the process is at work, and does not wait for the explorer.
func (p *process) pauses() bool {
	if p.died {
		return false
	}
	waits := 0
	for _, r := range p.requests {
		if r.works() && r.waits == 0 {
			return true
		}
		waits += r.waits
	}
	return p.stopping && !p.stopped && waits == 0
}

// stop waits for what the process does in the background.
func (p *process) stop() {
	err := p.shutdown(context.Background())
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.stopped = true
	p.world.promise(err == nil || p.died, "process %s leaves something behind: %v", p.name, err)
	p.world.changes()
}

// request is one try of a client.
type request struct {
	process *process
	world   *world
	name    string
	key     *key
	begun   bool
	ended   bool
	arrival *outcome // of Begin, until that is called
	waits   int      // calls that wait for the explorer
	calls   int
	harmed  bool // by a fault

	token, attempt int             // of its claim
	ctx            context.Context // of the handler, while it runs
	entered        bool
	effects        int
	outcomes       []idempotency.Outcome
	answer         string
	refusal        error
}

// works reports whether somebody serves the request.
func (r *request) works() bool { return r.begun && !r.ended && !r.process.died }

// lease returns that of its claim.
func (r *request) lease() *granted { return &r.key.leases[r.token-1] }

type requestKey struct{}

func (r *request) context() context.Context {
	return context.WithValue(context.Background(), requestKey{}, r)
}

func requestIn(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

var target = &url.URL{Path: "/"}

func (r *request) post() *http.Request {
	post := &http.Request{
		Method: http.MethodPost, URL: target, RequestURI: "/", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Idempotency-Key": {r.key.name}}, Body: http.NoBody,
	}
	return post.WithContext(r.context())
}

// start lets the request arrive, and decides about its Begin.
func (r *request) start(o outcome) {
	r.begun, r.arrival = true, &o
	go func() {
		defer r.finish()
		r.process.serve(r)
	}()
}

func (r *request) finish() {
	w, p := r.world, r.process
	w.mu.Lock()
	defer w.mu.Unlock()
	r.ended = true
	if p.open--; p.open == 0 && !p.died {
		p.stopping = true
		go p.stop()
	}
	w.changes()
}

// do makes a call, or does not, as the explorer decides.
func (r *request) do(ctx context.Context, c call, effect func() error) (sent bool, err error) {
	w, p := r.world, r.process
	w.mu.Lock()
	if p.alone {
		defer w.mu.Unlock()
		return true, effect()
	}
	pt := &point{request: r, call: c, effect: effect, goOn: make(chan struct{}, 1)}
	if !p.died {
		w.add(pt)
		if r.arrival != nil {
			o := *r.arrival
			r.arrival = nil
			w.decide(pt, o)
		}
	}
	w.mu.Unlock()
	select {
	case <-pt.goOn:
	case <-p.dead:
		runtime.Goexit()
	case <-ctx.Done():
		return w.giveUp(ctx, pt)
	}
	if pt.exits {
		runtime.Goexit()
	}
	return pt.sent, pt.err
}

// work is what the handler does. It returns the answer, which names the request that had the effect. It takes no notice of
// a lost claim.
func (r *request) work(ctx context.Context) (answer string, err error) {
	r.enter(ctx)
	act := func(context.Context) (string, error) {
		_, err := r.do(context.Background(), effect, r.act)
		return r.name, err
	}
	switch {
	case r.world.Rows:
		return r.writeRow(ctx)
	case !r.world.Steps:
		return act(ctx)
	}
	answer, err = idemstep.Do(ctx, "effect", act)
	if err != nil && r.interruptStep() {
		idempotency.Decide(ctx, idempotency.Unknown)
	}
	return answer, err
}

// writeRow writes the row of the effect in a step in a transaction, and tries that again once.
func (r *request) writeRow(ctx context.Context) (answer string, err error) {
	for range 2 {
		answer, err = idemstep.DoTx(ctx, "effect", func(tx *transaction) (string, error) {
			_, err := r.do(context.Background(), effect, func() error {
				r.world.promise(tx.isOpen, "%s writes in a transaction that has ended", r.name)
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

// interruptStep reports whether the step has had its effect, although its result is not stored: the next attempt may have it
// again.
func (r *request) interruptStep() bool {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	if r.effects > 0 {
		r.lease().interrupted = true
	}
	return r.effects > 0
}
