package benchmark

import (
	"net"
	"net/http"

	"github.com/valyala/fasthttp"
)

// Role says what a subject is compared for.
type Role int

const (
	// Bare is the handler without any protection.
	Bare Role = iota
	// Floor is the least that the contract could cost.
	Floor
	// Raw sends commands to a store and serves no requests.
	Raw
	// Library is the library that this module belongs to.
	Library
	// Peer is another library.
	Peer
)

// Subject is something to be measured.
type Subject struct {
	Name  string
	Role  Role
	Store Store
	Lacks string // what it does not do, to be said beside its numbers

	// Open sets the subject up in front of app. It is called for each batch, and not part of any measurement.
	Open func(*Backends, *App) (*Target, error)
}

// Store is where a subject keeps its records.
type Store string

// The stores.
const (
	InMemory   Store = "memory"
	InRedis    Store = "Redis"
	InPostgres Store = "PostgreSQL"
)

// Target is a subject that is set up.
type Target struct {
	// Worker returns a worker that calls the target in this process.
	Worker func(Call) Worker

	// Serve serves HTTP until stop is called. It is nil if the target speaks no HTTP.
	Serve func(net.Listener) (stop func())

	// Close frees what the garbage collector would not. It is nil if there is no such thing.
	Close func()
}

func (t *Target) close() {
	if t.Close != nil {
		t.Close()
	}
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
	First       Path = "first"        // a fresh key each time
	Replay      Path = "replay"       // a key whose answer is stored
	Duplicates  Path = "duplicates"   // all workers send the same fresh key at once
	InProgress  Path = "in progress"  // a key that another request is being served for
	Reuse       Path = "reuse"        // a key whose answer is stored, with another body
	Release     Path = "release"      // a fresh key, and an answer that is not stored
	NoKey       Path = "no key"       // not guarded
	OtherMethod Path = "other method" // not guarded
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
	// Do sends a request and leaves its answer to Answer.
	Do(key string) error

	// Answer returns status and length of the last answer.
	Answer() (status, length int)

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

// OverHTTP is the target that a net/http handler makes.
func OverHTTP(h http.Handler) *Target {
	return &Target{
		Worker: func(c Call) Worker { return newCaller(h, c) },
		Serve: func(l net.Listener) func() {
			srv := &http.Server{Handler: h}
			go func() { _ = srv.Serve(l) }() // returns when it is closed
			return func() { _ = srv.Close() }
		},
	}
}

// OverFastHTTP is the target that a fasthttp handler makes.
func OverFastHTTP(h fasthttp.RequestHandler) *Target {
	return &Target{
		Worker: func(c Call) Worker { return newFastCaller(h, c) },
		Serve: func(l net.Listener) func() {
			srv := &fasthttp.Server{Handler: h, MaxRequestBodySize: 4 << 20}
			go func() { _ = srv.Serve(l) }()
			return func() { _ = l.Close() } // ends Serve; Shutdown would sleep for 100 ms
		},
	}
}

// rawTarget is the target of commands that no HTTP stands before.
func rawTarget(do func(c Call) func(key string) error) *Target {
	return &Target{Worker: func(c Call) Worker { return &rawWorker{do: do(c), call: c} }}
}
