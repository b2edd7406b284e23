package idempotency_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
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
func impatient(server *httptest.Server) *idempotency.Transport {
	return &idempotency.Transport{
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

func TestTransportSendsAgainWhatMayEndBetter(t *testing.T) {
	t.Parallel()
	const again, final = 2, 1
	tests := []struct {
		status int
		header string
		sent   int
	}{
		{200, "", final}, {201, "", final}, {400, "", final}, {401, "", final}, {404, "", final}, {408, "", final},
		{409, "", final}, {409, "Retry-After: 1", again}, {409, "Idempotent-Replayed: true", final},
		{409, "Stripe-Should-Retry: true", again}, {409, "Stripe-Should-Retry: false", final}, {413, "", final},
		{422, "", final}, {422, "Retry-After: 1", final}, {425, "", again}, {429, "", again}, {500, "", again},
		{501, "", final}, {502, "", again}, {503, "", again}, {504, "", again}, {505, "", final},
		// Any handler can claim to be a replay.
		{201, "Idempotent-Replayed: true", final}, {500, "Idempotent-Replayed: true", again},
		{503, "Idempotent-Replayed: true", again},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, " ", tt.header), func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
				if n > 1 {
					w.WriteHeader(http.StatusAccepted)
				} else {
					name, value, _ := strings.Cut(tt.header, ": ")
					w.Header().Set(name, value)
					w.WriteHeader(tt.status)
				}
				fmt.Fprintf(w, "answer %d", n)
			}), false)
			a := do(impatient(server), newPost(t, server.URL, "order 1"))

			require.NoError(t, a.Err)
			want := testservice.Answer{Status: tt.status, Body: "answer 1"}
			if tt.sent == again {
				want = testservice.Answer{Status: http.StatusAccepted, Body: "answer 2"}
			}
			require.Equal(t, want, testservice.Answer{Status: a.Status, Body: a.Body})
			key := got.requireOneKey(t, tt.sent)
			require.Equal(t, uuid.Version(4), uuid.MustParse(key).Version())
			for _, got := range got.list() {
				require.Equal(t, "order 1", got.body)
			}
		})
	}
}

func TestTransportEndsAtOnceWhenTheMiddlewareRefusesForGood(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 4}, Outer: func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, _ int) { next.ServeHTTP(w, r) })
	}}.Serve(t, testservice.Echo)
	ctx := idempotency.WithKey(t.Context(), "k")

	require.Equal(t, 201, do(impatient(svc.Server), newPost(t, svc.Server.URL, "too long").WithContext(ctx)).Status)
	again := do(impatient(svc.Server), newPost(t, svc.Server.URL, "too long").WithContext(ctx))
	testservice.RequireProblem(t, again, 409, "not-replayable")
	reused := do(impatient(svc.Server), newPost(t, svc.Server.URL, "another").WithContext(ctx))
	testservice.RequireProblem(t, reused, 409, "key-reused")
	got.requireOneKey(t, 3)
}

