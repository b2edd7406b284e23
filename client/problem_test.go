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

// situation is a row of the table "What a client sees": the state of the server, and the behaviour of Transport.
type situation struct {
	name          string
	editSetup     func(*testservice.Setup)
	handler       http.HandlerFunc                       // Echo if nil
	prepare       func(*testing.T, *testservice.Service) // uses the key k-1 before the request
	concurrentKey string                                 // of a request that runs until the first attempt has an answer
	requestHeader http.Header
	wantAttempts  int    // 0 means at least two, because of the other request
	wantStatus    int    // of the answer that the caller gets
	wantCode      string // of the problem that made Transport decide
}

// listSituations returns the rows of the table "What a client sees".
func listSituations() []situation {
	const again, final = 2, 1 // attempts
	withOptions := func(o idempotency.Options) func(*testservice.Setup) {
		return func(s *testservice.Setup) { s.Opts = o }
	}
	sendBefore := func(body string) func(*testing.T, *testservice.Service) {
		return func(_ *testing.T, svc *testservice.Service) { svc.Call("k-1", body) }
	}
	withSpyStore := func(edit func(*testservice.SpyStore)) func(*testservice.Setup) {
		return func(s *testservice.Setup) {
			store := testservice.NewSpyStore()
			edit(store)
			s.Store = store
		}
	}
	withKeys := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	return []situation{
		{name: "no key", requestHeader: withKeys(), handler: testservice.Status(503), wantAttempts: final, wantStatus: 503},
		{name: "first request", wantAttempts: final, wantStatus: 201},
		{name: "repeated request", prepare: sendBefore("order 1"), wantAttempts: final, wantStatus: 201},
		{name: "handler fails", handler: failOnce(503, ""), wantAttempts: again, wantStatus: 201},
		{name: "handler has timed out", handler: failOnce(408, ""), wantAttempts: again, wantStatus: 201},
		{name: "handler is busy", handler: failOnce(409, "1"), wantAttempts: again, wantStatus: 201},
		{name: "handler requires a login", handler: testservice.Status(401), wantAttempts: final, wantStatus: 401},
		{name: "handler refuses", handler: testservice.Status(422), wantAttempts: final, wantStatus: 422},
		{name: "handler panics", handler: failOnce(0, ""), wantAttempts: again, wantStatus: 201},
		{name: "in progress", concurrentKey: "k-1", wantStatus: 201, wantCode: "in-progress"},
		{name: "taken over", editSetup: withSpyStore(func(s *testservice.SpyStore) {
			s.OnComplete = failAfterEffect(idempotency.ErrClaimLost)
		}), wantAttempts: again, wantStatus: 201, wantCode: "in-progress"},
		{name: "key reused", prepare: sendBefore("order 2"), wantAttempts: final, wantStatus: 409, wantCode: "key-reused"},
		{name: "key reused, with the status of the draft", editSetup: withOptions(idempotency.Options{ReuseStatus: 422}),
			prepare: sendBefore("order 2"), wantAttempts: final, wantStatus: 422, wantCode: "key-reused"},
		{name: "not replayable", editSetup: withOptions(idempotency.Options{MaxResponse: 4}), prepare: sendBefore("order 1"),
			wantAttempts: final, wantStatus: 409, wantCode: "not-replayable"},
		{name: "replay refused", prepare: sendBefore("order 1"), wantAttempts: final, wantStatus: 403, wantCode: "replay-refused",
			editSetup: withOptions(idempotency.Options{Replay: func(*http.Request, *idempotency.Response) error {
				return errors.New("no")
			}})},
		{name: "outcome unknown", editSetup: withOptions(idempotency.Options{Abandoned: idempotency.Refuse}),
			prepare:      func(t *testing.T, svc *testservice.Service) { testservice.Crash(t, svc, "k-1", "order 1", 1) },
			wantAttempts: final, wantStatus: 409, wantCode: "outcome-unknown"},
		{name: "key missing", editSetup: withOptions(idempotency.Options{Required: true}), requestHeader: withKeys(),
			wantAttempts: final, wantStatus: 400, wantCode: "key-missing"},
		{name: "key invalid", requestHeader: withKeys("a", "b"), wantAttempts: final, wantStatus: 400, wantCode: "key-invalid"},
		{name: "user unknown", wantAttempts: final, wantStatus: 401, wantCode: "user-unknown",
			editSetup: func(s *testservice.Setup) { s.User = func(*http.Request) (string, error) { return "", nil } }},
		{name: "body too large", editSetup: withOptions(idempotency.Options{MaxBody: 4}), wantAttempts: final,
			wantStatus: 413, wantCode: "body-too-large"},
		{name: "body invalid", editSetup: withOptions(idempotency.Options{Fingerprint: fingerprint.JSON}),
			requestHeader: http.Header{"Content-Type": {"application/json"}}, wantAttempts: final, wantStatus: 400,
			wantCode: "body-invalid"},
		{name: "body consumed", wantAttempts: final, wantStatus: 500, wantCode: "body-consumed", editSetup: func(s *testservice.Setup) {
			s.Outer = func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					next.ServeHTTP(w, r)
				})
			}
		}},
		{name: "overloaded", editSetup: withOptions(idempotency.Options{MaxBody: 512, MaxBodies: 512}), concurrentKey: "k-2",
			wantStatus: 201, wantCode: "overloaded"},
		{name: "quota exceeded", wantAttempts: 4, wantStatus: 429, wantCode: "quota-exceeded", editSetup: func(s *testservice.Setup) {
			s.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 321})
		}},
		{name: "store down", wantAttempts: again, wantStatus: 201, wantCode: "store-unavailable",
			editSetup: withSpyStore(func(s *testservice.SpyStore) { s.OnBegin = testservice.Failing(1, testservice.ErrDown) })},
	}
}

