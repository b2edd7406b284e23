package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// situation is a row of the table "What a client sees": the state of the server, and what Transport does.
type situation struct {
	name    string
	setup   func(*testservice.Setup)
	handler http.HandlerFunc                       // Echo if nil
	before  func(*testing.T, *testservice.Service) // was sent with the key k-1 before
	beside  string                                 // the key of a request that is executed until another one was answered
	header  http.Header                            // of the request
	sent    int                                    // how often; beside another request, at least twice
	status  int                                    // of the answer that the caller gets
	code    string                                 // of the problem that made Transport decide
}

// situations returns the rows of the table "What a client sees".
func situations() []situation {
	const again, final = 2, 1
	opts := func(o idempotency.Options) func(*testservice.Setup) {
		return func(s *testservice.Setup) { s.Opts = o }
	}
	sent := func(body string) func(*testing.T, *testservice.Service) {
		return func(_ *testing.T, svc *testservice.Service) { svc.Call("k-1", body) }
	}
	spied := func(edit func(*testservice.SpyStore)) func(*testservice.Setup) {
		return func(s *testservice.Setup) {
			store := testservice.NewSpyStore()
			edit(store)
			s.Store = store
		}
	}
	key := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	return []situation{
		{name: "no key", header: key(), handler: testservice.Status(503), sent: final, status: 503},
		{name: "first request", sent: final, status: 201},
		{name: "repeat", before: sent("order 1"), sent: final, status: 201},
		{name: "handler fails", handler: failing(503, ""), sent: again, status: 201},
		{name: "handler has timed out", handler: failing(408, ""), sent: again, status: 201},
		{name: "handler is busy", handler: failing(409, "1"), sent: again, status: 201},
		{name: "handler wants a login", handler: testservice.Status(401), sent: final, status: 401},
		{name: "handler refuses", handler: testservice.Status(422), sent: final, status: 422},
		{name: "handler panics", handler: failing(0, ""), sent: again, status: 201},
		{name: "in progress", beside: "k-1", status: 201, code: "in-progress"},
		{name: "taken over", setup: spied(func(s *testservice.SpyStore) { s.OnComplete = thenFail(idempotency.ErrClaimLost) }),
			sent: again, status: 201, code: "in-progress"},
		{name: "reused", before: sent("order 2"), sent: final, status: 409, code: "key-reused"},
		{name: "reused, by the draft", setup: opts(idempotency.Options{ReuseStatus: 422}), before: sent("order 2"),
			sent: final, status: 422, code: "key-reused"},
		{name: "not kept", setup: opts(idempotency.Options{MaxResponse: 4}), before: sent("order 1"),
			sent: final, status: 409, code: "not-replayable"},
		{name: "not shown", before: sent("order 1"), sent: final, status: 403, code: "replay-refused",
			setup: opts(idempotency.Options{Replay: func(*http.Request, *idempotency.Response) error {
				return errors.New("no")
			}})},
		{name: "abandoned", setup: opts(idempotency.Options{Abandoned: idempotency.Refuse}),
			before: func(t *testing.T, svc *testservice.Service) { testservice.Crash(t, svc, "k-1", "order 1", 1) },
			sent:   final, status: 409, code: "outcome-unknown"},
		{name: "key missing", setup: opts(idempotency.Options{Required: true}), header: key(),
			sent: final, status: 400, code: "key-missing"},
		{name: "key invalid", header: key("a", "b"), sent: final, status: 400, code: "key-invalid"},
		{name: "user unknown", sent: final, status: 401, code: "user-unknown",
			setup: func(s *testservice.Setup) { s.User = func(*http.Request) (string, error) { return "", nil } }},
		{name: "body too large", setup: opts(idempotency.Options{MaxBody: 4}), sent: final, status: 413, code: "body-too-large"},
		{name: "body invalid", setup: opts(idempotency.Options{Fingerprint: fingerprint.JSON}),
			header: http.Header{"Content-Type": {"application/json"}}, sent: final, status: 400, code: "body-invalid"},
		{name: "body consumed", sent: final, status: 500, code: "body-consumed", setup: func(s *testservice.Setup) {
			s.Outer = func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					next.ServeHTTP(w, r)
				})
			}
		}},
		{name: "overloaded", setup: opts(idempotency.Options{MaxBody: 512, MaxBodies: 512}), beside: "k-2",
			status: 201, code: "overloaded"},
		{name: "quota", sent: 4, status: 429, code: "quota-exceeded", setup: func(s *testservice.Setup) {
			s.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 321})
		}},
		{name: "store down", sent: again, status: 201, code: "store-unavailable",
			setup: spied(func(s *testservice.SpyStore) { s.OnBegin = testservice.Failing(1, testservice.ErrDown) })},
	}
}

