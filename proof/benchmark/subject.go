package benchmark

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/idempotency-go/idempotency"
)

// Subject is something to be measured.
type Subject struct {
	Name  string
	Store Store
	Lacks string // what it does not do, to be said beside its numbers
	Mark  string // the field that is "true" in its replays; "": it has none

	// Open sets the subject up in front of app. It is called for each batch, and not part of any measurement.
	Open func(b *Backends, app *App) (*Target, error)
}

// ReplayMark is the Mark of the library.
const ReplayMark = "Idempotent-Replayed"

// Store is where a subject keeps its records.
type Store string

// The stores.
const (
	InMemory   Store = "memory"
	InRedis    Store = "Redis"
	InPostgres Store = "PostgreSQL"
	InDynamoDB Store = "DynamoDB"

	RowsInPostgres Store = "PostgreSQL, with a row" // of the handler
)

// Target is a subject that is set up.
type Target struct {
	// Worker returns a worker that calls the target in this process.
	Worker func(Call) Worker

	// Serve serves the target over HTTP until the listener is closed. It is nil if there is no handler.
	Serve func(net.Listener) error

	// Close frees what the garbage collector would not. It is nil if there is no such thing.
	Close func() error

	raw bool // sends commands and calls no handler
}

// Call is the kind of request that a worker sends.
type Call struct {
	Path Path
	Work Work
}

// Path is the way of a request through an idempotency middleware.
type Path string

// The paths.
const (
	First       Path = "first"          // a fresh key each time
	Replay      Path = "replay"         // a key whose answer is stored
	InProgress  Path = "in progress"    // a key that another request is being served for
	Reuse       Path = "reuse of a key" // whose answer is stored, with another body
	Release     Path = "release"        // a fresh key, and an answer that is not stored
	Again       Path = "after release"  // a key that was released
	NoKey       Path = "no key"         // not guarded
	OtherMethod Path = "other method"   // not guarded
	Completion  Path = "completion"     // of a key that is claimed: the store alone
)

// guarded reports whether the middleware has work to do.
func (p Path) guarded() bool { return p != NoKey && p != OtherMethod }

// method and body of the requests.
func (c Call) method() string {
	if c.Path == OtherMethod {
		return http.MethodPut
	}
	return http.MethodPost
}

func (c Call) body() []byte {
	body := c.Work.body()
	if c.Path == Reuse {
		body[0] = '['
	}
	return body
}

// Worker sends requests one after another. It is used by one goroutine at a time.
type Worker interface {
	// Do sends a request, and returns status and length of its answer.
	Do(key string) (status, length int, err error)

	// Fetch sends a request and returns the whole answer.
	Fetch(key string) (Answer, error)

	Close()
}

// Answer is what a client gets to see.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// NetHTTP is the target that a handler for net/http makes.
func NetHTTP(h http.Handler) *Target {
	return &Target{
		Worker: func(c Call) Worker { return newCaller(h, c) },
		Serve:  (&http.Server{Handler: h, ReadHeaderTimeout: time.Minute}).Serve,
	}
}

// fastHTTP is the target that a handler for fasthttp makes.
func fastHTTP(h fasthttp.RequestHandler) *Target {
	return &Target{
		Worker: func(c Call) Worker { return newFastCaller(h, c) },
		Serve:  (&fasthttp.Server{Handler: h}).Serve,
	}
}

// overLibrary is the target that the library makes of a handler with a store.
func overLibrary(store idempotency.Store, handler http.Handler) (*Target, error) {
	m, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		return nil, err
	}
	target := NetHTTP(m.Handler(handler))
	target.Close = func() error { return m.Shutdown(context.Background()) }
	return target, nil
}

// user reads the caller's name from where an authenticating middleware might have left it.
func user(r *http.Request) (string, error) { return r.Host, nil }
