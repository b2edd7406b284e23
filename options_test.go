package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	m, err := idempotency.New(nil, nil, idempotency.Options{
		Headers: []string{"no name"}, Methods: []string{"PO ST", "post"}, OmitHeaders: []string{"a:"},
		FingerprintHeaders: []string{"Host"}, MaxBody: -1, MaxResponse: -1, ReuseStatus: 200, ProblemBase: "https://x", TTL: time.Second,
		Lease: time.Minute, Wait: -1, Abandoned: -1, StoreTimeout: time.Hour,
	})
	require.Nil(t, m)
	for _, fault := range []string{"Store is nil", "UserFunc", "Header", "Methods", "OmitHeaders", "FingerprintHeaders",
		"MaxBody", "MaxResponse", "ReuseStatus", "ProblemBase", "TTL", "Wait", "Abandoned", "StoreTimeout", "not in capitals"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, idempotency.Options{Methods: []string{}})
	require.ErrorContains(t, err, "Methods")
	for fault, info := range map[string]idempotency.KeyInfo{
		`StatusURL "mailto:a@b"`:  {StatusURL: "mailto:a@b"},
		`StatusURL "/status#k"`:   {StatusURL: "/status#k"},
		`StatusURL "/%"`:          {StatusURL: "/%"},
		`StatusURL "ftp://a/"`:    {StatusURL: "ftp://a/"},
		`"a b" is not a field`:    {BeganField: "a b"},
		`"Date" has a meaning`:    {BeganField: "date"},
		`"Expires" has`:           {KeptUntilField: "expires"},
		`"Idempotent-Replayed"`:   {KeptUntilField: "idempotent-replayed"},
		`"Content-Length" has`:    {KeptUntilField: "Content-Length"},
		`two fields have the nam`: {BeganField: "X-A", KeptUntilField: "x-a"},
	} {
		_, err = idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, idempotency.Options{KeyInfo: info})
		require.ErrorContains(t, err, fault)
	}
	_, err = idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{TTL: math.MaxInt64, Lease: math.MaxInt64})
	require.ErrorContains(t, err, "TTL")
	_, err = idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{TTL: 99 * 365 * 24 * time.Hour})
	require.NoError(t, err)
}

// Each option of RunnerOptions has a namesake in Options, which the Middleware passes to its Runner.
func TestOptionsReachTheRunner(t *testing.T) {
	t.Parallel()
	runnerOptions := reflect.TypeFor[idempotency.RunnerOptions]()
	for field := range runnerOptions.Fields() {
		var opts idempotency.Options
		set := reflect.ValueOf(&opts).Elem().FieldByName(field.Name)
		require.True(t, set.IsValid(), "Options has no field %s", field.Name)
		require.Equal(t, field.Type, set.Type(), field.Name)
		switch {
		case set.CanInt():
			set.SetInt(1)
		case set.Kind() == reflect.Bool:
			set.SetBool(true)
		case set.Kind() == reflect.Func:
			set.Set(reflect.MakeFunc(set.Type(), func([]reflect.Value) []reflect.Value { return nil }))
		default:
			set.Set(reflect.New(set.Type().Elem()))
		}
		passedOn := reflect.ValueOf(idempotency.RunnerOptionsOf(opts)).FieldByName(field.Name)
		require.False(t, passedOn.IsZero(), field.Name)
	}
}

// Neither a huge limit nor a huge Content-Length makes the Middleware allocate memory in advance.
func TestHugeLimits(t *testing.T) {
	t.Parallel()
	const huge = "17592186044416"
	svc := testservice.Setup{Opts: idempotency.Options{MaxBody: math.MaxInt64, MaxResponse: math.MaxInt64}}.Guard(t,
		func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", huge) })
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("short"))
	r.Header.Set("Idempotency-Key", "k")
	r.ContentLength = 1 << 44
	w := httptest.NewRecorder()
	svc.Handler.ServeHTTP(w, r)
	require.Equal(t, huge, w.Header().Get("Content-Length"))
	require.EqualValues(t, 1, svc.Runs.Load())
}

