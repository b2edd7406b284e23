package idempotencytest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
)

// errorRecorder is a test that records its errors.
type errorRecorder struct {
	testing.TB
	errors []string
}

func (r *errorRecorder) Helper() {}
func (r *errorRecorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// runGuarded returns the errors that Guarded reports.
func runGuarded(service http.Handler, opts idempotencytest.GuardedOptions, requests ...*http.Request) []string {
	test := new(errorRecorder)
	idempotencytest.Guarded(test, service, opts, requests...)
	return test.errors
}

// newGuardedHandler returns a handler behind a middleware. The middleware fails to determine the user, so that the
// handler never runs.
func newGuardedHandler(t *testing.T, opts idempotency.Options) http.Handler {
	t.Helper()
	noUser := func(*http.Request) (string, error) { return "", errors.New("unknown user") }
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), noUser, opts)
	require.NoError(t, err)
	return idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the handler of a guarded route has run")
	}))
}

func TestGuardedAcceptsEveryConfiguration(t *testing.T) {
	t.Parallel()
	writeCode := func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
		http.Error(w, e.Code, http.StatusTeapot)
	}
	for name, tested := range map[string]struct {
		opts        idempotency.Options
		guardedOpts idempotencytest.GuardedOptions
		method      string
	}{
		"defaults":    {},
		"required":    {opts: idempotency.Options{Required: true}},
		"UUIDs":       {opts: idempotency.Options{ValidateKey: idempotency.ValidateUUID}},
		"any key":     {opts: idempotency.Options{ValidateKey: func(string) error { return nil }}},
		"fail open":   {opts: idempotency.Options{FailOpen: true}},
		"streams":     {opts: idempotency.Options{Stream: true}},
		"other verb":  {opts: idempotency.Options{Methods: []string{"DELETE"}}, method: "DELETE"},
		"base":        {opts: idempotency.Options{ProblemBase: "https://api.example.com/problems/"}},
		"two headers": {opts: idempotency.Options{Headers: []string{"X-Request-Id", "Idempotency-Key"}}},
		"other header": {
			opts:        idempotency.Options{Headers: []string{"X-Idempotency-Key"}},
			guardedOpts: idempotencytest.GuardedOptions{Header: "x-idempotency-key"},
		},
		"other refusals": {
			opts: idempotency.Options{ErrorHandler: writeCode},
			guardedOpts: idempotencytest.GuardedOptions{Refused: func(answer *http.Response) bool {
				body, err := io.ReadAll(answer.Body)
				return err == nil && answer.StatusCode == http.StatusTeapot && string(body) == "key-invalid\n"
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			method := tested.method
			if method == "" {
				method = http.MethodPost
			}
			r := httptest.NewRequest(method, "/payments", nil)
			require.Empty(t, runGuarded(newGuardedHandler(t, tested.opts), tested.guardedOpts, r))
		})
	}
}

func TestGuardedReportsUnguardedRoutes(t *testing.T) {
	t.Parallel()
	answerStatus := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	answerProblem := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			idempotency.WriteProblem(w, r, &idempotency.Error{Status: http.StatusBadRequest, Code: kind})
		}
	}
	const refused = "POST /refunds is not guarded, or the request was refused before it reached the middleware: answered "
	for want, service := range map[string]http.Handler{
		"POST /refunds is not guarded: answered 201 Created":            answerStatus(201),
		"POST /refunds is not guarded: answered 307 Temporary Redirect": answerStatus(307),
		"POST /refunds was not tested: answered 401 Unauthorized. " +
			"Authentication has refused the request: add valid credentials": answerStatus(401),
		"POST /refunds was not tested: answered 403 Forbidden. " +
			"Authentication has refused the request: add valid credentials": answerStatus(403),
		"POST /refunds is not guarded, or does not exist: answered 404 Not Found":          http.NewServeMux(),
		"POST /refunds is not guarded, or does not exist: answered 405 Method Not Allowed": answerStatus(405),
		refused + "400 Bad Request":           answerProblem("another"),
		refused + "422 Unprocessable Entity":  answerStatus(422),
		refused + "500 Internal Server Error": answerStatus(500),
		"POST /refunds is not guarded: panicked: no database": http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { panic("no database") }),
		"POST /refunds is not guarded: answered 202 Accepted": newUnguardedHandler(t),
	} {
		r := httptest.NewRequest(http.MethodPost, "/refunds", nil)
		require.Equal(t, []string{want}, runGuarded(service, idempotencytest.GuardedOptions{}, r))
	}
}

// newUnguardedHandler returns a handler behind a middleware that does not guard the method POST.
func newUnguardedHandler(t *testing.T) http.Handler {
	t.Helper()
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Methods: []string{http.MethodPatch}})
	require.NoError(t, err)
	return idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	}))
}

// Without the header of the service in GuardedOptions, Guarded reports all routes.
func TestGuardedNeedsTheHeaderOfTheService(t *testing.T) {
	t.Parallel()
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Headers: []string{"X-Idempotency-Key"}})
	require.NoError(t, err)
	service := idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	require.Equal(t, []string{"POST /payments is not guarded: answered 200 OK"},
		runGuarded(service, idempotencytest.GuardedOptions{}, r))
	require.Empty(t, runGuarded(service, idempotencytest.GuardedOptions{Header: "X-Idempotency-Key"}, r))
}

func TestGuardedReportsEachForgottenRoute(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.Handle("POST /payments", newGuardedHandler(t, idempotency.Options{}))
	mux.Handle("POST /payments/{id}/refunds", http.NotFoundHandler())
	mux.Handle("PATCH /payments/{id}", newGuardedHandler(t, idempotency.Options{}))
	mux.HandleFunc("POST /logins", func(http.ResponseWriter, *http.Request) {})
	errs := runGuarded(mux, idempotencytest.GuardedOptions{},
		httptest.NewRequest(http.MethodPost, "/payments", nil),
		httptest.NewRequest(http.MethodPost, "/payments/{id}/refunds", nil),
		httptest.NewRequest(http.MethodPatch, "/payments/7", nil),
		httptest.NewRequest(http.MethodPost, "/logins?next=/", strings.NewReader("name=alice")),
	)
	require.Equal(t, []string{
		"POST /payments/{id}/refunds is not guarded, or does not exist: answered 404 Not Found",
		"POST /logins is not guarded: answered 200 OK",
	}, errs)
}

func TestGuardedReportsMissingRequests(t *testing.T) {
	t.Parallel()
	errs := runGuarded(http.NotFoundHandler(), idempotencytest.GuardedOptions{})
	require.Equal(t, []string{"no route was tested, because the test passes no request"}, errs)
}

// Guarded serves a request of a client like a request from the network, and leaves the original request unmodified.
func TestGuardedServesRequestsOfClients(t *testing.T) {
	t.Parallel()
	var served *http.Request
	service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served = r
		newGuardedHandler(t, idempotency.Options{}).ServeHTTP(w, r)
	})
	own := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/payments", RawQuery: "dry=1"}}
	require.Empty(t, runGuarded(service, idempotencytest.GuardedOptions{}, own))
	require.Equal(t, "/payments?dry=1", served.RequestURI)
	require.NotEmpty(t, served.RemoteAddr)
	require.NotNil(t, served.Body)
	require.Empty(t, own.Header)
	require.Empty(t, own.RequestURI)
}
