package client_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// arrival is a request as it reached a server.
type arrival struct {
	method, path, body string
	keys               []string
}

// arrivals records every request that reaches a server.
type arrivals struct {
	mu  sync.Mutex
	all []arrival
}

// add records r, and returns the number of recorded requests. The body of r can be read again.
func (a *arrivals) add(r *http.Request) (n int) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, arrival{r.Method, r.URL.Path, string(body), r.Header["Idempotency-Key"]})
	return len(a.all)
}

// recordRequests returns a handler that records each request, and passes next the number of the request.
func (a *arrivals) recordRequests(next func(http.ResponseWriter, *http.Request, int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next(w, r, a.add(r)) })
}

func (a *arrivals) list() []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]arrival(nil), a.all...)
}

// requireOneKey requires that n requests have arrived, all with the same key, and returns the key.
func (a *arrivals) requireOneKey(t *testing.T, n int) string {
	t.Helper()
	all := a.list()
	require.Len(t, all, n)
	require.Len(t, all[0].keys, 1)
	for _, got := range all {
		require.Equal(t, all[0].keys, got.keys)
	}
	return all[0].keys[0]
}

// attempts records the attempts of a Transport: the requests that the Transport passes to its Base, with their results.
type attempts struct {
	mu  sync.Mutex
	all []attempt
}

type attempt struct {
	key    string
	status int // 0 without an answer
	err    error
}

// recordAttempts returns a Base that records each attempt and passes the request to base.
func (a *attempts) recordAttempts(base http.RoundTripper) baseFunc {
	return func(r *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(r)
		ended := attempt{key: r.Header.Get("Idempotency-Key"), err: err}
		if err == nil {
			ended.status = resp.StatusCode
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = append(a.all, ended)
		return resp, err
	}
}

func (a *attempts) list() []attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]attempt(nil), a.all...)
}

// baseFunc is a Base that calls a function instead of sending requests.
type baseFunc func(*http.Request) (*http.Response, error)

func (f baseFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// replyWith returns a Base that answers with status and header.
func replyWith(status int, header http.Header) baseFunc {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: header, Body: http.NoBody}, nil
	}
}

// newImpatientTransport returns a Transport with short pauses, whose Base has connections to server.
func newImpatientTransport(server *httptest.Server) *client.Transport {
	return &client.Transport{
		Hosts: []string{"127.0.0.1"}, Base: server.Client().Transport,
		MinDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond, MaxRetryAfter: 3 * time.Millisecond,
	}
}

// newPostRequest returns a POST request with the context of the test.
func newPostRequest(t *testing.T, target, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

// sendRequest sends r with rt, follows redirects, and reads the whole answer.
func sendRequest(rt http.RoundTripper, r *http.Request) testservice.Answer {
	resp, err := (&http.Client{Transport: rt}).Do(r)
	if err != nil {
		return testservice.Answer{Err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: err}
}

// requestBody is a body that counts the calls of Close.
type requestBody struct {
	io.Reader
	closeCalls atomic.Int64
}

func (b *requestBody) Close() error {
	b.closeCalls.Add(1)
	return nil
}

func TestMain(m *testing.M) { testservice.Main(m) }