func TestOptionsAreFrozen(t *testing.T) {
	t.Parallel()
	headers, methods, omitted := []string{"Idempotency-Key"}, []string{"POST"}, []string{"X-Omitted"}
	selecting := []string{"X-Tenant"}
	svc := testservice.Setup{Opts: idempotency.Options{
		Headers: headers, Methods: methods, OmitHeaders: omitted, FingerprintHeaders: selecting,
	}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Omitted", "1") })
	headers[0], methods[0], omitted[0], selecting[0] = "X-Other", "PUT", "X-Other", "X-Other"
	require.Contains(t, svc.Call("k", "b").Header, "X-Omitted")
	require.NotContains(t, svc.Call("k", "b").Header, "X-Omitted")
	testservice.RequireProblem(t, svc.Call("k", "b", testservice.WithHeader("X-Tenant", "a")), http.StatusConflict, "key-reused")
	require.EqualValues(t, 1, svc.Runs.Load())
}

func TestOptionHeadersMustBeFreeForKeys(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"authorization", "Connection", "Cookie", "HOST", "Proxy-Authorization", "Trailer", "Transfer-Encoding",
		"content-type", "Content-Digest", "",
	} {
		opts := idempotency.Options{Headers: []string{"X-Key", name}}
		_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, opts)
		require.ErrorContains(t, err, "Headers", name)
	}
	_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, idempotency.Options{Headers: []string{}})
	require.ErrorContains(t, err, "Headers")
}

func TestOptionHeaders(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{Headers: []string{"x-request-key"}}}.Serve(t, testservice.Echo)
	svc.Post("k", "b")
	svc.Post("k", "b")
	require.EqualValues(t, 2, svc.Runs.Load(), "Idempotency-Key means nothing here")
	key := testservice.WithHeader("X-Request-Key", "k")
	testservice.RequireReplay(t, svc.Post("", "b", key), svc.Post("", "b", key))
}

func TestOptionHeadersOfSeveralNames(t *testing.T) {
	t.Parallel()
	opts := idempotency.Options{Headers: []string{"Idempotency-Key", "x-idempotency-key"}}
	svc := testservice.Setup{Opts: opts}.Guard(t, testservice.Echo)
	first := svc.Call("k", "b")
	withOtherHeader := func(lines ...string) testservice.Edit { return testservice.WithHeader("X-Idempotency-Key", lines...) }
	testservice.RequireReplay(t, first, svc.Call("", "b", withOtherHeader("k")))
	testservice.RequireReplay(t, first, svc.Call("k", "b", withOtherHeader("k")))
	testservice.RequireReplay(t, first, svc.Call("k", "b", withOtherHeader(`"k"`)))
	for _, lines := range [][]string{{"l"}, {"K"}, {""}, {"k", "k"}} {
		testservice.RequireProblem(t, svc.Call("k", "b", withOtherHeader(lines...)), http.StatusBadRequest, "key-invalid")
	}
	require.EqualValues(t, 1, svc.Runs.Load())
	require.Equal(t, http.StatusCreated, svc.Call("", "b").Status)
	require.EqualValues(t, 2, svc.Runs.Load(), "without a key")
}

func TestOptionMethods(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, testservice.Echo)
	patch := testservice.WithMethod("PATCH")
	testservice.RequireReplay(t, svc.Call("k", "b", patch), svc.Call("k", "b", patch))
	svc = testservice.Setup{Opts: idempotency.Options{Methods: []string{"DELETE"}}}.Guard(t, testservice.Echo)
	remove := testservice.WithMethod("DELETE")
	testservice.RequireReplay(t, svc.Call("k", "b", remove), svc.Call("k", "b", remove))
	require.False(t, svc.Call("k", "b").Replayed())
	require.False(t, svc.Call("k", "b").Replayed())
}

func TestOptionRequired(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{Required: true}}.Guard(t, testservice.Echo)
	testservice.RequireProblem(t, svc.Call("", "b"), http.StatusBadRequest, "key-missing")
	require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status)
	require.Equal(t, http.StatusCreated, svc.Call("", "b", testservice.WithMethod(http.MethodGet)).Status)
}

