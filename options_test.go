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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	m, err := idempotency.New(nil, nil, idempotency.Options{
		Headers: []string{"no name"}, Methods: []string{"PO ST", "post"}, OmitHeaders: []string{"a:"},
		FingerprintHeaders: []string{"Host"}, MaxBody: -1, MaxResponse: -1, ReuseStatus: 200, TTL: time.Second,
		Lease: time.Minute, Wait: -1, Abandoned: -1, StoreTimeout: time.Hour,
	})
	require.Nil(t, m)
	for _, fault := range []string{"Store is nil", "UserFunc", "Header", "Methods", "OmitHeaders", "FingerprintHeaders",
		"MaxBody", "MaxResponse", "ReuseStatus", "TTL", "Wait", "Abandoned", "StoreTimeout", "not in capitals"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = idempotency.New(newSpyStore(), idempotency.SingleUser, idempotency.Options{Methods: []string{}})
	require.ErrorContains(t, err, "Methods")
	_, err = idempotency.NewRunner(newSpyStore(), idempotency.RunnerOptions{TTL: math.MaxInt64, Lease: math.MaxInt64})
	require.ErrorContains(t, err, "TTL")
	_, err = idempotency.NewRunner(newSpyStore(), idempotency.RunnerOptions{TTL: 99 * 365 * 24 * time.Hour})
	require.NoError(t, err)
}

// Limits are no plan to use them: nothing is made room for because a header announces it.
func TestHugeLimits(t *testing.T) {
	t.Parallel()
	const huge = "17592186044416"
	svc := setup{opts: idempotency.Options{MaxBody: math.MaxInt64, MaxResponse: math.MaxInt64}}.guard(t,
		func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", huge) })
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("short"))
	r.Header.Set("Idempotency-Key", "k")
	r.ContentLength = 1 << 44
	w := httptest.NewRecorder()
	svc.handler.ServeHTTP(w, r)
	require.Equal(t, huge, w.Header().Get("Content-Length"))
	require.EqualValues(t, 1, svc.runs.Load())
}

func TestOptionsAreFrozen(t *testing.T) {
	t.Parallel()
	headers, methods, omitted := []string{"Idempotency-Key"}, []string{"POST"}, []string{"X-Omitted"}
	selecting := []string{"X-Tenant"}
	svc := setup{opts: idempotency.Options{
		Headers: headers, Methods: methods, OmitHeaders: omitted, FingerprintHeaders: selecting,
	}}.guard(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Omitted", "1") })
	headers[0], methods[0], omitted[0], selecting[0] = "X-Other", "PUT", "X-Other", "X-Other"
	require.Contains(t, svc.call("k", "b").header, "X-Omitted")
	require.NotContains(t, svc.call("k", "b").header, "X-Omitted")
	requireProblem(t, svc.call("k", "b", withHeader("X-Tenant", "a")), http.StatusConflict, "key-reused")
	require.EqualValues(t, 1, svc.runs.Load())
}

func TestOptionHeadersMustBeFreeForKeys(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"authorization", "Connection", "Cookie", "HOST", "Proxy-Authorization", "Trailer", "Transfer-Encoding",
		"content-type", "Content-Digest", "",
	} {
		_, err := idempotency.New(newSpyStore(), idempotency.SingleUser, idempotency.Options{Headers: []string{"X-Key", name}})
		require.ErrorContains(t, err, "Headers", name)
	}
	_, err := idempotency.New(newSpyStore(), idempotency.SingleUser, idempotency.Options{Headers: []string{}})
	require.ErrorContains(t, err, "Headers")
}

func TestOptionHeaders(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{Headers: []string{"x-request-key"}}}.serve(t, echo)
	svc.post("k", "b")
	svc.post("k", "b")
	require.EqualValues(t, 2, svc.runs.Load(), "Idempotency-Key means nothing here")
	key := withHeader("X-Request-Key", "k")
	requireReplay(t, svc.post("", "b", key), svc.post("", "b", key))
}

func TestOptionHeadersOfSeveralNames(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{Headers: []string{"Idempotency-Key", "x-idempotency-key"}}}.guard(t, echo)
	first := svc.call("k", "b")
	other := func(lines ...string) edit { return withHeader("X-Idempotency-Key", lines...) }
	requireReplay(t, first, svc.call("", "b", other("k")))
	requireReplay(t, first, svc.call("k", "b", other("k")))
	requireReplay(t, first, svc.call("k", "b", other(`"k"`)))
	for _, lines := range [][]string{{"l"}, {"K"}, {""}, {"k", "k"}} {
		requireProblem(t, svc.call("k", "b", other(lines...)), http.StatusBadRequest, "key-invalid")
	}
	require.EqualValues(t, 1, svc.runs.Load())
	require.Equal(t, http.StatusCreated, svc.call("", "b").status)
	require.EqualValues(t, 2, svc.runs.Load(), "without a key")
}