// failOnce returns a handler that answers the first attempt with status, or panics if status is 0. Later attempts succeed.
func failOnce(status int, retryAfter string) http.HandlerFunc {
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

// failAfterEffect returns the hook of a store method that has its effect, and still returns err.
func failAfterEffect(err error) testservice.Hook {
	return func(_ context.Context, _ int64, step func() error) error { return errors.Join(step(), err) }
}

// Transport retries or stops as the problem says, and the caller gets the final answer.
func TestTransportObeysTheProblem(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		for _, tt := range listSituations() {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", tt.name, http2), func(t *testing.T) {
				t.Parallel()
				tt.runSituation(t, http2)
			})
		}
	}
}

func (s situation) runSituation(t *testing.T, http2 bool) {
	var setup testservice.Setup
	if s.editSetup != nil {
		s.editSetup(&setup)
	}
	handler := s.handler
	if handler == nil {
		handler = testservice.Echo
	}
	working, answered := make(chan struct{}), make(chan struct{})
	if s.concurrentKey != "" {
		handler = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Concurrent") != "" {
				close(working)
				<-answered
			}
			testservice.Echo(w, r)
		}
	}
	svc := setup.Guard(t, handler)
	if s.prepare != nil {
		s.prepare(t, svc)
	}
	var got arrivals
	svc.Server = testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, r *http.Request, n int) {
		svc.Handler.ServeHTTP(w, r)
		if s.concurrentKey != "" && n == 1 {
			close(answered)
		}
	}), http2)
	if s.concurrentKey != "" {
		done := make(chan struct{})
		go func() {
			defer close(done)
			svc.Call(s.concurrentKey, "order 1", testservice.WithHeader("X-Concurrent", "1"))
		}()
		defer func() { <-done }()
		<-working
	}
	codes := problemRecorder{base: newImpatientTransport(svc.Server).Base}
	transport := newImpatientTransport(svc.Server)
	transport.Base = &codes
	r := newPostRequest(t, svc.Server.URL+"/payments", "order 1")
	r = r.WithContext(client.WithKey(t.Context(), "k-1"))
	for name, values := range s.requestHeader {
		r.Header[name] = values
	}

	a := sendRequest(transport, r)
	require.NoError(t, a.Err)
	require.Equal(t, s.wantStatus, a.Status, a.Body)
	if s.concurrentKey != "" {
		require.GreaterOrEqual(t, len(got.list()), 2)
		s.wantAttempts = len(got.list())
	}
	require.Len(t, got.list(), s.wantAttempts)
	for _, arrived := range got.list() {
		require.Equal(t, got.list()[0], arrived)
	}
	if s.wantCode == "" {
		require.Empty(t, codes.seenCodes)
		return
	}
	require.Contains(t, codes.seenCodes, s.wantCode)
	if s.wantStatus >= 400 {
		require.Contains(t, a.Body, "#"+s.wantCode+`"`, "the caller can read the answer")
	}
}

