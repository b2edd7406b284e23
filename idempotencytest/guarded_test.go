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

// report is a test that records its errors.
type report struct {
	testing.TB
	errors []string
}

func (r *report) Helper() {}
func (r *report) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// guarding returns what Guarded reports.
func guarding(service http.Handler, opts idempotencytest.GuardedOptions, requests ...*http.Request) []string {
	test := new(report)
	idempotencytest.Guarded(test, service, opts, requests...)
	return test.errors
}

// guard puts a handler behind a middleware that knows nobody, so that it gets no further than to the key.
func guard(t *testing.T, opts idempotency.Options) http.Handler {
	t.Helper()
	nobody := func(*http.Request) (string, error) { return "", errors.New("nobody is known") }
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), nobody, opts)
	require.NoError(t, err)
	return idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the handler of a guarded route has run")
	}))
}

func TestGuardedAcceptsEveryConfiguration(t *testing.T) {
	t.Parallel()
	short := func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
		http.Error(w, e.Code, http.StatusTeapot)
	}
	for name, tested := range map[string]struct {
		opts   idempotency.Options
		fitted idempotencytest.GuardedOptions
		method string
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
			opts:   idempotency.Options{Headers: []string{"X-Idempotency-Key"}},
			fitted: idempotencytest.GuardedOptions{Header: "x-idempotency-key"},
		},
		"other refusals": {
			opts: idempotency.Options{ErrorHandler: short},
			fitted: idempotencytest.GuardedOptions{Refused: func(answer *http.Response) bool {
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
			require.Empty(t, guarding(guard(t, tested.opts), tested.fitted, r))
		})
	}
}

func TestGuardedReportsWhatIsNotGuarded(t *testing.T) {
	t.Parallel()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	problem := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			idempotency.WriteProblem(w, r, &idempotency.Error{Status: http.StatusBadRequest, Code: kind})
		}
	}
	const outside = "POST /refunds is not guarded, or the request was refused before its guard: answered "
	for want, service := range map[string]http.Handler{
		"POST /refunds is not guarded: answered 201 Created":            status(201),
		"POST /refunds is not guarded: answered 307 Temporary Redirect": status(307),
		"POST /refunds was not tested: answered 401 Unauthorized. " +
			"The request did not get past authentication: give it credentials": status(401),
		"POST /refunds was not tested: answered 403 Forbidden. " +
			"The request did not get past authentication: give it credentials": status(403),
		"POST /refunds is not guarded, or is no route: answered 404 Not Found":          http.NewServeMux(),
		"POST /refunds is not guarded, or is no route: answered 405 Method Not Allowed": status(405),
		outside + "400 Bad Request":           problem("another"),
		outside + "422 Unprocessable Entity":  status(422),
		outside + "500 Internal Server Error": status(500),
		"POST /refunds is not guarded: panicked: no database": http.HandlerFunc(
			func(http.ResponseWriter, *http.Request) { panic("no database") }),
		"POST /refunds is not guarded: answered 202 Accepted": passing(t),
	} {
		r := httptest.NewRequest(http.MethodPost, "/refunds", nil)
		require.Equal(t, []string{want}, guarding(service, idempotencytest.GuardedOptions{}, r))
	}
}

// passing returns a handler behind a middleware that does not guard the method POST.
func passing(t *testing.T) http.Handler {
	t.Helper()
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Methods: []string{http.MethodPatch}})
	require.NoError(t, err)
	return idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	}))
}

// With another header than that of the service, nothing is found to be guarded.
func TestGuardedNeedsTheHeaderOfTheService(t *testing.T) {
	t.Parallel()
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Headers: []string{"X-Idempotency-Key"}})
	require.NoError(t, err)
	service := idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	require.Equal(t, []string{"POST /payments is not guarded: answered 200 OK"},
		guarding(service, idempotencytest.GuardedOptions{}, r))
	require.Empty(t, guarding(service, idempotencytest.GuardedOptions{Header: "X-Idempotency-Key"}, r))
}

func TestGuardedReportsEachForgottenRoute(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard(t, idempotency.Options{}))
	mux.Handle("POST /payments/{id}/refunds", http.NotFoundHandler())
	mux.Handle("PATCH /payments/{id}", guard(t, idempotency.Options{}))
	mux.HandleFunc("POST /logins", func(http.ResponseWriter, *http.Request) {})
	errs := guarding(mux, idempotencytest.GuardedOptions{},
		httptest.NewRequest(http.MethodPost, "/payments", nil),
		httptest.NewRequest(http.MethodPost, "/payments/{id}/refunds", nil),
		httptest.NewRequest(http.MethodPatch, "/payments/7", nil),
		httptest.NewRequest(http.MethodPost, "/logins?next=/", strings.NewReader("name=alice")),
	)
	require.Equal(t, []string{
		"POST /payments/{id}/refunds is not guarded, or is no route: answered 404 Not Found",
		"POST /logins is not guarded: answered 200 OK",
	}, errs)
}

func TestGuardedReportsThatNothingWasTested(t *testing.T) {
	t.Parallel()
	errs := guarding(http.NotFoundHandler(), idempotencytest.GuardedOptions{})
	require.Equal(t, []string{"no route was tested, because there is no request"}, errs)
}

// A request that a client would send is served as if it had come over the network, and stays as it is.
func TestGuardedServesRequestsOfClients(t *testing.T) {
	t.Parallel()
	var served *http.Request
	service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served = r
		guard(t, idempotency.Options{}).ServeHTTP(w, r)
	})
	own := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/payments", RawQuery: "dry=1"}}
	require.Empty(t, guarding(service, idempotencytest.GuardedOptions{}, own))
	require.Equal(t, "/payments?dry=1", served.RequestURI)
	require.NotEmpty(t, served.RemoteAddr)
	require.NotNil(t, served.Body)
	require.Empty(t, own.Header)
	require.Empty(t, own.RequestURI)
}