func TestOptionMethods(t *testing.T) {
	t.Parallel()
	svc := setup{}.guard(t, echo)
	requireReplay(t, svc.call("k", "b", withMethod("PATCH")), svc.call("k", "b", withMethod("PATCH")))
	svc = setup{opts: idempotency.Options{Methods: []string{"DELETE"}}}.guard(t, echo)
	requireReplay(t, svc.call("k", "b", withMethod("DELETE")), svc.call("k", "b", withMethod("DELETE")))
	require.False(t, svc.call("k", "b").replayed())
	require.False(t, svc.call("k", "b").replayed())
}

func TestOptionRequired(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{Required: true}}.guard(t, echo)
	requireProblem(t, svc.call("", "b"), http.StatusBadRequest, "key-missing")
	require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
	require.Equal(t, http.StatusCreated, svc.call("", "b", withMethod(http.MethodGet)).status)
}

func TestOptionValidateKey(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{ValidateKey: idempotency.ValidateUUID}}.guard(t, echo)
	requireProblem(t, svc.call("k", "b"), http.StatusBadRequest, "key-invalid")
	require.Equal(t, http.StatusCreated, svc.call(`"8e03978e-40d5-43dd-bc93-6894a57f9324"`, "b").status)
}

func TestOptionEndpoint(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{Endpoint: func(*http.Request) string { return "payments" }}}.serve(t, echo)
	requireReplay(t, svc.send("/v1/payments", "k", "b"), svc.send("/v2/payments", "k", "b"))
}

func TestOptionFingerprint(t *testing.T) {
	t.Parallel()
	ignoringCase := func(_ *http.Request, body []byte) (idempotency.Fingerprint, error) {
		return sha256.Sum256(bytes.ToLower(body)), nil
	}
	svc := setup{opts: idempotency.Options{Fingerprint: ignoringCase}}.guard(t, echo)
	requireReplay(t, svc.call("k", "body"), svc.call("k", "BODY"))
	requireProblem(t, svc.call("k", "other"), http.StatusConflict, "key-reused")
}

func TestOptionMaxBody(t *testing.T) {
	t.Parallel()
	for limit, opts := range map[int]idempotency.Options{4: {MaxBody: 4}, 1 << 20: {}} {
		for _, length := range []int64{0, -1} { // as it is, unknown
			edits := []edit{func(r *http.Request) { r.ContentLength += length * (r.ContentLength + 1) }}
			svc := setup{opts: opts}.guard(t, echo)
			require.Equal(t, http.StatusCreated, svc.call("k", strings.Repeat("b", limit), edits...).status)
			large := svc.call("l", strings.Repeat("b", limit+1), edits...)
			requireProblem(t, large, http.StatusRequestEntityTooLarge, "body-too-large")
			require.Equal(t, http.StatusCreated, svc.call("", strings.Repeat("b", limit+1), edits...).status, "no key, no limit")
		}
	}
}

func TestOptionMaxResponseHasADefault(t *testing.T) {
	t.Parallel()
	for size, replayed := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		svc := setup{}.guard(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
		require.Len(t, svc.call("k", "b").body, size)
		require.Equal(t, replayed, svc.call("k", "b").replayed())
	}
}

func TestOptionTTL(t *testing.T) {
	t.Parallel()
	for ttl, opts := range map[time.Duration]idempotency.Options{24 * time.Hour: {}, time.Hour: {TTL: time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			svc := setup{opts: opts}.guard(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Hour) // the TTL is counted from the end
				echo(w, r)
			})
			svc.call("k", "b")
			time.Sleep(ttl - 1)
			require.True(t, svc.call("k", "b").replayed())
			time.Sleep(time.Nanosecond)
			require.False(t, svc.call("k", "c").replayed(), "a new operation")
			require.EqualValues(t, 2, svc.runs.Load())
		})
	}
}

func TestOptionLease(t *testing.T) {
	t.Parallel()
	for lease, opts := range map[time.Duration]idempotency.Options{
		30 * time.Second: {}, time.Second: {Lease: time.Second, StoreTimeout: time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newSpyStore()
			store.onComplete = failing(always, errDown)
			store.onExtend = failing(always, errDown)
			svc := setup{store: store, opts: opts}.guard(t, echo)
			began := time.Now()
			svc.call("k", "b") // its claim is left to lapse
			time.Sleep(lease - 1 - time.Since(began))
			requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
			time.Sleep(time.Nanosecond)
			require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
		})
	}
}

