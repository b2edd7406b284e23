package benchmark

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/idempotency-go/idempotency"
)

// Subject is a handler with an idempotency middleware, or a handler for comparison.
type Subject struct {
	Name  string
	Store Store
	Lacks string // features that the subject leaves out
	Mark  string // header field that is "true" in replays; empty for a subject without a mark

	// Open puts the subject in front of app. No measurement includes Open.
	Open func(b *Backends, app *App) (*Target, error)
}

// ReplayMark is the Mark of the library.
const ReplayMark = "Idempotent-Replayed"

// Store is the product that keeps the records of a subject.
type Store string

// The stores.
const (
	InMemory   Store = "memory"
	InRedis    Store = "Redis"
	InSQLite   Store = "SQLite"
	InPostgres Store = "PostgreSQL"
	InMariaDB  Store = "MariaDB"
	InDynamoDB Store = "DynamoDB"

	RowsInPostgres Store = "PostgreSQL, with a row" // rows of the handler
)

// Target is a subject that is ready for requests.
type Target struct {
	// Worker returns a worker that calls the target in this process, or over HTTP after serveOverHTTP.
	Worker func(Call) Worker

	// Serve serves the target over HTTP until the listener is closed.
	Serve func(net.Listener) error

	// Close stops the goroutines of the target. Close may be nil.
	Close func() error
}

// Call is the kind of request that a worker sends.
type Call struct {
	Path Path
	Work Work
}

// Path is the path of a request through an idempotency middleware.
type Path string

// The paths.
const (
	First       Path = "first"          // a fresh key each time
	Replay      Path = "replay"         // a key whose answer is stored
	InProgress  Path = "in progress"    // a key whose first request is running
	Reuse       Path = "reuse of a key" // a key whose answer is stored, with another body
	Release     Path = "release"        // a fresh key, and an answer that is not stored
	Again       Path = "after release"  // a key that was released
	NoKey       Path = "no key"         // not guarded
	OtherMethod Path = "other method"   // not guarded
)

func (c Call) httpMethod() string {
	if c.Path == OtherMethod {
		return http.MethodPut
	}
	return http.MethodPost
}

func (c Call) makeBody() []byte {
	body := c.Work.makeBody()
	if c.Path == Reuse {
		body[0] = '['
	}
	return body
}

// Worker sends requests in sequence. Only a single goroutine uses a worker at a time.
type Worker interface {
	// Do sends a request, and returns status and length of the answer.
	Do(key string) (status, length int, err error)

	// Fetch sends a request and returns the whole answer.
	Fetch(key string) (Answer, error)

	Close()
}

// Answer is a response as the client gets it.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// NetHTTP returns the target of a handler for net/http.
func NetHTTP(h http.Handler) *Target {
	return &Target{
		Worker: func(c Call) Worker { return newCaller(h, c) },
		Serve:  (&http.Server{Handler: h, ReadHeaderTimeout: time.Minute}).Serve,
	}
}

// newFastHTTPTarget returns the target of a handler for fasthttp. The target has workers only after serveOverHTTP.
func newFastHTTPTarget(h fasthttp.RequestHandler) *Target {
	return &Target{Serve: (&fasthttp.Server{Handler: h}).Serve}
}

// newLibraryTarget returns the target of a handler behind the library.
func newLibraryTarget(store idempotency.Store, handler http.Handler) (*Target, error) {
	m, err := idempotency.New(store, requestUser, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	target := NetHTTP(m.Handler(handler))
	target.Close = func() error { return m.Shutdown(context.Background()) }
	return target, nil
}

// requestUser returns the host of the request as the name of the user.
func requestUser(r *http.Request) (string, error) { return r.Host, nil }