func TestOptionValidateKey(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{ValidateKey: idempotency.ValidateUUID}}.Guard(t, testservice.Echo)
	testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusBadRequest, "key-invalid")
	require.Equal(t, http.StatusCreated, svc.Call(`"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "b").Status)
}

func TestOptionEndpoint(t *testing.T) {
	t.Parallel()
	endpoint := func(*http.Request) string { return "payments" }
	svc := testservice.Setup{Opts: idempotency.Options{Endpoint: endpoint}}.Serve(t, testservice.Echo)
	testservice.RequireReplay(t, svc.Send("/v1/payments", "k", "b"), svc.Send("/v2/payments", "k", "b"))
}

func TestOptionFingerprint(t *testing.T) {
	t.Parallel()
	fingerprintLowerCase := func(_ *http.Request, body []byte) (idempotency.Fingerprint, error) {
		return sha256.Sum256(bytes.ToLower(body)), nil
	}
	svc := testservice.Setup{Opts: idempotency.Options{Fingerprint: fingerprintLowerCase}}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, svc.Call("k", "body"), svc.Call("k", "BODY"))
	testservice.RequireProblem(t, svc.Call("k", "other"), http.StatusConflict, "key-reused")
}

func TestOptionMaxBody(t *testing.T) {
	t.Parallel()
	for limit, opts := range map[int]idempotency.Options{4: {MaxBody: 4}, 1 << 20: {}} {
		for _, length := range []int64{0, -1} { // 0: the length of the body; -1: unknown
			edits := []testservice.Edit{func(r *http.Request) { r.ContentLength += length * (r.ContentLength + 1) }}
			svc := testservice.Setup{Opts: opts}.Guard(t, testservice.Echo)
			require.Equal(t, http.StatusCreated, svc.Call("k", strings.Repeat("b", limit), edits...).Status)
			large := svc.Call("l", strings.Repeat("b", limit+1), edits...)
			testservice.RequireProblem(t, large, http.StatusRequestEntityTooLarge, "body-too-large")
			require.Equal(t, http.StatusCreated, svc.Call("", strings.Repeat("b", limit+1), edits...).Status, "no key, no limit")
		}
	}
}

func TestOptionMaxResponseHasADefault(t *testing.T) {
	t.Parallel()
	for size, replayed := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
		require.Len(t, svc.Call("k", "b").Body, size)
		require.Equal(t, replayed, svc.Call("k", "b").Replayed())
	}
}

func TestOptionTTL(t *testing.T) {
	t.Parallel()
	for ttl, opts := range map[time.Duration]idempotency.Options{24 * time.Hour: {}, time.Hour: {TTL: time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			svc := testservice.Setup{Opts: opts}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Hour) // the TTL begins after this time
				testservice.Echo(w, r)
			})
			svc.Call("k", "b")
			time.Sleep(ttl - 1)
			require.True(t, svc.Call("k", "b").Replayed())
			time.Sleep(time.Nanosecond)
			require.False(t, svc.Call("k", "c").Replayed(), "a new operation")
			require.EqualValues(t, 2, svc.Runs.Load())
		})
	}
}

func TestOptionLease(t *testing.T) {
	t.Parallel()
	for lease, opts := range map[time.Duration]idempotency.Options{
		30 * time.Second: {}, time.Second: {Lease: time.Second, StoreTimeout: time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnComplete = testservice.Failing(testservice.Always, testservice.ErrDown)
			store.OnExtend = testservice.Failing(testservice.Always, testservice.ErrDown)
			svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo)
			began := time.Now()
			svc.Call("k", "b") // the Runner gives up, and the claim lapses
			time.Sleep(lease - 1 - time.Since(began))
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
			time.Sleep(time.Nanosecond)
			require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status)
		})
	}
}

func TestOptionStoreTimeout(t *testing.T) {
	t.Parallel()
	stallStep := func(ctx context.Context, _ int64, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for timeout, opts := range map[time.Duration]idempotency.Options{
		5 * time.Second: {}, time.Second: {StoreTimeout: time.Second}, 2 * time.Second: {Lease: 6 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnBegin = stallStep
			svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo)
			began := time.Now()
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, timeout, time.Since(began))

			store.OnBegin, store.OnComplete = nil, stallStep
			began = time.Now()
			require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status, "the answer waits no longer than the timeout")
			require.Equal(t, timeout, time.Since(began))
			require.Equal(t, idempotency.OutcomeUnrecorded, svc.Journal.Last(t).Outcome)
		})
	}
}

func TestOptionWait(t *testing.T) {
	t.Parallel()
	finish := make(chan struct{})
	svc := testservice.Setup{Opts: idempotency.Options{Wait: time.Minute}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-finish
		testservice.Echo(w, r)
	})
	answers := make(chan testservice.Answer, 2)
	for range 2 {
		go func() { answers <- svc.Post("k", "b") }()
	}
	require.Eventually(t, func() bool { return svc.Store.Begins.Load() >= 2 }, 10*time.Second, time.Millisecond)
	close(finish)
	first, second := <-answers, <-answers
	if first.Replayed() {
		first, second = second, first
	}
	testservice.RequireReplay(t, first, second)
}

func TestOptionStorable(t *testing.T) {
	t.Parallel()
	for _, status := range []int{
		200, 201, 204, 301, 304, 400, 401, 403, 404, 408, 409, 422, 425, 429, 451, 499, 500, 501, 502, 503, 504, 599, 999,
	} {
		for name, storable := range map[string]func(*idempotency.Response) bool{
			"default":    nil,
			"everything": func(*idempotency.Response) bool { return true },
			"nothing":    func(*idempotency.Response) bool { return false },
		} {
			svc := testservice.Setup{Opts: idempotency.Options{Storable: storable}}.Guard(t,
				func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			require.Equal(t, status, svc.Call("k", "b").Status)
			retry := svc.Call("k", "b")
			require.Equal(t, status, retry.Status)
			stored := name == "everything" ||
				name == "default" && status < 500 && !strings.Contains("401 408 425 429 499", fmt.Sprint(status))
			require.Equal(t, stored, retry.Replayed(), "%d %s", status, name)
		}
	}
}

func TestOptionOmitHeaders(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		opts := idempotency.Options{OmitHeaders: []string{"set-cookie", "X-Secret", "x-sum"}, Stream: stream}
		svc := testservice.Setup{Opts: opts}.Serve(t,
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Set-Cookie", "session=1")
				w.Header()["x-secret"] = []string{"2"}
				w.Header().Set("X-Kept", "3")
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.WriteString(w, "body")
				w.Header().Set("X-Sum", "4")
			})
		first := svc.Post("k", "b")
		require.Equal(t, "session=1", first.Header.Get("Set-Cookie"))
		require.Equal(t, "2", first.Header.Get("X-Secret"))
		replay := svc.Post("k", "b")
		require.True(t, replay.Replayed())
		require.Equal(t, "3", replay.Header.Get("X-Kept"))
		require.NotContains(t, replay.Header, "Set-Cookie")
		require.NotContains(t, replay.Header, "X-Secret")
		require.Equal(t, "body", replay.Body)

		rec, _, err := svc.Store.Begin(t.Context(), svc.Journal.Last(t).Key, idempotency.ClaimRequest{Lease: time.Second})
		require.NoError(t, err)
		stored := fmt.Sprint(rec.Response.Header, rec.Response.Trailer)
		for _, secret := range []string{"session", "2", "4"} {
			require.NotContains(t, stored, secret)
		}
	}
}

func TestOptionReuseStatus(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{ReuseStatus: http.StatusUnprocessableEntity}}.Guard(t, testservice.Echo)
	svc.Call("k", "b")
	testservice.RequireProblem(t, svc.Call("k", "c"), http.StatusUnprocessableEntity, "key-reused")
}

func TestOptionErrorHandler(t *testing.T) {
	t.Parallel()
	editDetail := func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
		assert.Equal(t, "/payments", r.URL.Path)
		assert.ErrorIs(t, e, idempotency.ErrKeyReused)
		assert.NotEmpty(t, e.Error())
		e.Detail = "mine"
		idempotency.WriteProblem(w, r, e)
	}
	svc := testservice.Setup{Opts: idempotency.Options{ErrorHandler: editDetail}}.Guard(t, testservice.Echo)
	svc.Call("k", "b")
	for range 2 {
		got := svc.Call("k", "c")
		require.Equal(t, "mine", testservice.RequireProblem(t, got, http.StatusConflict, "key-reused").Detail)
	}
	other := testservice.Setup{}.Guard(t, testservice.Echo)
	other.Call("k", "b")
	require.NotContains(t, other.Call("k", "c").Body, "mine", "an edit of one error handler must not reach another Middleware")
}

func TestOptionObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
			testservice.Echo(w, r)
		})
		svc.Call("k", "b")
		svc.Call("k", "b")
		events := svc.Journal.All()
		require.Len(t, events, 2)
		first := events[0]
		require.Equal(t, first.Key.OperationID(), first.Operation)
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeExecuted, Operation: first.Operation, Attempt: 1, Status: http.StatusCreated,
			Key:   idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "k"},
			Began: first.Began, Total: 3 * time.Second, Work: 3 * time.Second, Stored: first.Stored,
		}, first)
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeReplayed, Operation: first.Operation, Attempt: 1, Status: http.StatusCreated,
			Key: first.Key, Began: first.Began.Add(3 * time.Second), Stored: first.Stored,
		}, events[1])
	})
}

// A line of the log has the operation, the endpoint and the outcome, but neither user, key nor body. Normal outcomes have no
// line. An attempt that ends without a stored answer has a line, unless the attempt had no effect.
func TestOptionLogger(t *testing.T) {
	t.Parallel()
	failBegin := func(err error) func(*testservice.SpyStore) {
		return func(s *testservice.SpyStore) { s.OnBegin = testservice.Failing(testservice.Always, err) }
	}
	failComplete := func(err error) func(*testservice.SpyStore) {
		return func(s *testservice.SpyStore) { s.OnComplete = testservice.Failing(testservice.Always, err) }
	}
	answerStatus := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	decideVerdict := func(v idempotency.Verdict) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), v)
			w.WriteHeader(http.StatusBadGateway)
		}
	}
	panicWithBoom := func(http.ResponseWriter, *http.Request) { panic("boom") }
	failOpen, refuse := idempotency.Options{FailOpen: true}, idempotency.Options{Abandoned: idempotency.Refuse}
	const (
		notStorable = "idempotency: the answer is not storable"
		notKept     = "idempotency: the handler decided not to keep its answer"
		panicked    = "idempotency: the handler panicked or exited"
	)
	for name, row := range map[string]struct {
		opts        idempotency.Options
		injectFault func(*testservice.SpyStore)
		handler     http.HandlerFunc
		wantLine    string // level, outcome, and the end of the line after the endpoint; empty: no line
	}{
		"executed":             {handler: testservice.Echo},
		"too many requests":    {handler: answerStatus(http.StatusTooManyRequests)},
		"refused by a verdict": {handler: decideVerdict(idempotency.Free)},
		"failed": {
			handler:  answerStatus(http.StatusServiceUnavailable),
			wantLine: `WARN released attempt=1 status=503 error="` + notStorable + `"`,
		},
		"request timeout": {
			handler:  answerStatus(http.StatusRequestTimeout),
			wantLine: `WARN released attempt=1 status=408 error="` + notStorable + `"`,
		},
		"panicked": {handler: panicWithBoom, wantLine: `WARN released attempt=1 error="` + panicked + `"`},
		"unknown": {
			handler:  decideVerdict(idempotency.Unknown),
			wantLine: `WARN released attempt=1 status=502 error="` + notKept + `"`,
		},
		"failed, and not released": {
			injectFault: func(s *testservice.SpyStore) {
				s.OnRelease = testservice.Failing(testservice.Always, testservice.ErrDown)
			},
			handler:  answerStatus(http.StatusServiceUnavailable),
			wantLine: `WARN released attempt=1 status=503 error="store down\n` + notStorable + `"`,
		},
		"panicked, Refuse": {
			opts: refuse, handler: panicWithBoom,
			wantLine: `WARN abandoned attempt=1 error="` + panicked + `"`,
		},
		"unknown, Refuse": {
			opts: refuse, handler: decideVerdict(idempotency.Unknown),
			wantLine: `WARN abandoned attempt=1 status=502 error="` + notKept + `"`,
		},
		"unavailable": {
			injectFault: failBegin(testservice.ErrDown), handler: testservice.Echo,
			wantLine: `ERROR store-unavailable error="store down"`,
		},
		"unprotected": {
			opts: failOpen, injectFault: failBegin(testservice.ErrDown), handler: testservice.Echo,
			wantLine: `ERROR unprotected status=201 error="store down"`,
		},
		"unrecorded": {
			injectFault: failComplete(testservice.ErrDown), handler: testservice.Echo,
			wantLine: `ERROR unrecorded attempt=1 status=201 error="store down"`,
		},
		"restored": {
			injectFault: failComplete(idempotency.ErrRestored), handler: testservice.Echo,
			wantLine: `WARN restored attempt=1 status=201 error="` + idempotency.ErrRestored.Error() + `"`,
		},
		"claim lost": {
			injectFault: failComplete(idempotency.ErrClaimLost), handler: testservice.Echo,
			wantLine: `WARN claim-lost attempt=1 status=201 error="` + idempotency.ErrClaimLost.Error() + `"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				if row.injectFault != nil {
					row.injectFault(store)
				}
				var log bytes.Buffer
				opts := row.opts
				opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
				user := func(*http.Request) (string, error) { return "secretuser", nil }
				svc := testservice.Setup{Store: store, User: user, Opts: opts}.Guard(t, row.handler)
				func() {
					defer func() { _ = recover() }()
					svc.Call("secretkey", "secretbody")
				}()
				svc.Call("secretkey secretkey", "secretbody") // an invalid key
				if row.wantLine == "" {
					require.Empty(t, log.String())
					return
				}
				key := idempotency.Key{User: "secretuser", Endpoint: "POST /payments", ID: "secretkey"}
				level, rest, _ := strings.Cut(row.wantLine, " ")
				outcome, rest, _ := strings.Cut(rest, " ")
				_, line, _ := strings.Cut(log.String(), " ") // without the time
				require.Equal(t, fmt.Sprintf("level=%s msg=\"idempotency: %s\" operation=%s endpoint=\"POST /payments\" %s\n",
					level, outcome, key.OperationID(), rest), line)
			})
		})
	}
}

