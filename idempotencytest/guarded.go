package idempotencytest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// GuardedOptions adapts [Guarded] to the options of a service. The zero value of each field is its default.
type GuardedOptions struct {
	// Header is one of the names in Options.Headers of the service. Empty means Idempotency-Key.
	Header string

	// Refused reports whether an answer is the refusal of an invalid key. Set Refused if Options.ErrorHandler of the
	// service writes other bodies than [idempotency.WriteProblem]. Refused must report false for every answer of a
	// handler, because Guarded takes a refused request for the proof that the route is guarded. If Refused is nil, a
	// refusal is a JSON object whose type ends in /key-invalid or #key-invalid, for every Options.ProblemBase.
	Refused func(*http.Response) bool
}

// Guarded finds the routes of a service without a middleware: Guarded reports an error of the test for each request
// that does not reach an [idempotency.Middleware].
//
// Pass one request for each route. Some routers can list their routes (see the example); for net/http's ServeMux, the
// test must name the routes. A request needs the path of the route and valid credentials, but neither a body nor a key.
// A request whose method is not in Options.Methods reaches no middleware, and is reported.
//
// Guarded sends each request with two different keys. A Middleware with any options refuses such a request with
// key-invalid, before the Middleware determines the user, reads the body or calls the store. The handler of a guarded
// route does not run.
//
// The handler of an unguarded route does run, and a valid request takes effect. Give the service a database for tests,
// or send requests without a body, because a handler should refuse an empty body. A panic of the service is an error of
// the test.
//
// Package [github.com/idempotency-go/idempotency/probe] also tests what a guarded route does with retries, and
// [github.com/idempotency-go/idempotency/probe/contract] compares the routes with an OpenAPI description.
//
// Guarded serves the requests one after the other, in this process and without a network. Guarded reads the bodies, and
// leaves the requests unmodified otherwise. Without any request, Guarded reports an error, because nothing was tested.
func Guarded(t testing.TB, service http.Handler, opts GuardedOptions, requests ...*http.Request) {
	t.Helper()
	if len(requests) == 0 {
		t.Errorf("no route was tested, because the test passes no request")
	}
	for _, r := range requests {
		if err := opts.checkRoute(service, r); err != nil {
			t.Errorf("%s %s %v", r.Method, r.URL.Path, err)
		}
	}
}

// checkRoute sends r with two keys, and returns nil if the answer proves that the route is guarded.
func (o GuardedOptions) checkRoute(service http.Handler, r *http.Request) error {
	answer, err := serveRequest(service, o.withTwoKeys(r))
	switch {
	case err != nil:
		return fmt.Errorf("is not guarded: %w", err)
	case o.isRefusal(answer):
		return nil
	}
	status := fmt.Sprintf("answered %d %s", answer.Code, http.StatusText(answer.Code))
	switch answer.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return fmt.Errorf("was not tested: %s. Authentication has refused the request: add valid credentials", status)
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return fmt.Errorf("is not guarded, or does not exist: %s", status)
	}
	if answer.Code >= http.StatusBadRequest {
		return fmt.Errorf("is not guarded, or the request was refused before it reached the middleware: %s", status)
	}
	return fmt.Errorf("is not guarded: %s", status)
}

// withTwoKeys returns a copy of r as a server would receive r, with two keys. A Middleware refuses two keys with any
// options. Each key alone is valid, so that the number of keys is the only reason for a refusal.
func (o GuardedOptions) withTwoKeys(r *http.Request) *http.Request {
	withKeys := r.Clone(r.Context())
	if withKeys.Header == nil {
		withKeys.Header = make(http.Header)
	}
	name := http.CanonicalHeaderKey(cmp.Or(o.Header, "Idempotency-Key"))
	withKeys.Header[name] = []string{uuid.NewString(), uuid.NewString()}
	if withKeys.Body == nil {
		withKeys.Body = http.NoBody
	}
	withKeys.RequestURI = cmp.Or(withKeys.RequestURI, withKeys.URL.RequestURI())
	withKeys.RemoteAddr = cmp.Or(withKeys.RemoteAddr, "192.0.2.1:1234") // the address that httptest.NewRequest sets
	return withKeys
}

// serveRequest returns the answer of the service. If the service panics, serveRequest returns an error.
func serveRequest(service http.Handler, r *http.Request) (answer *httptest.ResponseRecorder, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panicked: %v", v)
		}
	}()
	answer = httptest.NewRecorder()
	service.ServeHTTP(answer, r)
	return answer, nil
}

// isRefusal reports whether answer is the refusal of an invalid key.
func (o GuardedOptions) isRefusal(answer *httptest.ResponseRecorder) bool {
	if o.Refused != nil {
		return o.Refused(answer.Result())
	}
	var problem struct{ Type string }
	err := json.Unmarshal(answer.Body.Bytes(), &problem)
	return err == nil && (strings.HasSuffix(problem.Type, "/key-invalid") || strings.HasSuffix(problem.Type, "#key-invalid"))
}