// problemRecorder is a Base that records the codes of the problems in the answers of base.
type problemRecorder struct {
	base      http.RoundTripper
	seenCodes []string
}

func (p *problemRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.base.RoundTrip(r)
	if err != nil || resp.Header.Get("Content-Type") != "application/problem+json" {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	if code := codeOfType.FindSubmatch(body); code != nil {
		p.seenCodes = append(p.seenCodes, string(code[1]))
	}
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp, err
}

// codeOfType matches the code at the end of the type of a problem.
var codeOfType = regexp.MustCompile(`"type":"[^"]*#([a-z-]+)"`)

// listSituations contains every problem that docs/problems.md describes.
func TestEveryProblemIsTried(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/problems.md")
	require.NoError(t, err)
	tried := make(map[string]bool)
	for _, s := range listSituations() {
		tried[s.wantCode] = true
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
	const again, final = 2, 1 // attempts
	huge := strings.Repeat(" ", 1<<20)
	tests := []struct {
		name, mediaType, body string
		status                int
		wantAttempts          int
	}{
		{"never, of an unknown type", problem, `{"type":"https://example.com/x","retry":"never"}`, 500, final},
		{"new key, without a type", problem, `{"retry":"new-key"}`, 503, final},
		{"with a parameter", problem + "; charset=utf-8", `{"retry":"never"}`, 503, final},
		{"in capital letters", "Application/Problem+JSON", `{"retry":"never"}`, 503, final},
		{"never, in a conflict with Retry-After", problem, `{"retry":"never"}`, 409, final},
		{"same key", problem, `{"retry":"same-key"}`, 503, again},
		{"same key, but the request has to be corrected first", problem, `{"retry":"same-key"}`, 400, final},
		{"no advice", problem, `{"type":"https://example.com/x"}`, 503, again},
		{"an unknown word", problem, `{"retry":"perhaps"}`, 503, again},
		{"a number", problem, `{"retry":5}`, 503, again},
		{"null", problem, `null`, 503, again},
		{"empty", problem, ``, 503, again},
		{"malformed", problem, `{"retry":"never"`, 503, again},
		{"HTML", problem, `<html>`, 503, again},
		{"another media type", "application/json", `{"retry":"never"}`, 503, again},
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
				server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, _ *http.Request, n int) {
					w.Header()["Content-Type"] = []string{tt.mediaType}
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
				transport := newImpatientTransport(server)
				transport.MaxAttempts = 2
				a := sendRequest(transport, newPostRequest(t, server.URL, "order 1"))
				require.NoError(t, a.Err)
				require.Equal(t, tt.status, a.Status)
				require.True(t, tt.body == a.Body, "%d of %d bytes arrived", len(a.Body), len(tt.body))
				got.requireOneKey(t, tt.wantAttempts)
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
	a := sendRequest(newImpatientTransport(server), newPostRequest(t, server.URL, "order 1"))
	require.ErrorIs(t, a.Err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", a.Body)
}