func TestErrorHandlerGetsSentinelAndCause(t *testing.T) {
	t.Parallel()
	var refused *idempotency.Error
	svc := testservice.Setup{
		User: func(*http.Request) (string, error) { return "", testservice.ErrDown },
		Opts: idempotency.Options{ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
			refused = e
		}},
	}.Guard(t, testservice.Echo)
	svc.Call("k", "b")
	require.ErrorIs(t, refused, idempotency.ErrUserUnknown)
	require.ErrorIs(t, refused, testservice.ErrDown)
	require.False(t, errors.Is(refused, idempotency.ErrKeyInvalid))
}

// shortTTLStore is a store whose Validate accepts a TTL of at most an hour.
type shortTTLStore struct{ idempotency.Store }

func (shortTTLStore) Validate(opts idempotency.RunnerOptions) error {
	if opts.TTL > time.Hour {
		return testservice.ErrDown
	}
	return nil
}

func (s shortTTLStore) Unwrap() idempotency.Store { return s.Store }

// uncomparableStore is a store of a type that cannot be compared.
type uncomparableStore struct {
	idempotency.Store
	keys []string
}

// New reports the faults of the store's options together with all other faults, even if wrappers stand in front of the store.
// Otherwise, a service would start, and refuse each request.
func TestNewReportsFaultsOfTheStore(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	faulty := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1})
	sealed, err := seal.New(faulty, seal.Options{Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}}})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		store      idempotency.Store
		opts       idempotency.Options
		wantFaults []string
	}{
		"memory": {faulty, idempotency.Options{}, []string{"MaxBytes -1 is negative"}},
		"memory without room": {
			idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 300}), idempotency.Options{},
			[]string{"MaxBytes 300 has no room for a record"},
		},
		"memory without room for a user": {
			idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 1}), idempotency.Options{},
			[]string{"MaxUserBytes 1 has no room for a record"},
		},
		"Redis": {
			idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "{}"}), idempotency.Options{},
			[]string{"RedisOptions.Prefix"},
		},
		"Redis without a client": {
			idempotency.NewRedisStore(nil, idempotency.RedisOptions{}), idempotency.Options{}, []string{"client is nil"},
		},
		"cache": {
			cache.New(testservice.NewSpyStore(), cache.Options{MaxBytes: -1, MaxAge: -2}), idempotency.Options{},
			[]string{"cache: MaxBytes -1", "cache: MaxAge -2"},
		},
		"not comparable": {
			uncomparableStore{testservice.NewSpyStore(), nil}, idempotency.Options{},
			[]string{"idempotency_test.uncomparableStore cannot be compared"},
		},
		"cache of nothing": {cache.New(nil, cache.Options{}), idempotency.Options{}, []string{"cache: Store is nil"}},
		"faults of cache, store and Middleware": {
			cache.New(sealed, cache.Options{MaxBytes: -3}), idempotency.Options{MaxBody: -4, TTL: -5},
			[]string{"cache: MaxBytes -3", "idempotency: MaxBytes -1", "MaxBody -4", "TTL -5"},
		},
		"TTL too long for the store": {
			shortTTLStore{testservice.NewSpyStore()}, idempotency.Options{TTL: 2 * time.Hour}, []string{testservice.ErrDown.Error()},
		},
		"default TTL too long for the store": {
			cache.New(shortTTLStore{testservice.NewSpyStore()}, cache.Options{}), idempotency.Options{},
			[]string{testservice.ErrDown.Error()},
		},
		"TTL that the store accepts": {shortTTLStore{testservice.NewSpyStore()}, idempotency.Options{TTL: time.Hour}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := idempotency.New(test.store, idempotency.SingleUser, test.opts)
			if test.wantFaults == nil {
				require.NoError(t, err)
			}
			for _, fault := range test.wantFaults {
				require.ErrorContains(t, err, fault)
			}
		})
	}
}