func TestOptionStoreTimeout(t *testing.T) {
	t.Parallel()
	stalling := func(ctx context.Context, _ int64, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for timeout, opts := range map[time.Duration]idempotency.Options{
		5 * time.Second: {}, time.Second: {StoreTimeout: time.Second}, 2 * time.Second: {Lease: 6 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newSpyStore()
			store.onBegin = stalling
			svc := setup{store: store, opts: opts}.guard(t, echo)
			began := time.Now()
			requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, timeout, time.Since(began))

			store.onBegin, store.onComplete = nil, stalling
			began = time.Now()
			require.Equal(t, http.StatusCreated, svc.call("k", "b").status, "the answer is held up no longer than that")
			require.Equal(t, timeout, time.Since(began))
			require.Equal(t, idempotency.OutcomeUnrecorded, svc.journal.last(t).Outcome)
		})
	}
}

func TestOptionWait(t *testing.T) {
	t.Parallel()
	finish := make(chan struct{})
	svc := setup{opts: idempotency.Options{Wait: time.Minute}}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-finish
		echo(w, r)
	})
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- svc.post("k", "b") }()
	}
	require.Eventually(t, func() bool { return svc.store.begins.Load() >= 2 }, 10*time.Second, time.Millisecond)
	close(finish)
	first, second := <-answers, <-answers
	if first.replayed() {
		first, second = second, first
	}
	requireReplay(t, first, second)
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
			svc := setup{opts: idempotency.Options{Storable: storable}}.guard(t,
				func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			require.Equal(t, status, svc.call("k", "b").status)
			retry := svc.call("k", "b")
			require.Equal(t, status, retry.status)
			stored := name == "everything" ||
				name == "default" && status < 500 && !strings.Contains("401 408 425 429 499", fmt.Sprint(status))
			require.Equal(t, stored, retry.replayed(), "%d %s", status, name)
		}
	}
}

func TestOptionOmitHeaders(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		opts := idempotency.Options{OmitHeaders: []string{"set-cookie", "X-Secret", "x-sum"}, Stream: stream}
		svc := setup{opts: opts}.serve(t,
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Set-Cookie", "session=1")
				w.Header()["x-secret"] = []string{"2"}
				w.Header().Set("X-Kept", "3")
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.WriteString(w, "body")
				w.Header().Set("X-Sum", "4")
			})
		first := svc.post("k", "b")
		require.Equal(t, "session=1", first.header.Get("Set-Cookie"))
		require.Equal(t, "2", first.header.Get("X-Secret"))
		replay := svc.post("k", "b")
		require.True(t, replay.replayed())
		require.Equal(t, "3", replay.header.Get("X-Kept"))
		require.NotContains(t, replay.header, "Set-Cookie")
		require.NotContains(t, replay.header, "X-Secret")
		require.Equal(t, "body", replay.body)

		rec, _, err := svc.store.Begin(t.Context(), svc.journal.last(t).Key, idempotency.ClaimRequest{Lease: time.Second})
		require.NoError(t, err)
		stored := fmt.Sprint(rec.Response.Header, rec.Response.Trailer)
		for _, secret := range []string{"session", "2", "4"} {
			require.NotContains(t, stored, secret)
		}
	}
}

func TestOptionReuseStatus(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{ReuseStatus: http.StatusUnprocessableEntity}}.guard(t, echo)
	svc.call("k", "b")
	requireProblem(t, svc.call("k", "c"), http.StatusUnprocessableEntity, "key-reused")
}

func TestOptionErrorHandler(t *testing.T) {
	t.Parallel()
	mine := func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
		assert.Equal(t, "/payments", r.URL.Path)
		assert.ErrorIs(t, e, idempotency.ErrKeyReused)
		assert.NotEmpty(t, e.Error())
		e.Detail = "mine"
		idempotency.WriteProblem(w, r, e)
	}
	svc := setup{opts: idempotency.Options{ErrorHandler: mine}}.guard(t, echo)
	svc.call("k", "b")
	for range 2 {
		got := svc.call("k", "c")
		require.Equal(t, "mine", requireProblem(t, got, http.StatusConflict, "key-reused").Detail)
	}
	other := setup{}.guard(t, echo)
	other.call("k", "b")
	require.NotContains(t, other.call("k", "c").body, "mine", "what a handler edits is its own")
}

func TestOptionObserver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := setup{}.guard(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
			echo(w, r)
		})
		svc.call("k", "b")
		svc.call("k", "b")
		events := svc.journal.all()
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