func TestTransportKey(t *testing.T) {
	t.Parallel()
	const random = "a random UUID"
	unnamed := idempotency.Transport{Hosts: []string{"service.test"}}
	own := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	tests := []struct {
		name      string
		method    string
		transport idempotency.Transport
		header    http.Header
		context   string
		want      []string
		sent      int // where each answer is 503
	}{
		{name: "POST", method: "POST", want: []string{random}, sent: 4},
		{name: "PATCH", method: "PATCH", want: []string{random}, sent: 4},
		{name: "GET", method: "GET", sent: 1},
		{name: "PUT", method: "PUT", sent: 1},
		{name: "DELETE", method: "DELETE", sent: 1},
		{name: "of the context", method: "POST", context: "k-1", want: []string{"k-1"}, sent: 4},
		{name: "of the context, GET", method: "GET", context: "k-1", sent: 1},
		{name: "of the context, needs quotes", method: "POST", context: `a,"b\`, want: []string{`"a,\"b\\"`}, sent: 4},
		{name: "of the context, looks quoted", method: "POST", context: `"a"`, want: []string{`"\"a\""`}, sent: 4},
		{name: "quoted", method: "POST", context: "k-1", transport: idempotency.Transport{Quoted: true},
			want: []string{`"k-1"`}, sent: 4},
		{name: "the caller's", method: "POST", header: own("mine"), context: "k-1", want: []string{"mine"}, sent: 4},
		{name: "the caller's, kept as it is", method: "POST", header: own("mine", "two"),
			want: []string{"mine", "two"}, sent: 4},
		{name: "the caller's, PUT", method: "PUT", header: own("mine"), want: []string{"mine"}, sent: 4},
		{name: "none by the convention of net/http", method: "POST", header: own(), context: "k-1", sent: 1},
		{name: "set to nothing", method: "POST", header: own(""), want: []string{""}, sent: 1},
		{name: "unnamed host", method: "POST", transport: unnamed, sent: 1},
		{name: "unnamed host, of the context", method: "POST", transport: unnamed, context: "k-1",
			want: []string{"k-1"}, sent: 1},
		{name: "unnamed host, of the context, GET", method: "GET", transport: unnamed, context: "k-1", sent: 1},
		{name: "unnamed host, the caller's", method: "PUT", transport: unnamed, header: own("mine"),
			want: []string{"mine"}, sent: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}), false)
			ctx := t.Context()
			if tt.context != "" {
				ctx = idempotency.WithKey(ctx, tt.context)
			}
			r := newPost(t, server.URL, "order 1").WithContext(ctx)
			r.Method, r.Header["Idempotency-Key"] = tt.method, tt.header["Idempotency-Key"]
			if tt.header == nil {
				delete(r.Header, "Idempotency-Key")
			}
			before := r.Header.Clone()
			transport := impatient(server)
			transport.Quoted = tt.transport.Quoted
			if tt.transport.Hosts != nil {
				transport.Hosts = tt.transport.Hosts
			}

			require.Equal(t, 503, do(transport, r).Status)
			require.Equal(t, before, r.Header, "the caller's request was changed")
			require.Len(t, got.list(), tt.sent)
			for i, a := range got.list() {
				if i == 0 && len(tt.want) == 1 && tt.want[0] == random {
					require.Len(t, a.keys, 1)
					require.NoError(t, idempotency.ValidateUUID(a.keys[0]))
					tt.want = a.keys
				}
				require.Equal(t, tt.want, a.keys)
			}
		})
	}
}

func TestTransportTakesARequestWithoutAHeader(t *testing.T) {
	t.Parallel()
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "service.test"}}
	transport := idempotency.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(sent *http.Request) (*http.Response, error) {
		require.NoError(t, idempotency.ValidateUUID(sent.Header.Get("Idempotency-Key")))
		return replying(200, nil)(sent)
	})
	_, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Nil(t, r.Header)
}

func TestTransportMakesANewKeyForEachRequest(t *testing.T) {
	t.Parallel()
	var got arrivals
	server := testservice.Listen(t, got.record(func(http.ResponseWriter, *http.Request, int) {}), false)
	r := newPost(t, server.URL, "order 1")
	require.NoError(t, do(impatient(server), r).Err)
	require.NoError(t, do(impatient(server), newPost(t, server.URL, "order 1")).Err)
	require.NotEqual(t, got.list()[0].keys, got.list()[1].keys)
}

func TestTransportHeaderOfAnotherName(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{Headers: []string{"X-Request-Key"}, Required: true}}.Serve(t, testservice.Echo)
	transport := impatient(svc.Server)
	transport.Header = "x-request-key"
	require.Equal(t, 201, do(transport, newPost(t, svc.Server.URL, "order 1")).Status)
}

func TestTransportKeyReadsTheSameOnTheServer(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		_, _ = io.WriteString(w, op.Key.ID)
	})
	for _, key := range []string{"k-1", `"`, `""`, `"k-1"`, `\`, `a\"b`, ",", ";", "a,b;c", strings.Repeat(`"`, 255)} {
		for _, quoted := range []bool{false, true} {
			transport := impatient(svc.Server)
			transport.Quoted = quoted
			a := do(transport, newPost(t, svc.Server.URL, "").WithContext(idempotency.WithKey(t.Context(), key)))
			require.Equal(t, key, a.Body)
		}
	}
	require.EqualValues(t, 10, svc.Runs.Load(), "bare and quoted are one key")
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

func TestTransportRefusesAnInvalidKeyOfTheContext(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a b", "é", strings.Repeat("k", 256)} {
		b := &requestBody{Reader: strings.NewReader("order 1")}
		r := newPost(t, "http://service.test", "").WithContext(idempotency.WithKey(t.Context(), key))
		r.Body = b
		a := do(&idempotency.Transport{Hosts: []string{"service.test"}, Base: baseFunc(func(*http.Request) (*http.Response, error) {
			panic("sent")
		})}, r)
		require.ErrorIs(t, a.Err, idempotency.ErrKeyInvalid, "key %q", key)
		require.EqualValues(t, 1, b.closed.Load())
	}
}

func TestTransportHandsBackTheLastAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ max, sent int }{{0, 4}, {1, 1}, {3, 3}} {
		var got arrivals
		var seen attempts
		server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "answer %d", n)
		}), false)
		transport := impatient(server)
		transport.MaxAttempts, transport.Base = tt.max, seen.of(transport.Base)

		a := do(transport, newPost(t, server.URL, "order 1"))
		require.NoError(t, a.Err)
		require.Equal(t, testservice.Answer{Status: 503, Body: fmt.Sprint("answer ", tt.sent)}, testservice.Answer{Status: a.Status, Body: a.Body})
		key := got.requireOneKey(t, tt.sent)
		require.Len(t, seen.list(), tt.sent)
		for _, attempt := range seen.list() {
			require.Equal(t, key, attempt.key)
		}
	}
}

func TestTransportErrorTellsAttemptsAndKey(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close() // so that nobody listens there
	transport, seen := impatient(server), attempts{}
	transport.Base, transport.Quoted = seen.of(transport.Base), true
	a := do(transport, newPost(t, server.URL, "order 1").WithContext(idempotency.WithKey(t.Context(), "k-1")))

	failure, ok := errors.AsType[*idempotency.TransportError](a.Err)
	require.True(t, ok)
	require.Equal(t, 4, failure.Attempts)
	require.Equal(t, "k-1", failure.Key)
	require.ErrorContains(t, a.Err, "after 4 attempt(s): "+failure.Err.Error())
	_, ok = errors.AsType[*net.OpError](a.Err)
	require.True(t, ok, "the network's error is gone: %v", a.Err)
	require.Len(t, seen.list(), 4)
}

func TestTransportErrorIsATimeoutIfItsCauseIs(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{context.DeadlineExceeded, io.EOF} {
		transport := idempotency.Transport{Hosts: []string{"service.test"}, MaxAttempts: 1}
		transport.Base = baseFunc(func(*http.Request) (*http.Response, error) { return nil, cause })
		failure, ok := errors.AsType[*url.Error](do(&transport, newPost(t, "http://service.test", "")).Err)
		require.True(t, ok)
		require.Equal(t, cause == context.DeadlineExceeded, failure.Timeout())
	}
}

func TestTransportBodyWithoutGetBody(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	tests := []struct {
		name          string
		size          int
		contentLength int64 // as http.NewRequest has it, 0 is unknown
		sent          int
	}{
		{name: "unknown length", size: 7, sent: 4},
		{name: "unknown length, empty", size: 0, sent: 4},
		{name: "known length", size: 7, contentLength: 7, sent: 4},
		{name: "unknown length, at the bound", size: bound, sent: 4},
		{name: "known length, at the bound", size: bound, contentLength: bound, sent: 4},
		{name: "unknown length, beyond the bound", size: bound + 1, sent: 1},
		{name: "unknown length, far beyond the bound", size: 3 * bound, sent: 1},
		{name: "known length, beyond the bound", size: bound + 1, contentLength: bound + 1, sent: 1},
		{name: "stream", size: 7, contentLength: -1, sent: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.record(func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) }), false)
			content := strings.Repeat("0123456789abcde\n", tt.size/16+1)[:tt.size]
			b := &requestBody{Reader: strings.NewReader(content)}
			r := newPost(t, server.URL, "")
			r.Body, r.GetBody, r.ContentLength = b, nil, tt.contentLength
			a := do(impatient(server), r)

			failure, ok := errors.AsType[*idempotency.TransportError](a.Err)
			require.True(t, ok)
			require.Equal(t, tt.sent, failure.Attempts)
			require.Equal(t, got.requireOneKey(t, tt.sent), failure.Key, "the caller may send it again")
			for _, arrived := range got.list() {
				require.True(t, content == arrived.body, "%d of %d bytes arrived", len(arrived.body), len(content))
			}
			require.EqualValues(t, 1, b.closed.Load())
			require.Equal(t, io.ReadCloser(b), r.Body, "the caller's request was changed")
		})
	}
}

// A stream can have a writer that waits for the answer. So nothing is read before it is sent.
func TestTransportSendsAStreamWhileItIsWritten(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	defer server.Close()
	body, writer := io.Pipe()
	r := newPost(t, server.URL, "")
	r.Body, r.GetBody, r.ContentLength = body, nil, -1
	resp, err := impatient(server).RoundTrip(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.WriteString(writer, "after the answer began")
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	echoed, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "after the answer began", string(echoed))
}

func TestTransportReadsNoMoreThanItCanKeep(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	for _, tt := range []struct {
		contentLength int64
		readable      int
	}{{-1, 0}, {bound + 1, 0}, {0, bound + 1}} {
		content := strings.NewReader(strings.Repeat("x", tt.readable))
		r := newPost(t, "http://service.test", "")
		r.Body = io.NopCloser(io.MultiReader(content, iotest.ErrReader(io.ErrUnexpectedEOF)))
		r.GetBody, r.ContentLength = nil, tt.contentLength
		transport := idempotency.Transport{Hosts: []string{"service.test"}, Base: replying(200, nil)}
		_, err := transport.RoundTrip(r)
		require.NoError(t, err, "ContentLength: %d", tt.contentLength)
	}
}

func TestTransportReportsABodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	gone := errors.New("file is gone")
	b := &requestBody{Reader: io.MultiReader(strings.NewReader("order"), iotest.ErrReader(gone))}
	r := newPost(t, "http://service.test", "")
	r.Body, r.GetBody, r.ContentLength = b, nil, 7
	_, err := (&idempotency.Transport{Hosts: []string{"service.test"}, Base: replying(200, nil)}).RoundTrip(r)
	failure, ok := errors.AsType[*idempotency.TransportError](err)
	require.True(t, ok)
	require.Zero(t, failure.Attempts)
	require.ErrorIs(t, err, gone)
	require.EqualValues(t, 1, b.closed.Load())
}

// A body can stall for longer than its context lasts.
func TestContextEndsTheReadingOfABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		body, _ := io.Pipe()
		r := newPost(t, "http://service.test", "").WithContext(ctx)
		r.Body, r.GetBody, r.ContentLength = body, nil, 7
		began := time.Now()
		_, err := (&idempotency.Transport{Hosts: []string{"service.test"}, Base: replying(200, nil)}).RoundTrip(r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

func TestTransportTriesOnceWhatCanNeverBeSent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edit func(*http.Request)
		text string // of the error
	}{
		{name: "unknown scheme", edit: func(r *http.Request) { r.URL.Scheme = "foo" }, text: "unsupported protocol scheme"},
		{name: "no URL", edit: func(r *http.Request) { r.URL = nil }, text: "nil Request.URL"},
		{name: "no host", edit: func(r *http.Request) { r.URL.Host = "" }, text: "no Host"},
		{name: "invalid method", edit: func(r *http.Request) { r.Method = "PO ST" }, text: "invalid method"},
		{name: "invalid field name", edit: func(r *http.Request) { r.Header["X A"] = []string{"a"} }, text: "invalid header"},
		{name: "empty field name", edit: func(r *http.Request) { r.Header[""] = []string{"a"} }, text: "invalid header"},
		{name: "line break in a field", edit: func(r *http.Request) { r.Header.Set("X-A", "a\nb") }, text: "invalid header"},
		{name: "DEL in a field", edit: func(r *http.Request) { r.Header.Set("X-A", "a\x7Fb") }, text: "invalid header"},
		{name: "invalid trailer", edit: func(r *http.Request) { r.Trailer = http.Header{"X A": nil} }, text: "invalid trailer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := testservice.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				panic(http.ErrAbortHandler)
			}), false)
			r := newPost(t, server.URL, "order 1")
			r.Header.Set("Idempotency-Key", "k-1")
			tt.edit(r)
			_, err := impatient(server).RoundTrip(r)
			failure, ok := errors.AsType[*idempotency.TransportError](err)
			require.True(t, ok)
			require.Equal(t, 1, failure.Attempts, "%v", err)
			require.ErrorContains(t, err, tt.text)
		})
	}
}

// The opposite: these look odd, and net/http sends them.
func TestTransportRepeatsWhatCanBeSent(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*http.Request){
		"no method, which is GET":         func(r *http.Request) { r.Method = "" },
		"tab and other bytes in a field":  func(r *http.Request) { r.Header.Set("X-A", "a\tb\xFF\xE9") },
		"no body":                         func(r *http.Request) { r.Body, r.GetBody, r.ContentLength = nil, nil, 0 },
		"no body, though a length is set": func(r *http.Request) { r.Body, r.GetBody = http.NoBody, nil },
		"body whose length is not told":   func(r *http.Request) { r.ContentLength = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testservice.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), false)
			r := newPost(t, server.URL, "order 1")
			r.Header.Set("Idempotency-Key", "k-1")
			edit(r)
			_, err := impatient(server).RoundTrip(r)
			failure, ok := errors.AsType[*idempotency.TransportError](err)
			require.True(t, ok)
			require.Equal(t, 4, failure.Attempts, "%v", err)
		})
	}
}

func TestTraceIsToldOfAttemptsOnly(t *testing.T) {
	t.Parallel()
	server := testservice.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), true)
	var connections atomic.Int64
	trace := &httptrace.ClientTrace{GetConn: func(string) { connections.Add(1) }}
	r := newPost(t, server.URL, "order 1")
	_, err := impatient(server).RoundTrip(r.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
	failure, ok := errors.AsType[*idempotency.TransportError](err)
	require.True(t, ok)
	require.Equal(t, 4, failure.Attempts)
	require.EqualValues(t, 4, connections.Load())
}

func TestTransportReportsABodyThatCannotBeReplayed(t *testing.T) {
	t.Parallel()
	gone := errors.New("file is gone")
	r := newPost(t, "http://service.test", "order 1")
	r.GetBody = func() (io.ReadCloser, error) { return nil, gone }
	transport := idempotency.Transport{Hosts: []string{"service.test"}, MinDelay: 1, Base: replying(503, nil)}
	_, err := transport.RoundTrip(r)
	failure, ok := errors.AsType[*idempotency.TransportError](err)
	require.True(t, ok)
	require.Equal(t, 1, failure.Attempts)
	require.ErrorIs(t, err, gone)
}

func TestTransportTrustsNoUnknownCertificate(t *testing.T) {
	t.Parallel()
	server := testservice.Listen(t, http.NotFoundHandler(), true)
	base := server.Client().Transport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	transport := impatient(server)
	transport.Base = base
	failure, ok := errors.AsType[*idempotency.TransportError](do(transport, newPost(t, server.URL, "order 1")).Err)
	require.True(t, ok)
	require.Equal(t, 1, failure.Attempts)
}

// lose lets the first answers of a guarded handler get lost in the way that lost names.
func lose(lost string, times int, got *arrivals) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, n int) {
			if n > times {
				next.ServeHTTP(w, r)
				return
			}
			if lost != "before the handler ran" {
				next.ServeHTTP(httptest.NewRecorder(), r)
			}
			part, cut := map[string]string{
				"in the status line": "HTTP/1.1 201 Cre",
				"in the header":      "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n",
				"in the body":        "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n\r\nord",
			}[lost]
			if !cut {
				panic(http.ErrAbortHandler)
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, part)
			_ = conn.Close()
		})
	}
}

func TestLostAnswersTakeEffectOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{
		"before the handler ran", "before the answer began", "in the status line", "in the header",
	} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			svc := testservice.Setup{Outer: lose(lost, 3, &got)}.Serve(t, testservice.Echo)
			a := do(impatient(svc.Server), newPost(t, svc.Server.URL+"/payments", "order 1"))

			require.NoError(t, a.Err)
			require.Equal(t, testservice.Answer{Status: 201, Body: "order 1"}, testservice.Answer{Status: a.Status, Body: a.Body})
			require.Equal(t, lost != "before the handler ran", a.Replayed())
			require.EqualValues(t, 1, svc.Runs.Load())
			got.requireOneKey(t, 4)
		})
	}
}

func TestAnswerCutInItsBodyIsTheCallersToAskForAgain(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: lose("in the body", 1, &got)}.Serve(t, testservice.Echo)
	r := newPost(t, svc.Server.URL+"/payments", "order 1").WithContext(idempotency.WithKey(t.Context(), "k-1"))

	a := do(impatient(svc.Server), r)
	require.ErrorIs(t, a.Err, io.ErrUnexpectedEOF)
	got.requireOneKey(t, 1)

	r.Body, _ = r.GetBody()
	a = do(impatient(svc.Server), r)
	require.True(t, a.Replayed())
	require.Equal(t, "order 1", a.Body)
	require.EqualValues(t, 1, svc.Runs.Load())
	got.requireOneKey(t, 2)
}

// net/http sends a request that has an Idempotency-Key again by itself, if the connection was used before and dies
// before the answer begins.
func TestResendingByNetHTTPTakesEffectOnce(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 2 { // the connection was kept alive by the first request
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}}.Serve(t, testservice.Echo)
	var seen attempts
	transport := impatient(svc.Server)
	transport.MaxAttempts, transport.Base = 1, seen.of(transport.Base)

	require.NoError(t, do(transport, newPost(t, svc.Server.URL+"/payments", "order 1")).Err)
	a := do(transport, newPost(t, svc.Server.URL+"/payments", "order 2"))
	require.NoError(t, a.Err)
	require.True(t, a.Replayed())
	require.Equal(t, "order 2", a.Body)

	all := got.list()
	require.Len(t, all, 3, "net/http did not send again")
	require.Equal(t, all[1], all[2])
	require.Len(t, seen.list(), 2, "one attempt for each request")
	require.EqualValues(t, 2, svc.Runs.Load())
}

func TestConnectionClosedWhileIdleIsReplaced(t *testing.T) {
	t.Parallel()
	var got arrivals
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return got.record(func(w http.ResponseWriter, r *http.Request, _ int) { next.ServeHTTP(w, r) })
	}}.Serve(t, testservice.Echo)
	for n := range 20 {
		a := do(impatient(svc.Server), newPost(t, svc.Server.URL+"/payments", fmt.Sprint("order ", n)))
		require.NoError(t, a.Err)
		require.Equal(t, fmt.Sprint("order ", n), a.Body)
		svc.Server.CloseClientConnections() // which races with the next request
	}
	require.EqualValues(t, 20, svc.Runs.Load())
}

func TestSlowAnswerIsWaitedForInFurtherAttempts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	conflict := sync.OnceFunc(func() { close(release) })
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		testservice.Echo(w, r)
	})
	base := svc.Server.Client().Transport.(*http.Transport)
	base.ResponseHeaderTimeout = 100 * time.Millisecond
	transport := impatient(svc.Server)
	transport.MaxAttempts = 1000
	var timeouts atomic.Int64
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(r)
		if err != nil {
			timeouts.Add(1)
		} else if resp.StatusCode == http.StatusConflict {
			conflict()
		}
		return resp, err
	})
	a := do(transport, newPost(t, svc.Server.URL+"/payments", "order 1"))

	require.NoError(t, a.Err)
	require.True(t, a.Replayed())
	require.Equal(t, "order 1", a.Body)
	require.Positive(t, timeouts.Load())
	require.Contains(t, svc.Journal.Outcomes(), idempotency.OutcomeInProgress)
	require.EqualValues(t, 1, svc.Runs.Load())
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		method string
		lands  string
		keyed  bool
	}{
		{301, "POST", "GET", false}, {302, "POST", "GET", false}, {303, "POST", "GET", false},
		{307, "POST", "POST", true}, {308, "POST", "POST", true}, {307, "PATCH", "PATCH", true},
	}
	for _, tt := range tests {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s http2=%t", tt.status, tt.method, http2), func(t *testing.T) {
				t.Parallel()
				var got arrivals
				server := testservice.Listen(t, got.record(func(w http.ResponseWriter, r *http.Request, n int) {
					switch {
					case n%2 == 1: // of each hop
						w.WriteHeader(http.StatusServiceUnavailable)
					case r.URL.Path != "/3":
						next := "/" + string(r.URL.Path[1]+1)
						http.Redirect(w, r, next, tt.status)
					}
				}), http2)
				transport, oauth := impatient(server), impatient(server).Base
				transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context()) // as an oauth2.Transport does
					r.Header.Set("Authorization", "Bearer token")
					return oauth.RoundTrip(r)
				})
				r := newPost(t, server.URL+"/1", "order 1")
				r.Method = tt.method
				a := do(transport, r)
				require.NoError(t, a.Err)
				all := got.list()
				if !tt.keyed {
					require.Equal(t, 503, a.Status, "a GET is sent once")
					require.Len(t, all, 3)
					require.Equal(t, arrival{method: "GET", path: "/2"}, all[2])
					return
				}
				require.Equal(t, 200, a.Status)
				key := got.requireOneKey(t, 6)
				require.Equal(t, arrival{tt.lands, "/3", "order 1", []string{key}}, all[5])
			})
		}
	}
}

func TestRedirectsToOtherHosts(t *testing.T) {
	t.Parallel()
	const a, b, c, random = "a.example.com", "b.example.com", "c.example.com", "a random UUID"
	const secureA, secureB = "https://" + a, "https://" + b
	tests := []struct {
		name   string
		hosts  []string
		key    string // of the context, or of the header
		header bool
		status int
		route  []string // hosts, by http unless it says https
		want   []string // the key that each host gets
		sent   int      // to the last host, which answers 503
		stays  int      // the number of hosts that get the body, if the next one must not
	}{
		{name: "random", hosts: []string{a}, route: []string{a, b}, want: []string{random, ""}, sent: 1, stays: 1},
		{name: "of the context", hosts: []string{a}, key: "k-1", route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's", hosts: []string{a}, key: "k-1", header: true, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's, to GET", hosts: []string{a}, key: "k-1", header: true, status: 303, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1},
		{name: "random, both named", hosts: []string{a, b}, route: []string{a, b}, want: []string{random, random}, sent: 4},
		{name: "of the context, both named", hosts: []string{a, b}, key: "k-1", route: []string{a, b},
			want: []string{"k-1", "k-1"}, sent: 4},
		{name: "of the context, none named", key: "k-1", route: []string{a, b}, want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's, none named", key: "k-1", header: true, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "of the context, same host, not named", key: "k-1", route: []string{a, a}, want: []string{"k-1", "k-1"}, sent: 1},
		{name: "of the context, same host in capitals", key: "k-1", route: []string{a, "A.example.com"},
			want: []string{"k-1", "k-1"}, sent: 1},
		{name: "none, to a named host", hosts: []string{b}, route: []string{a, b}, want: []string{"", random}, sent: 4},
		{name: "of the context, to a named host", hosts: []string{b}, key: "k-1", route: []string{a, b},
			want: []string{"k-1", "k-1"}, sent: 4},
		{name: "of the context, there and back", key: "k-1", route: []string{a, b, a},
			want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "the caller's, there and around", key: "k-1", header: true, route: []string{a, b, b},
			want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "random, to another host and back", hosts: []string{a}, route: []string{a, b, a},
			want: []string{random, "", ""}, sent: 1, stays: 1},
		{name: "none, to another host and a named one", hosts: []string{c}, route: []string{a, b, c},
			want: []string{"", "", ""}, sent: 1},
		{name: "random, to a named host and on", hosts: []string{b}, route: []string{a, b, c},
			want: []string{"", random, ""}, sent: 1, stays: 2},
		{name: "random, between named hosts and on", hosts: []string{a, b}, route: []string{a, b, c},
			want: []string{random, random, ""}, sent: 1, stays: 2},
		{name: "set to nothing", hosts: []string{a}, header: true, route: []string{a, b}, want: []string{"", ""}, sent: 1},
		{name: "none", route: []string{a, b, c}, want: []string{"", "", ""}, sent: 1},

		{name: "random, out of https", hosts: []string{a}, route: []string{secureA, a},
			want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, out of https, port in the URL", hosts: []string{a}, route: []string{secureA, a + ":80"},
			want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, out of https to another named host", hosts: []string{a, b}, route: []string{secureA, b},
			want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, by https and out of it", hosts: []string{a, b}, route: []string{secureA, secureB, b},
			want: []string{random, random, ""}, sent: 1, stays: 2},
		{name: "random, to https and out of it", hosts: []string{a}, route: []string{a, secureA, a},
			want: []string{random, random, ""}, sent: 1, stays: 2},
		{name: "random, to a named host by https and out of it", hosts: []string{b}, route: []string{a, secureB, b},
			want: []string{"", random, ""}, sent: 1, stays: 2},
		{name: "random, to https", hosts: []string{a}, route: []string{a, secureA}, want: []string{random, random}, sent: 4},
		{name: "of the context, out of https", hosts: []string{a}, key: "k-1", route: []string{secureA, a},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "of the context, out of https, not named", key: "k-1", route: []string{secureA, a},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "of the context, out of https and back", key: "k-1", route: []string{secureA, a, secureA},
			want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "of the context, out of https and back, named", hosts: []string{a}, key: "k-1",
			route: []string{secureA, a, secureA}, want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "the caller's, out of https and back, named", hosts: []string{a}, key: "k-1", header: true,
			route: []string{secureA, a, secureA}, want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "random, out of https and back", hosts: []string{a}, route: []string{secureA, a, secureA},
			want: []string{random, "", ""}, sent: 1, stays: 1},
		{name: "random, out of https and on by https", hosts: []string{a, b}, route: []string{secureA, a, secureB, secureB},
			want: []string{random, "", "", ""}, sent: 1, stays: 1},
		{name: "of the context, to https, not named", key: "k-1", route: []string{a, secureA},
			want: []string{"k-1", "k-1"}, sent: 1},
		{name: "the caller's, out of https", hosts: []string{a}, key: "k-1", header: true, route: []string{secureA, a},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's, out of https to GET", hosts: []string{a}, key: "k-1", header: true, status: 303,
			route: []string{secureA, a}, want: []string{"k-1", ""}, sent: 1},
		{name: "none, out of https", route: []string{secureA, a}, want: []string{"", ""}, sent: 1},
		{name: "none, out of https to a named host", hosts: []string{b}, route: []string{secureA, b},
			want: []string{"", ""}, sent: 1},
		{name: "none, out of https to a named host and back", hosts: []string{b}, route: []string{secureA, b, secureB},
			want: []string{"", "", ""}, sent: 1},
	}
	address := func(hop string) string {
		if strings.Contains(hop, "://") {
			return hop
		}
		return "http://" + hop
	}
	for _, tt := range tests {
		for _, body := range []string{"", "order 1"} {
			t.Run(fmt.Sprintf("%s, body %q", tt.name, body), func(t *testing.T) {
				t.Parallel()
				var got arrivals
				handler := got.record(func(w http.ResponseWriter, r *http.Request, _ int) {
					hop, _ := strconv.Atoi(r.URL.Path[1:])
					if hop+1 == len(tt.route) {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					next := fmt.Sprintf("%s/%d", address(tt.route[hop+1]), hop+1)
					http.Redirect(w, r, next, cmp.Or(tt.status, http.StatusTemporaryRedirect))
				})
				transport := impatient(listenTwice(t, handler)) // which finds the servers under every name in example.com
				transport.Hosts = tt.hosts
				r := newPost(t, address(tt.route[0])+"/0", body)
				switch {
				case tt.header:
					r.Header.Set("Idempotency-Key", tt.key)
				case tt.key != "":
					r = r.WithContext(idempotency.WithKey(t.Context(), tt.key))
				}
				answered := do(transport, r)

				all := got.list()
				if body != "" && tt.stays > 0 {
					require.ErrorIs(t, answered.Err, idempotency.ErrRedirected)
					require.ErrorContains(t, answered.Err, tt.route[tt.stays])
					require.Len(t, all, tt.stays)
				} else {
					require.Equal(t, 503, answered.Status)
					require.Len(t, all, len(tt.route)-1+tt.sent)
				}
				generated := ""
				for i, arrived := range all {
					key := strings.Join(arrived.keys, " and ")
					want := tt.want[min(i, len(tt.want)-1)]
					if want == random {
						generated = cmp.Or(generated, key)
						require.NoError(t, idempotency.ValidateUUID(key))
						want = generated
					}
					require.Equal(t, want, key, "request %d", i+1)
				}
			})
		}
	}
}

// listenTwice returns a server with TLS. Its client sends what is not for https to another one without TLS.
func listenTwice(t *testing.T, handler http.Handler) *httptest.Server {
	clear, secure := testservice.Listen(t, handler, false), testservice.Listen(t, handler, true)
	base := secure.Client().Transport.(*http.Transport)
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasSuffix(address, ":80") {
			address = clear.Listener.Addr().String()
		}
		return dial(ctx, network, address)
	}
	return secure
}

// Nobody knows where a redirect came from if the base does not say which request was answered.
func TestRedirectOfAnUnknownRequest(t *testing.T) {
	t.Parallel()
	const fresh = "a new key"
	for _, row := range []struct {
		name   string
		hosts  []string
		key    string // of the context
		method string
		body   string
		to     string
		want   string // the key of the second request
		stays  bool
	}{
		{"no host named", nil, "k-1", "POST", "", "https://service.test", "", false},
		{"no host named, body", nil, "k-1", "POST", "order 1", "https://service.test", "", true},
		{"named host", []string{"service.test"}, "", "POST", "order 1", "https://service.test", fresh, false},
		{"named host, not https", []string{"service.test"}, "", "POST", "", "http://service.test", "", false},
		{"named host, not https, body", []string{"service.test"}, "", "POST", "order 1", "http://service.test", "", true},
		{"other host", []string{"service.test"}, "", "POST", "", "https://other.test", "", false},
		{"other host, body", []string{"service.test"}, "", "POST", "order 1", "https://other.test", "", true},
		{"other host, method without a key", []string{"service.test"}, "", "PUT", "order 1", "https://other.test", "", false},
		{"no key at all", nil, "", "POST", "order 1", "https://other.test", "", false},
	} {
		var keys []string
		transport := idempotency.Transport{Hosts: row.hosts, Base: baseFunc(func(r *http.Request) (*http.Response, error) {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			if len(keys) == 1 {
				return replying(307, http.Header{"Location": {row.to + "/2"}})(r)
			}
			return replying(200, nil)(r)
		})}
		r := newPost(t, "https://service.test/1", row.body)
		r.Method = row.method
		if row.key != "" {
			r = r.WithContext(idempotency.WithKey(t.Context(), row.key))
		}
		answered := do(&transport, r)
		if row.stays {
			require.ErrorIs(t, answered.Err, idempotency.ErrRedirected, row.name)
			require.Len(t, keys, 1, row.name)
			continue
		}
		require.Equal(t, 200, answered.Status, row.name)
		require.Len(t, keys, 2, row.name)
		if row.want == fresh {
			require.NoError(t, idempotency.ValidateUUID(keys[1]), row.name)
			require.NotEqual(t, keys[0], keys[1], row.name)
		} else {
			require.Equal(t, row.want, keys[1], row.name)
		}
	}
}

func TestTransportHosts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		entry, url string
		named      bool
	}{
		{"api.test", "https://api.test/payments", true},
		{"api.test", "http://api.test:8443/", true},
		{"api.test", "https://API.test/", true},
		{"API.test", "https://api.test/", true},
		{"api.test:8443", "https://api.test:8443/", true},
		{"api.test:8443", "https://api.test/", false},
		{"api.test:8443", "https://api.test:443/", false},
		{"api.test:443", "https://api.test/", false}, // the URL does not say so
		{"api.test", "https://eu.api.test/", false},
		{"api.test", "https://api.test.evil.test/", false},
		{"api.test", "https://api.test@evil.test/", false},
		{"api.test", "https://evil.test/api.test", false},
		{"*.api.test", "https://eu.api.test/", false},
		{"*", "https://api.test/", false},
		{"", "https://api.test/", false},
		{"https://api.test", "https://api.test/", false},
		{"::1", "http://[::1]/", true},
		{"[::1]:8080", "http://[::1]:8080/", true},
	}
	for _, tt := range tests {
		sent := 0
		transport := idempotency.Transport{Hosts: []string{"other.test", tt.entry}, MinDelay: 1, MaxAttempts: 2}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			sent++
			require.Equal(t, tt.named, r.Header.Get("Idempotency-Key") != "", "%s: %s", tt.entry, tt.url)
			return replying(503, nil)(r)
		})
		require.Equal(t, 503, do(&transport, newPost(t, tt.url, "order 1")).Status)
		require.Equal(t, map[bool]int{false: 1, true: 2}[tt.named], sent, "%s: %s", tt.entry, tt.url)
	}
}

// inProgress is how an idempotent server answers while an earlier attempt runs.
func inProgress(retryAfter string) baseFunc {
	return replying(http.StatusConflict, http.Header{"Retry-After": {retryAfter}})
}

// changing returns a base that answers as before does until end, and then as after does.
func changing(end time.Duration, before, after baseFunc) baseFunc {
	began := time.Now()
	return func(r *http.Request) (*http.Response, error) {
		if time.Since(began) < end {
			return before(r)
		}
		return after(r)
	}
}

func TestOperationInProgressIsWaitedFor(t *testing.T) {
	t.Parallel()
	stripe := replying(http.StatusConflict, http.Header{"Stripe-Should-Retry": {"true"}})
	slow := baseFunc(func(*http.Request) (*http.Response, error) {
		time.Sleep(20 * time.Second)
		return nil, io.ErrUnexpectedEOF
	})
	created := replying(201, nil)
	tests := []struct {
		name      string
		base      func() baseFunc
		deadline  time.Duration // of the context
		transport idempotency.Transport
		status    int
		low, high time.Duration // how long it takes
	}{
		{name: "for more than four attempts", base: func() baseFunc { return changing(45*time.Second, inProgress("1"), created) },
			status: 201, low: 45 * time.Second, high: 46 * time.Second},
		{name: "with pauses that do not grow", base: func() baseFunc { return changing(299*time.Second, inProgress("1"), created) },
			status: 201, low: 299 * time.Second, high: 300 * time.Second},
		{name: "without Retry-After", base: func() baseFunc { return changing(45*time.Second, stripe, created) },
			status: 201, low: 45 * time.Second, high: 57 * time.Second},
		{name: "Retry-After that says nothing", base: func() baseFunc { return changing(45*time.Second, inProgress("0"), created) },
			status: 201, low: 45 * time.Second, high: 57 * time.Second},
		{name: "until the context would end", base: func() baseFunc { return inProgress("1") },
			deadline: 20 * time.Second, status: 409, low: 19 * time.Second, high: 20 * time.Second},
		{name: "as long as the context permits", base: func() baseFunc { return changing(time.Hour, inProgress("1"), created) },
			deadline: 2 * time.Hour, status: 201, low: time.Hour, high: time.Hour + time.Second},
		{name: "the context counts, not MaxWait", base: func() baseFunc { return changing(time.Minute, inProgress("1"), created) },
			deadline: 2 * time.Hour, transport: idempotency.Transport{MaxWait: time.Second},
			status: 201, low: time.Minute, high: time.Minute + time.Second},
		{name: "5 minutes without a deadline", base: func() baseFunc { return inProgress("1") },
			status: 409, low: 299 * time.Second, high: 300 * time.Second},
		{name: "MaxWait without a deadline", base: func() baseFunc { return inProgress("1") },
			transport: idempotency.Transport{MaxWait: 10 * time.Second}, status: 409, low: 9 * time.Second, high: 10 * time.Second},
		{name: "MaxWait as of the first such answer", base: func() baseFunc {
			return changing(time.Second, slow, changing(29*time.Second, inProgress("1"), created))
		}, transport: idempotency.Transport{MaxWait: 10 * time.Second}, status: 201, low: 29 * time.Second, high: 30 * time.Second},
		{name: "not with one attempt", base: func() baseFunc { return inProgress("1") },
			transport: idempotency.Transport{MaxAttempts: 1}, status: 409},
		{name: "not at a host that is not named", base: func() baseFunc { return inProgress("1") },
			transport: idempotency.Transport{Hosts: []string{"other.test"}}, status: 409},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := idempotency.WithKey(t.Context(), "k-1")
				if tt.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.deadline)
					defer cancel()
				}
				transport := tt.transport
				transport.Base = tt.base()
				if transport.Hosts == nil {
					transport.Hosts = []string{"service.test"}
				}
				began := time.Now()
				resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
				require.NoError(t, err)
				require.Equal(t, tt.status, resp.StatusCode)
				require.GreaterOrEqual(t, time.Since(began), tt.low)
				require.LessOrEqual(t, time.Since(began), tt.high)
			})
		})
	}
}

func TestWaitingIsNoAttemptThatCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		statuses := []int{503, 409, 409, 503, 409, 409, 409, 409, 503, 503, 201}
		var seen attempts
		transport := idempotency.Transport{Hosts: []string{"service.test"}}
		transport.Base = seen.of(baseFunc(func(r *http.Request) (*http.Response, error) {
			return replying(statuses[len(seen.list())], http.Header{"Retry-After": {"1"}})(r)
		}))
		resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Len(t, seen.list(), 10)
		for i, attempt := range seen.list() {
			require.Equal(t, statuses[i], attempt.status)
		}
	})
}

// A process that dies blocks its key for the rest of its lease.
func TestTransportOutlastsTheLeaseOfACrashedProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		svc := testservice.Setup{}.Guard(t, testservice.Echo)
		testservice.Crash(t, svc, "k-1", "order 1", lease)

		transport := idempotency.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			recorder := httptest.NewRecorder()
			svc.Handler.ServeHTTP(recorder, r)
			return recorder.Result(), nil
		})
		began := time.Now()
		r := newPost(t, "http://service.test/payments", "order 1")
		a := do(&transport, r.WithContext(idempotency.WithKey(t.Context(), "k-1")))
		require.NoError(t, a.Err)
		require.Equal(t, 201, a.Status)
		require.InDelta(t, lease, time.Since(began), float64(2*time.Second))
	})
}

// pauses sends a request that is never answered for good and returns how long each pause was.
func pauses(t *testing.T, transport idempotency.Transport) []time.Duration {
	t.Helper()
	var pauses []time.Duration
	began := time.Now()
	sent := 0
	base := transport.Base
	transport.Hosts = []string{"service.test"}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		if sent++; sent > 1 {
			pauses = append(pauses, time.Since(began))
		}
		began = time.Now()
		return base.RoundTrip(r)
	})
	_, _ = transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
	return pauses
}

func TestPausesGrowAndVary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		varied := make(map[time.Duration]bool)
		for range 20 {
			got := pauses(t, idempotency.Transport{Base: replying(503, nil)})
			require.Len(t, got, 3)
			for i, middle := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
				require.InDelta(t, middle, got[i], float64(middle/2+1))
			}
			varied[got[0]] = true
		}
		require.Greater(t, len(varied), 10)
	})
}

func TestPausesHaveALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		longest := time.Duration(0)
		for _, pause := range pauses(t, idempotency.Transport{Base: replying(503, nil), MaxAttempts: 100}) {
			require.LessOrEqual(t, pause, 12*time.Second)
			longest = max(longest, pause)
		}
		require.Greater(t, longest, 8*time.Second)
		for _, pause := range pauses(t, idempotency.Transport{Base: replying(503, nil), MaxDelay: 2}) {
			require.LessOrEqual(t, pause, 3*time.Nanosecond)
		}
		require.Len(t, pauses(t, idempotency.Transport{Base: replying(503, nil), MinDelay: -1, MaxDelay: -1}), 3)
	})
}

func TestRetryAfterIsHeeded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value     string
		date      time.Duration // from now, instead of value
		limit     time.Duration
		low, high time.Duration
	}{
		{value: "7", low: 7 * time.Second, high: 7 * time.Second},
		{date: 9 * time.Second, low: 9 * time.Second, high: 9 * time.Second},
		{value: "7", limit: 3 * time.Second, low: 3 * time.Second, high: 3 * time.Second},
		{date: time.Hour, limit: 3 * time.Second, low: 3 * time.Second, high: 3 * time.Second},
		{value: "3600", low: time.Minute, high: time.Minute},
		{value: "99999999999999999999999", low: time.Minute, high: time.Minute},
		// In these the pause that grows and varies is the longer one.
		{value: "7", limit: 100 * time.Millisecond, low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{value: "0", low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{value: "-5", low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{value: "soon", low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{date: -time.Hour, low: 250 * time.Millisecond, high: 751 * time.Millisecond},
	}
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range tests {
			if tt.date != 0 {
				tt.value = time.Now().Truncate(time.Second).Add(tt.date).UTC().Format(http.TimeFormat)
				tt.low -= time.Since(time.Now().Truncate(time.Second))
			}
			got := pauses(t, idempotency.Transport{MaxAttempts: 2, MaxRetryAfter: tt.limit,
				Base: replying(503, http.Header{"Retry-After": {tt.value}})})
			require.Len(t, got, 1)
			require.GreaterOrEqual(t, got[0], tt.low, "Retry-After: %s", tt.value)
			require.LessOrEqual(t, got[0], tt.high, "Retry-After: %s", tt.value)
		}
	})
}

func TestContextEndsAPause(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	for name, base := range map[string]baseFunc{
		"after an answer":       replying(503, http.Header{"Retry-After": {"30"}}),
		"after a network error": func(*http.Request) (*http.Response, error) { return nil, lost },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shutdown := errors.New("shutting down")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(10*time.Second, func() { cancel(shutdown) })
				began := time.Now()
				transport := idempotency.Transport{Hosts: []string{"service.test"}, Base: base,
					MinDelay: 30 * time.Second, MaxDelay: 30 * time.Second}
				_, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))

				require.Equal(t, 10*time.Second, time.Since(began))
				require.ErrorIs(t, err, shutdown)
				failure, ok := errors.AsType[*idempotency.TransportError](err)
				require.True(t, ok)
				require.Equal(t, 1, failure.Attempts)
				if name == "after a network error" {
					require.ErrorIs(t, err, lost)
				}
			})
		})
	}
}

func TestDeadlineWithinAPauseEndsItBeforeItBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		transport := idempotency.Transport{Hosts: []string{"service.test"},
			Base: replying(503, http.Header{"Retry-After": {"11"}})}
		began := time.Now()
		resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Zero(t, time.Since(began))
	})
}

func TestAttemptThatTheCallerEndedIsNotRepeated(t *testing.T) {
	t.Parallel()
	var seen attempts
	ctx, cancel := context.WithCancel(t.Context())
	var got arrivals
	server := testservice.Listen(t, got.record(func(_ http.ResponseWriter, r *http.Request, _ int) {
		cancel()
		<-r.Context().Done()
	}), false)
	transport := impatient(server)
	transport.Base = seen.of(transport.Base)
	a := do(transport, newPost(t, server.URL, "order 1").WithContext(ctx))
	require.ErrorIs(t, a.Err, context.Canceled)
	require.Len(t, seen.list(), 1)
}

func TestAnswerOfAnEndedContextIsHandedBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	transport := idempotency.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		cancel()
		return replying(503, nil)(r)
	})
	resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
}

func TestClientTimeoutBoundsAllAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen attempts
		client := http.Client{Timeout: 20 * time.Second, Transport: &idempotency.Transport{
			Hosts: []string{"service.test"}, MaxAttempts: 1000, Base: seen.of(replying(503, nil)),
		}}
		began := time.Now()
		resp, err := client.Do(newPost(t, "http://service.test", "order 1"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 503, resp.StatusCode)
		require.LessOrEqual(t, time.Since(began), 20*time.Second)
		require.Greater(t, len(seen.list()), 3)
	})
}

// endless is a body without end.
type endless struct {
	requestBody
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func TestAnswerOfARepeatedAttemptIsReadToABoundAndClosed(t *testing.T) {
	t.Parallel()
	unwanted := new(endless)
	transport := idempotency.Transport{Hosts: []string{"service.test"}, MaxAttempts: 2, MinDelay: 1}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		if unwanted.read > 0 {
			return replying(200, nil)(r)
		}
		return &http.Response{StatusCode: 503, Body: unwanted}, nil
	})
	resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.Positive(t, unwanted.closed.Load())
	require.Less(t, unwanted.read, 1<<20)
}

// stalling is an answer whose body never comes. A read ends when it is closed.
type stalling struct {
	requestBody
	end   chan struct{}
	after func()
}

func (s *stalling) Read([]byte) (int, error) {
	<-s.end
	return 0, http.ErrBodyReadAfterClose
}

func (s *stalling) Close() error {
	if s.closed.Add(1) == 1 {
		s.after()
		close(s.end)
	}
	return nil
}

// However long the pause is, an answer that stalls holds its connection for a second at most.
func TestAnswerThatStallsIsClosedAfterASecond(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{100 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			var answered, closed time.Time
			body := &stalling{end: make(chan struct{}), after: func() { closed = time.Now() }}
			transport := idempotency.Transport{Hosts: []string{"service.test"}, MinDelay: pause, MaxDelay: pause}
			transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
				if !answered.IsZero() {
					return replying(200, nil)(r)
				}
				answered = time.Now()
				return &http.Response{StatusCode: 503, Body: body}, nil
			})
			resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.LessOrEqual(t, closed.Sub(answered), min(time.Second, pause*3/2))
			require.LessOrEqual(t, time.Since(answered), pause*3/2)
		})
	}
}

func TestAttemptsShareAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got arrivals
		server := testservice.Listen(t, got.record(func(w http.ResponseWriter, r *http.Request, n int) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, strings.Repeat("x", 8<<10))
		}), false)
		var connections atomic.Int64
		server.Client().Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			connections.Add(1)
			return servertest.Dial(ctx, network, address)
		}
		require.Equal(t, 503, do(impatient(server), newPost(t, server.URL, "order 1")).Status)
		require.Len(t, got.list(), 4)
		require.EqualValues(t, 1, connections.Load())
	})
}

func TestOneTransportForManyRequests(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := make(map[string]int)
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen[r.Header.Get("Idempotency-Key")]++
			n := seen[r.Header.Get("Idempotency-Key")]
			mu.Unlock()
			if n == 1 {
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	}}.Serve(t, testservice.Echo)
	transport := impatient(svc.Server)
	const requests = 32
	var wg sync.WaitGroup
	for n := range requests {
		wg.Go(func() {
			a := do(transport, newPost(t, svc.Server.URL+"/payments", fmt.Sprint("order ", n)))
			assert.NoError(t, a.Err)
			assert.Equal(t, fmt.Sprint("order ", n), a.Body)
			assert.True(t, a.Replayed())
		})
	}
	wg.Wait()
	require.Len(t, seen, requests)
	require.EqualValues(t, requests, svc.Runs.Load())
}

func TestZeroTransportSendsEverythingOnce(t *testing.T) {
	t.Parallel()
	var got arrivals
	server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}), false)
	require.Equal(t, 503, do(new(idempotency.Transport), newPost(t, server.URL, "order 1")).Status)
	require.Len(t, got.list(), 1)
	require.Empty(t, got.list()[0].keys)
}

func TestIdleConnectionsAreClosedInTheBase(t *testing.T) {
	t.Parallel()
	base := &idle{}
	(&http.Client{Transport: &idempotency.Transport{Base: base}}).CloseIdleConnections()
	require.True(t, base.closed)
	(&http.Client{Transport: &idempotency.Transport{Base: replying(200, nil)}}).CloseIdleConnections()
}

type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

// summing is a body that sets a trailer when it has been read.
type summing struct {
	io.Reader
	of *http.Request
}

func (s summing) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err == io.EOF {
		s.of.Trailer.Set("X-Sum", "1")
	}
	return n, err
}

func (summing) Close() error { return nil }

func TestTransportSendsTrailers(t *testing.T) {
	t.Parallel()
	sums := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sums <- r.Trailer.Get("X-Sum")
	}))
	defer server.Close()
	r := newPost(t, server.URL, "")
	r.Body, r.ContentLength, r.Trailer = summing{io.LimitReader(strings.NewReader("body"), 4), r}, -1, http.Header{"X-Sum": nil}
	require.Equal(t, http.StatusOK, do(impatient(server), r).Status)
	require.Equal(t, "1", <-sums)
}

// An answer that nobody wants is not waited for.
func TestTransportLeavesAnAnswerThatStalls(t *testing.T) {
	t.Parallel()
	var got arrivals
	stalled := make(chan struct{})
	server := httptest.NewServer(got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = http.NewResponseController(w).Flush()
			<-stalled
		}
	}))
	defer server.Close()
	defer close(stalled)
	require.Equal(t, http.StatusOK, do(impatient(server), newPost(t, server.URL, "")).Status)
	got.requireOneKey(t, 2)
}
