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

// region is a service with its own store and its own database.
type region struct {
	name, baseURL   string
	otherRegion     *region
	isForwarding    bool        // forwards requests for otherRegion, instead of refusing such requests
	isCut           atomic.Bool // no connection to otherRegion and to the table of homes
	losesNextAnswer atomic.Bool
	pauseHandlers   sync.Mutex // handlers wait while the mutex is locked
	bookings        bookings
}

func newRegion(name string, homes *homeTable) *region {
	r := &region{name: name}
	r.bookings = bookings{region: name, homes: tableCopy{table: homes, isCut: &r.isCut}, userByOrder: make(map[uuid.UUID]string)}
	return r
}

// serve starts the service. routeRequest is mounted outside of the idempotency middleware, because a request for otherRegion must
// not claim its key here.
func (r *region) serve() (stop func()) {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), demo.User, idempotency.Options{
		Required: true, ValidateKey: r.validateKey,
	})
	demo.Check(err)
	listener := demo.Listen()
	r.baseURL = "http://" + listener.Addr().String()
	server := &http.Server{Handler: demo.Authenticate(r.routeRequest(idem.Handler(http.HandlerFunc(r.placeOrder))))}
	go server.Serve(listener)
	return func() { _ = server.Close() }
}

// regionOf returns the region that key names. The record of the key stays in this region, even after the user has moved.
func regionOf(key string) (region string) {
	region, _, _ = strings.Cut(key, "-")
	return region
}

func (r *region) validateKey(key string) error {
	if regionOf(key) != r.name {
		return errors.New("a key begins with the name of a region")
	}
	return nil
}

// routeRequest passes each request to local, unless the key names otherRegion. A request for otherRegion is forwarded if
// isForwarding is set, and refused otherwise.
func (r *region) routeRequest(local http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		key, err := idempotency.ParseKey(req.Header.Values("Idempotency-Key"))
		switch {
		case err != nil || regionOf(key) != r.otherRegion.name:
			local.ServeHTTP(w, req)
		case !r.isForwarding:
			writeRefusal(w, req, http.StatusMisdirectedRequest, idempotency.RetrySameKey, "Send the request to "+r.otherRegion.baseURL)
		case r.otherRegion.isCut.Load():
			r.answerUnreachable(w, req, nil)
		default:
			r.forwardRequest(w, req)
		}
		if r.losesNextAnswer.CompareAndSwap(true, false) {
			panic(http.ErrAbortHandler)
		}
	})
}

func (r *region) forwardRequest(w http.ResponseWriter, req *http.Request) {
	target, err := url.Parse(r.otherRegion.baseURL)
	demo.Check(err)
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }, ErrorHandler: r.answerUnreachable,
	}
	proxy.ServeHTTP(w, req)
}

// answerUnreachable refuses a request because otherRegion cannot be reached. This region must not execute the request, because
// otherRegion may have executed the request already.
func (r *region) answerUnreachable(w http.ResponseWriter, req *http.Request, _ error) {
	writeRefusal(w, req, http.StatusServiceUnavailable, idempotency.RetrySameKey, "Your key is in "+r.otherRegion.name)
}

// placeOrder is the guarded handler. It charges a card, and books the order.
func (r *region) placeOrder(w http.ResponseWriter, req *http.Request) {
	op := withoutRegion(req)
	home := r.bookings.findHome(op.ID, op.Key.User)
	if home == r.name {
		_, err := provider.Call(req.Context(), provider.Request{Key: op.DownstreamKey("charge")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		r.pauseHandlers.Lock()
		home = r.bookings.addOrder(op.ID, op.Key.User)
		r.pauseHandlers.Unlock()
	}
	switch home {
	case r.name:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "booked in ", r.name)
	case "":
		writeRefusal(w, req, http.StatusServiceUnavailable, idempotency.RetrySameKey, "Your home is not known at the moment")
	default: // the middleware stores this answer, so this key never books an order
		writeRefusal(w, req, http.StatusConflict, idempotency.RetryNewKey, "Send it again with "+home+" in front of the key")
	}
}

// withoutRegion returns the operation that the key names after the region. After a move, the client sends the order with a new
// region in front of the same rest. The operation stays the same, so the provider finds the charge of the first attempt.
func withoutRegion(req *http.Request) idempotency.Operation {
	op, _ := idempotency.FromContext(req.Context())
	_, op.Key.ID, _ = strings.Cut(op.Key.ID, "-")
	op.ID = op.Key.OperationID()
	return op
}

// writeRefusal answers a request that this region does not execute.
func writeRefusal(w http.ResponseWriter, req *http.Request, status int, retry idempotency.Retry, detail string) {
	problem := &idempotency.Error{Status: status, Retry: retry, Detail: detail}
	if status == http.StatusServiceUnavailable {
		problem.RetryAfter = maxCopyAge
	}
	idempotency.WriteProblem(w, req, problem)
}