// failing returns a handler that once answers with status, or panics if status is zero. Afterwards the handler succeeds.
func failing(status int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if op, _ := idempotency.FromContext(r.Context()); op.Attempt > 1 {
			testservice.Echo(w, r)
			return
		}
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(status)
	}
}

// thenFail returns the hook of a store method that has its effect, and returns err all the same.
func thenFail(err error) testservice.Hook {
	return func(_ context.Context, _ int64, step func() error) error { return errors.Join(step(), err) }
}

// Transport obeys the problem, and the caller gets the final answer.
func TestTransportObeysTheProblem(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		for _, tt := range situations() {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", tt.name, http2), func(t *testing.T) {
				t.Parallel()
				tt.try(t, http2)
			})
		}
	}
}

func (s situation) try(t *testing.T, http2 bool) {
	var setup testservice.Setup
	if s.setup != nil {
		s.setup(&setup)
	}
	handler := s.handler
	if handler == nil {
		handler = testservice.Echo
	}
	working, answered := make(chan struct{}), make(chan struct{})
	if s.beside != "" {
		handler = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Beside") != "" {
				close(working)
				<-answered
			}
			testservice.Echo(w, r)
		}
	}
	svc := setup.Guard(t, handler)
	if s.before != nil {
		s.before(t, svc)
	}
	var got arrivals
	svc.Server = testservice.Listen(t, got.record(func(w http.ResponseWriter, r *http.Request, n int) {
		svc.Handler.ServeHTTP(w, r)
		if s.beside != "" && n == 1 {
			close(answered)
		}
	}), http2)
	if s.beside != "" {
		done := make(chan struct{})
		go func() {
			defer close(done)
			svc.Call(s.beside, "order 1", testservice.WithHeader("X-Beside", "1"))
		}()
		defer func() { <-done }()
		<-working
	}
	codes := problems{base: impatient(svc.Server).Base}
	transport := impatient(svc.Server)
	transport.Base = &codes
	r := newPost(t, svc.Server.URL+"/payments", "order 1")
	r = r.WithContext(client.WithKey(t.Context(), "k-1"))
	for name, values := range s.header {
		r.Header[name] = values
	}

	a := do(transport, r)
	require.NoError(t, a.Err)
	require.Equal(t, s.status, a.Status, a.Body)
	if s.beside != "" {
		require.GreaterOrEqual(t, len(got.list()), 2)
		s.sent = len(got.list())
	}
	require.Len(t, got.list(), s.sent)
	for _, arrived := range got.list() {
		require.Equal(t, got.list()[0], arrived)
	}
	if s.code == "" {
		require.Empty(t, codes.seen)
		return
	}
	require.Contains(t, codes.seen, s.code)
	if s.status >= 400 {
		require.Contains(t, a.Body, "#"+s.code+`"`, "the caller can read the answer")
	}
}

// problems is a Base that records the codes of the problems that it returns.
type problems struct {
	base http.RoundTripper
	seen []string
}

