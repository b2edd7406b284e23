package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

// region is a service with a store and a database of its own.
type region struct {
	name, url string
	other     *region
	forwards  bool        // what belongs to the other region; or else it is refused
	cut       atomic.Bool // off from the other region and from the table
	losing    atomic.Bool // the answer to the next request
	still     sync.Mutex  // held while the handlers are to stand still
	books     books
}

func newRegion(name string, homes *table) *region {
	r := &region{name: name}
	r.books = books{region: name, copy: cached{table: homes, cut: &r.cut}, users: make(map[uuid.UUID]string)}
	return r
}

// serve starts the service. It decides outside of our middleware where a request belongs.
func (r *region) serve() (stop func()) {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), demo.User, idempotency.Options{
		Required: true, ValidateKey: r.validateKey,
	})
	demo.Check(err)
	listener := demo.Listen()
	r.url = "http://" + listener.Addr().String()
	server := &http.Server{Handler: demo.Authenticate(r.route(idem.Handler(http.HandlerFunc(r.order))))}
	go server.Serve(listener)
	return func() { _ = server.Close() }
}

// homeOf returns the region that a key names. It has the record of the key, whatever happens to the user.
func homeOf(key string) (region string) {
	region, _, _ = strings.Cut(key, "-")
	return region
}

func (r *region) validateKey(key string) error {
	if homeOf(key) != r.name {
		return errors.New("a key begins with the name of a region")
	}
	return nil
}

// route has the home of its key answer a request.
func (r *region) route(here http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		key, err := idempotency.ParseKey(req.Header.Values("Idempotency-Key"))
		switch {
		case err != nil || homeOf(key) != r.other.name:
			here.ServeHTTP(w, req)
		case !r.forwards:
			refuse(w, req, http.StatusMisdirectedRequest, idempotency.RetrySameKey, "Send the request to "+r.other.url)
		case r.other.cut.Load():
			r.unreachable(w, req, nil)
		default:
			r.forward(w, req)
		}
		if r.losing.CompareAndSwap(true, false) {
			panic(http.ErrAbortHandler)
		}
	})
}

func (r *region) forward(w http.ResponseWriter, req *http.Request) {
	target, err := url.Parse(r.other.url)
	demo.Check(err)
	proxy := httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }, ErrorHandler: r.unreachable}
	proxy.ServeHTTP(w, req)
}

// unreachable answers for the other region. That one may have executed the request, so nobody else does.
func (r *region) unreachable(w http.ResponseWriter, req *http.Request, _ error) {
	refuse(w, req, http.StatusServiceUnavailable, idempotency.RetrySameKey, "Your key is in "+r.other.name)
}

// order is the guarded handler. It charges a card, and books the order.
func (r *region) order(w http.ResponseWriter, req *http.Request) {
	op := withoutRegion(req)
	home := r.books.home(op.ID, op.Key.User)
	if home == r.name {
		_, err := provider.Call(req.Context(), provider.Request{Key: op.DownstreamKey("charge")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		r.still.Lock()
		home = r.books.add(op.ID, op.Key.User)
		r.still.Unlock()
	}
	switch home {
	case r.name:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "booked in ", r.name)
	case "":
		refuse(w, req, http.StatusServiceUnavailable, idempotency.RetrySameKey, "Your home is not known at the moment")
	default: // this answer is stored: nothing is ever booked under this key
		refuse(w, req, http.StatusConflict, idempotency.RetryNewKey, "Send it again with "+home+" in front of the key")
	}
}

// withoutRegion returns the operation that the rest of the key names. It is the same if an order is sent to another region
// after a move: the provider then finds the charge of the first attempt.
func withoutRegion(req *http.Request) idempotency.Operation {
	op, _ := idempotency.FromContext(req.Context())
	_, op.Key.ID, _ = strings.Cut(op.Key.ID, "-")
	op.ID = op.Key.OperationID()
	return op
}

// refuse answers a request that is not executed here.
func refuse(w http.ResponseWriter, req *http.Request, status int, retry idempotency.Retry, detail string) {
	problem := &idempotency.Error{Status: status, Retry: retry, Detail: detail}
	if status == http.StatusServiceUnavailable {
		problem.RetryAfter = trust
	}
	idempotency.WriteProblem(w, req, problem)
}
