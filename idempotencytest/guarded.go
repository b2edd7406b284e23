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

// GuardedOptions fit [Guarded] to the options of a service. The zero value of each field is its default.
type GuardedOptions struct {
	// Header is one of the names in Options.Headers of the service. Empty means Idempotency-Key.
	Header string

	// Refused reports whether an answer is the refusal of an invalid key. It is for services whose Options.ErrorHandler
	// writes other bodies than [idempotency.WriteProblem] does. It must report false for whatever a handler may answer,
	// or Guarded would not notice a route that is not guarded. Nil means that the body must be a JSON object whose type
	// ends in /key-invalid or #key-invalid, whatever Options.ProblemBase of the service is.
	Refused func(*http.Response) bool
}

// Guarded is for the tests of a service: it reports an error for each request that does not reach an
// [idempotency.Middleware] before it reaches a handler. So it finds the routes on which the middleware was forgotten.
//
// The requests name the routes, one request for each. A router that lists its routes can make them, see the example;
// net/http's ServeMux lists none, so there the test names them. A request needs the path of its route and what
// authentication asks for. It needs no body, and no key. One whose method is not in Options.Methods is reported, too.
//
// Guarded sends each request with two different keys, which a Middleware refuses with key-invalid, whatever its options
// are. It does so before it asks for the user, reads the body or looks into the store. So the handler of a guarded route
// does not run.
//
// The handler of a route that is not guarded does run. If the request is valid, it has its effects: give the service
// a database for tests, or send requests without a body, which a handler should refuse. A panic of the service is
// reported as an error of the test.
//
// The requests are served one after the other, in this process and without a network. They are not modified, except that a
// body is read. Without any request, Guarded reports an error, because it has tested nothing.
func Guarded(t testing.TB, service http.Handler, opts GuardedOptions, requests ...*http.Request) {
	t.Helper()
	if len(requests) == 0 {
		t.Errorf("no route was tested, because there is no request")
	}
	for _, r := range requests {
		if err := opts.probe(service, r); err != nil {
			t.Errorf("%s %s %v", r.Method, r.URL.Path, err)
		}
	}
}

// probe returns what the answer to a request with two keys says of its route, or nil if the route is guarded.
func (o GuardedOptions) probe(service http.Handler, r *http.Request) error {
	answer, err := serve(service, o.withTwoKeys(r))
	switch {
	case err != nil:
		return fmt.Errorf("is not guarded: %w", err)
	case o.refused(answer):
		return nil
	}
	status := fmt.Sprintf("answered %d %s", answer.Code, http.StatusText(answer.Code))
	switch answer.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return fmt.Errorf("was not tested: %s. The request did not get past authentication: give it credentials", status)
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return fmt.Errorf("is not guarded, or is no route: %s", status)
	}
	if answer.Code >= http.StatusBadRequest {
		return fmt.Errorf("is not guarded, or the request was refused before its guard: %s", status)
	}
	return fmt.Errorf("is not guarded: %s", status)
}

// withTwoKeys returns a copy of the request, as a server gets it, whose keys no options accept. Each of them alone is
// well-formed, so that nothing else refuses them.
func (o GuardedOptions) withTwoKeys(r *http.Request) *http.Request {
	keyed := r.Clone(r.Context())
	if keyed.Header == nil {
		keyed.Header = make(http.Header)
	}
	name := http.CanonicalHeaderKey(cmp.Or(o.Header, "Idempotency-Key"))
	keyed.Header[name] = []string{uuid.NewString(), uuid.NewString()}
	if keyed.Body == nil {
		keyed.Body = http.NoBody
	}
	keyed.RequestURI = cmp.Or(keyed.RequestURI, keyed.URL.RequestURI())
	keyed.RemoteAddr = cmp.Or(keyed.RemoteAddr, "192.0.2.1:1234") // as httptest has it
	return keyed
}

// serve returns the answer of the service. The error is its panic.
func serve(service http.Handler, r *http.Request) (answer *httptest.ResponseRecorder, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panicked: %v", v)
		}
	}()
	answer = httptest.NewRecorder()
	service.ServeHTTP(answer, r)
	return answer, nil
}

func (o GuardedOptions) refused(answer *httptest.ResponseRecorder) bool {
	if o.Refused != nil {
		return o.Refused(answer.Result())
	}
	var problem struct{ Type string }
	err := json.Unmarshal(answer.Body.Bytes(), &problem)
	return err == nil && (strings.HasSuffix(problem.Type, "/key-invalid") || strings.HasSuffix(problem.Type, "#key-invalid"))
}