func (p *problems) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.base.RoundTrip(r)
	if err != nil || resp.Header.Get("Content-Type") != "application/problem+json" {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	if code := codeOfType.FindSubmatch(body); code != nil {
		p.seen = append(p.seen, string(code[1]))
	}
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp, err
}

var codeOfType = regexp.MustCompile(`"type":"[^"]*#([a-z-]+)"`)

// Every problem that docs/problems.md describes is tested.
func TestEveryProblemIsTried(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/problems.md")
	require.NoError(t, err)
	tried := make(map[string]bool)
	for _, s := range situations() {
		tried[s.code] = true
	}
	sections := regexp.MustCompile(`(?m)^## ([a-z-]+)$`).FindAllSubmatch(page, -1)
	require.Greater(t, len(sections), 10)
	for _, section := range sections {
		require.True(t, tried[string(section[1])], "%s", section[1])
	}
}

// Transport reads problems of other servers, and ignores answers that only look like problems.
func TestTransportReadsProblemsOfOthers(t *testing.T) {
	t.Parallel()
	const problem = "application/problem+json"
	const again, final = 2, 1
	huge := strings.Repeat(" ", 1<<20)
	tests := []struct {
		name, media, body string
		status            int
		sent              int
	}{
		{"never, of an unknown type", problem, `{"type":"https://example.com/x","retry":"never"}`, 500, final},
		{"new key, without a type", problem, `{"retry":"new-key"}`, 503, final},
		{"with a parameter", problem + "; charset=utf-8", `{"retry":"never"}`, 503, final},
		{"in capital letters", "Application/Problem+JSON", `{"retry":"never"}`, 503, final},
		{"never, in a conflict with Retry-After", problem, `{"retry":"never"}`, 409, final},
		{"same key", problem, `{"retry":"same-key"}`, 503, again},
		{"same key, but something is to be done first", problem, `{"retry":"same-key"}`, 400, final},
		{"nothing about it", problem, `{"type":"https://example.com/x"}`, 503, again},
		{"an unknown word", problem, `{"retry":"perhaps"}`, 503, again},
		{"a number", problem, `{"retry":5}`, 503, again},
		{"null", problem, `null`, 503, again},
		{"empty", problem, ``, 503, again},
		{"malformed", problem, `{"retry":"never"`, 503, again},
		{"HTML", problem, `<html>`, 503, again},
		{"no problem", "application/json", `{"retry":"never"}`, 503, again},
		{"no media type", "", `{"retry":"never"}`, 503, again},
		{"broken off", problem, `broken off`, 503, again},
		{"large", problem, `{"detail":"` + huge[:32<<10] + `","retry":"never"}`, 503, final},
		{"huge", problem, `{"retry":"never","detail":"` + huge + `"}`, 503, again},
	}
	for _, http2 := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", tt.name, http2), func(t *testing.T) {
				t.Parallel()
				var got arrivals
				server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
					w.Header()["Content-Type"] = []string{tt.media}
					if tt.status == 409 {
						w.Header().Set("Retry-After", "1")
					}
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, tt.body)
					if tt.body == "broken off" && n == 1 {
						_ = http.NewResponseController(w).Flush()
						panic(http.ErrAbortHandler)
					}
				}), http2)
				transport := impatient(server)
				transport.MaxAttempts = 2
				a := do(transport, newPost(t, server.URL, "order 1"))
				require.NoError(t, a.Err)
				require.Equal(t, tt.status, a.Status)
				require.True(t, tt.body == a.Body, "%d of %d bytes arrived", len(a.Body), len(tt.body))
				got.requireOneKey(t, tt.sent)
			})
		}
	}
}

// If the body of a problem breaks off, the caller gets the same error.
func TestProblemThatBreaksOff(t *testing.T) {
	t.Parallel()
	server := testservice.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), false)
	a := do(impatient(server), newPost(t, server.URL, "order 1"))
	require.ErrorIs(t, a.Err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", a.Body)
}
