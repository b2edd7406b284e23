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

// arrival is a request as a server got it.
type arrival struct {
	method, path, body string
	keys               []string
}

// arrivals keeps every request that reaches a server.
type arrivals struct {
	mu  sync.Mutex
	all []arrival
}

func (a *arrivals) add(r *http.Request) (n int) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, arrival{r.Method, r.URL.Path, string(body), r.Header["Idempotency-Key"]})
	return len(a.all)
}

// record puts a in front of next, which is told the number of the request.
func (a *arrivals) record(next func(http.ResponseWriter, *http.Request, int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next(w, r, a.add(r)) })
}

func (a *arrivals) list() []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]arrival(nil), a.all...)
}

// requireOneKey checks that n requests arrived, with one and the same key, and returns the key.
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

// attempts keeps what the base of a Transport was given, and how it ended.
type attempts struct {
	mu  sync.Mutex
	all []attempt
}

type attempt struct {
	key    string
	status int // zero if there was no answer
	err    error
}

// of returns a base that keeps the attempts of another one.
func (a *attempts) of(base http.RoundTripper) baseFunc {
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

// baseFunc is a base without a network.
type baseFunc func(*http.Request) (*http.Response, error)

func (f baseFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// replying returns a base that answers with status and header.
func replying(status int, header http.Header) baseFunc {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: header, Body: http.NoBody}, nil
	}
}

// impatient is a Transport that does not wait long, on the connections of server.
func impatient(server *httptest.Server) *client.Transport {
	return &client.Transport{
		Hosts: []string{"127.0.0.1"}, Base: server.Client().Transport,
		MinDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond, MaxRetryAfter: 3 * time.Millisecond,
	}
}

func newPost(t *testing.T, target, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

// do sends r by way of rt, follows redirects, and reads the whole answer.
func do(rt http.RoundTripper, r *http.Request) testservice.Answer {
	resp, err := (&http.Client{Transport: rt}).Do(r)
	if err != nil {
		return testservice.Answer{Err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: err}
}

// requestBody is a body that counts how often it was closed.
type requestBody struct {
	io.Reader
	closed atomic.Int64
}

func (b *requestBody) Close() error {
	b.closed.Add(1)
	return nil
}

func TestMain(m *testing.M) { testservice.Main(m) }