// A line says which operation at which endpoint, what is known of it, and nothing else. Neither user, key nor body is in it.
// What is a part of normal operation has no line. An attempt that ended without an answer has one, unless it did nothing.
func TestOptionLogger(t *testing.T) {
	t.Parallel()
	beginning := func(err error) func(*spyStore) {
		return func(s *spyStore) { s.onBegin = failing(always, err) }
	}
	completing := func(err error) func(*spyStore) {
		return func(s *spyStore) { s.onComplete = failing(always, err) }
	}
	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	decides := func(v idempotency.Verdict) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), v)
			w.WriteHeader(http.StatusBadGateway)
		}
	}
	panics := func(http.ResponseWriter, *http.Request) { panic("boom") }
	open, refuse := idempotency.Options{FailOpen: true}, idempotency.Options{Abandoned: idempotency.Refuse}
	const notStorable, notKept = "idempotency: answer not storable", "idempotency: the handler decided not to keep its answer"
	for name, row := range map[string]struct {
		opts    idempotency.Options
		fault   func(*spyStore)
		handler http.HandlerFunc
		want    string // what is between the endpoint and the end of the line; nothing: no line
	}{
		"executed":             {handler: echo},
		"turned away":          {handler: answers(http.StatusTooManyRequests)},
		"refused by a verdict": {handler: decides(idempotency.Release)},
		"failed":               {handler: answers(http.StatusServiceUnavailable), want: `WARN released attempt=1 status=503 error="` + notStorable + `"`},
		"perhaps refused":      {handler: answers(http.StatusRequestTimeout), want: `WARN released attempt=1 status=408 error="` + notStorable + `"`},
		"panicked":             {handler: panics, want: `WARN released attempt=1 error="idempotency: handler panicked or exited"`},
		"unknown":              {handler: decides(idempotency.Unknown), want: `WARN released attempt=1 status=502 error="` + notKept + `"`},
		"failed, and not released": {fault: func(s *spyStore) { s.onRelease = failing(always, errDown) }, handler: answers(http.StatusServiceUnavailable),
			want: `WARN released attempt=1 status=503 error="store down\n` + notStorable + `"`},
		"panicked, Refuse": {opts: refuse, handler: panics, want: `WARN abandoned attempt=1 error="idempotency: handler panicked or exited"`},
		"unknown, Refuse":  {opts: refuse, handler: decides(idempotency.Unknown), want: `WARN abandoned attempt=1 status=502 error="` + notKept + `"`},
		"unavailable":      {fault: beginning(errDown), handler: echo, want: `ERROR store-unavailable error="store down"`},
		"unprotected":      {opts: open, fault: beginning(errDown), handler: echo, want: `ERROR unprotected status=201 error="store down"`},
		"unrecorded":       {fault: completing(errDown), handler: echo, want: `ERROR unrecorded attempt=1 status=201 error="store down"`},
		"restored":         {fault: completing(idempotency.ErrRestored), handler: echo, want: `WARN restored attempt=1 status=201 error="` + idempotency.ErrRestored.Error() + `"`},
		"claim lost":       {fault: completing(idempotency.ErrClaimLost), handler: echo, want: `WARN claim-lost attempt=1 status=201 error="` + idempotency.ErrClaimLost.Error() + `"`},
		"rolled back":      {fault: completing(idempotency.ErrRolledBack), handler: echo, want: `WARN rolled-back attempt=1 status=201 error="` + idempotency.ErrRolledBack.Error() + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newSpyStore()
				if row.fault != nil {
					row.fault(store)
				}
				var log bytes.Buffer
				opts := row.opts
				opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
				user := func(*http.Request) (string, error) { return "secretuser", nil }
				svc := setup{store: store, user: user, opts: opts}.guard(t, row.handler)
				func() {
					defer func() { _ = recover() }()
					svc.call("secretkey", "secretbody")
				}()
				svc.call("secretkey secretkey", "secretbody") // invalid
				if row.want == "" {
					require.Empty(t, log.String())
					return
				}
				key := idempotency.Key{User: "secretuser", Endpoint: "POST /payments", ID: "secretkey"}
				level, rest, _ := strings.Cut(row.want, " ")
				outcome, rest, _ := strings.Cut(rest, " ")
				_, line, _ := strings.Cut(log.String(), " ") // without the time
				require.Equal(t, fmt.Sprintf("level=%s msg=\"idempotency: %s\" operation=%s endpoint=\"POST /payments\" %s\n",
					level, outcome, key.OperationID(), rest), line)
			})
		})
	}
}

func TestErrorsNameTheirSentinel(t *testing.T) {
	t.Parallel()
	var refused *idempotency.Error
	svc := setup{
		user: func(*http.Request) (string, error) { return "", errDown },
		opts: idempotency.Options{ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
			refused = e
		}},
	}.guard(t, echo)
	svc.call("k", "b")
	require.ErrorIs(t, refused, idempotency.ErrUserUnknown)
	require.ErrorIs(t, refused, errDown)
	require.False(t, errors.Is(refused, idempotency.ErrKeyInvalid))
}