// The fields of KeyInfo are in a first answer and in its replays, and in no record.
func TestOptionKeyInfoFields(t *testing.T) {
	t.Parallel()
	named := idempotency.KeyInfo{BeganField: "x-began", KeptUntilField: "X-Kept-Until"}
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Began", "of the handler")
		testservice.EchoOrFail(w, r)
		w.Header().Set(http.TrailerPrefix+"X-Kept-Until", "of the handler")
	}
	onMemory := func(*testing.T) idempotency.Store { return testservice.NewSpyStore() }
	for name, test := range map[string]struct {
		newStore func(*testing.T) idempotency.Store
		edit     func(*idempotency.Options)
		body     string
		onFirst  bool
		onRetry  bool
	}{
		"memory": {onMemory, nil, "a", true, true},
		"redis": {func(t *testing.T) idempotency.Store {
			client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		}, nil, "a", true, true},
		"too large":  {onMemory, func(o *idempotency.Options) { o.MaxResponse = 1 }, "too large", true, false},
		"not stored": {onMemory, nil, "fail", false, false},
		"stream":     {onMemory, func(o *idempotency.Options) { o.Stream = true }, strings.Repeat("a", 4096), false, true},
		"the store fails at completion": {func(*testing.T) idempotency.Store {
			store := testservice.NewSpyStore()
			store.OnComplete = func(ctx context.Context, n int64, step func() error) error {
				if n == 1 {
					<-ctx.Done()
					return ctx.Err()
				}
				return step()
			}
			return store
		}, func(o *idempotency.Options) { o.StoreTimeout = time.Millisecond }, "a", false, true},
		"the store refuses the answer": {func(*testing.T) idempotency.Store {
			store := testservice.NewSpyStore()
			store.OnComplete = func(context.Context, int64, func() error) error { return idempotency.ErrRecordInvalid }
			return store
		}, nil, "a", false, false},
		"unprotected": {func(*testing.T) idempotency.Store {
			store := testservice.NewSpyStore()
			store.OnBegin = testservice.Failing(1, testservice.ErrDown)
			return store
		}, func(o *idempotency.Options) { o.FailOpen = true }, "a", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := idempotency.Options{KeyInfo: named, TTL: 2 * time.Hour}
			if test.edit != nil {
				test.edit(&opts)
			}
			store := test.newStore(t)
			svc := testservice.Setup{Store: store, Opts: opts}.Serve(t, handler)
			began := time.Now().Truncate(time.Second)
			first := svc.Post("key", test.body)
			requireKeyInfo(t, test.onFirst, first, began, 2*time.Hour)
			var retry testservice.Answer
			testservice.Until(t, func() bool {
				retry = svc.Post("key", test.body)
				return !test.onRetry || retry.Replayed()
			})
			requireKeyInfo(t, test.onRetry, retry, began, 2*time.Hour)
			if test.onFirst && test.onRetry {
				require.Equal(t, first.Header["X-Began"], retry.Header["X-Began"])
			}
			inspector, _ := idempotency.As[idempotency.Inspector](store)
			key := idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "key"}
			entry, err := inspector.Inspect(t.Context(), key)
			require.NoError(t, err)
			if entry.Response != nil {
				require.NotRegexp(t, "(?i)x-(began|kept-until)", entry.Response.Header+entry.Response.Trailer)
			}
		})
	}
}

// requireKeyInfo checks that an answer has both fields of KeyInfo, or that it has none with a time.
func requireKeyInfo(t *testing.T, isWanted bool, a testservice.Answer, began time.Time, ttl time.Duration) {
	t.Helper()
	for name, want := range map[string]time.Time{"X-Began": began, "X-Kept-Until": began.Add(ttl)} {
		at, err := http.ParseTime(a.Header.Get(name))
		require.Equal(t, isWanted, err == nil, "%s: %q", name, a.Header[name])
		if isWanted {
			require.Len(t, a.Header[name], 1)
			require.WithinRange(t, at, want.Add(-time.Second), time.Now().Add(want.Sub(began)))
		}
	}
}
