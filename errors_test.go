package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestUserFuncAnswersAsItLikes(t *testing.T) {
	t.Parallel()
	down := &idempotency.Error{
		Status: http.StatusServiceUnavailable, Title: "Authentication is down", RetryAfter: 2 * time.Second,
		Retry: idempotency.RetrySameKey, Header: http.Header{"WWW-authenticate": {"Basic"}, "X-Own": {"1", "2"}}, Err: testservice.ErrDown,
	}
	for name, err := range map[string]error{"bare": down, "wrapped": fmt.Errorf("user: %w", down)} {
		t.Run(name, func(t *testing.T) {
			var refused *idempotency.Error
			svc := testservice.Setup{
				User: func(*http.Request) (string, error) { return "alice", err },
				Opts: idempotency.Options{
					ErrorHandler: func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
						refused = e
						idempotency.WriteProblem(w, r, e)
						e.Header.Set("X-Own", "edited")
					},
				},
			}.Guard(t, testservice.Echo)
			for range 2 { // what the error handler edits is its own
				got := svc.Call("k", "b")
				require.Equal(t, http.StatusServiceUnavailable, got.Status)
				require.Equal(t, "2", got.Header.Get("Retry-After"))
				require.Equal(t, "Basic", got.Header.Get("WWW-Authenticate"))
				require.Equal(t, []string{"1", "2"}, got.Header["X-Own"])
				require.JSONEq(t, `{"type":"about:blank","title":"Authentication is down","status":503,"retry":"same-key"}`, got.Body)
			}
			for _, err := range []error{refused, svc.Journal.Last(t).Err} {
				require.ErrorIs(t, err, idempotency.ErrUserUnknown)
				require.ErrorIs(t, err, testservice.ErrDown)
			}
			require.Equal(t, idempotency.OutcomeRejected, svc.Journal.Last(t).Outcome)
			require.Zero(t, svc.Runs.Load())
			require.Zero(t, svc.Store.Begins.Load())
		})
	}
}

func TestErrorWithEmptyFields(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{0: 500, -1: 500, 200: 500, 399: 500, 600: 500, 1000: 500, 400: 400, 599: 599} {
		e := &idempotency.Error{Status: status}
		require.NotEmpty(t, e.Error())
		require.NoError(t, errors.Unwrap(e))
		var shown int
		svc := testservice.Setup{
			User: func(*http.Request) (string, error) { return "", e },
			Opts: idempotency.Options{ErrorHandler: func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
				shown = e.Status
				w.WriteHeader(shown)
			}},
		}.Guard(t, testservice.Echo)
		require.Equal(t, want, svc.Call("k", "b").Status)
		w := httptest.NewRecorder()
		idempotency.WriteProblem(w, nil, e)
		require.Equal(t, want, w.Code)
		require.Contains(t, w.Body.String(), fmt.Sprintf(`"status":%d`, want))
		require.Contains(t, w.Body.String(), `"type":"about:blank"`)
		require.NotContains(t, w.Body.String(), `:""`)
		require.Equal(t, status, e.Status, "the caller's error is left alone")
	}
}

// ProblemBase is the address of every refusal that has a code, unless the refusal has a type of its own.
func TestOptionProblemBase(t *testing.T) {
	t.Parallel()
	own := func(e idempotency.Error) idempotency.UserFunc {
		e.Status = http.StatusForbidden
		return func(*http.Request) (string, error) { return "", &e }
	}
	const base = "https://api.example.com/problems/"
	for _, row := range []struct {
		name  string
		user  idempotency.UserFunc
		lines []string // of the key
		want  string
	}{
		{"key missing", nil, nil, base + "key-missing"},
		{"key invalid", nil, []string{"a b"}, base + "key-invalid"},
		{"key reused", nil, []string{"used"}, base + "key-reused"},
		{"a code of the service", own(idempotency.Error{Code: "tenant-missing"}), []string{"k"}, base + "tenant-missing"},
		{"no code", own(idempotency.Error{}), []string{"k"}, "about:blank"},
		{"a type of the service", own(idempotency.Error{Type: "urn:x", Code: "tenant-missing"}), []string{"k"}, "urn:x"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var handled string
			for _, handler := range []func(http.ResponseWriter, *http.Request, *idempotency.Error){
				nil, func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
					handled = e.Type
					idempotency.WriteProblem(w, r, e)
				},
			} {
				svc := testservice.Setup{User: row.user, Opts: idempotency.Options{
					ProblemBase: base, Required: true, ErrorHandler: handler,
				}}.Guard(t, testservice.Echo)
				svc.Call("used", "another body")
				got := svc.Call("", "b", testservice.WithHeader("Idempotency-Key", row.lines...))
				var problem struct{ Type string }
				require.NoError(t, json.Unmarshal([]byte(got.Body), &problem), got.Body)
				require.Equal(t, row.want, problem.Type)
			}
			require.Equal(t, strings.TrimPrefix(row.want, "about:blank"), handled)
		})
	}
}

func TestUnknownUserIsChallenged(t *testing.T) {
	t.Parallel()
	nobody := func(*http.Request) (string, error) { return "", nil }
	basic := func(*http.Request) (string, error) {
		return "", &idempotency.Error{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"Basic"}}}
	}
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Www-Authenticate"] = []string{"Digest", "Negotiate"}
			next.ServeHTTP(w, r)
		})
	}
	for _, row := range []struct {
		setup testservice.Setup
		want  []string
	}{
		{testservice.Setup{User: nobody}, []string{"Bearer"}},
		{testservice.Setup{User: nobody, Outer: outer}, []string{"Digest", "Negotiate"}},
		{testservice.Setup{User: basic}, []string{"Basic"}},
		{testservice.Setup{User: basic, Outer: outer}, []string{"Basic"}},
	} {
		got := row.setup.Guard(t, testservice.Echo).Call("k", "b")
		require.Equal(t, http.StatusUnauthorized, got.Status)
		require.Equal(t, row.want, got.Header.Values("WWW-Authenticate"))
	}
}

func TestOverloadAndConsumedBodyAreShown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err    error
		status int
		code   string
	}{
		{idempotency.ErrBodyConsumed, http.StatusInternalServerError, "body-consumed"},
		{idempotency.ErrOverloaded, http.StatusServiceUnavailable, "overloaded"},
	} {
		refusal := idempotency.RefusalFor(row.err)
		require.ErrorIs(t, refusal, row.err)
		w := httptest.NewRecorder()
		idempotency.WriteProblem(w, nil, refusal)
		testservice.RequireProblem(t, testservice.Answer{Status: w.Code, Header: w.Header(), Body: w.Body.String()}, row.status, row.code)
	}
}

// What a detail says is true in each situation that leads to it. It claims no more than is known: a client that took "nothing
// was executed" for the truth would send the request under a new key.
func TestDetailsAreTrue(t *testing.T) {
	t.Parallel()
	const (
		nothing   = "Nothing was executed"
		notThis   = "This attempt was not executed"
		mayRun    = "This attempt was not executed, because an earlier one may still be running. Retry later with the same key to learn what became of it."
		lost      = "This attempt has lost its claim to the key, so its answer does not count. Retry later with the same key."
		noResult  = "This attempt was not executed, because an earlier one ended without a known result. Find out what became of it before using a new key."
		storeDown = "This attempt was not executed; an earlier one may have been. Retry later with the same key, not with a new one."
		unread    = "Whether this request was executed is not known here, because its record cannot be read."
		before    = "The request was executed before and is not executed again"
	)
	refuse := idempotency.Options{Abandoned: idempotency.Refuse}
	leaseOver := func() { time.Sleep(time.Minute) }
	does := func(what string) testservice.Edit { return testservice.WithHeader("X-Does", what) }
	again := func(svc *testservice.Service) testservice.Answer { return svc.Call("k", "b") }
	after := func(what string, pause func()) func(*testservice.Service) testservice.Answer {
		return func(svc *testservice.Service) testservice.Answer {
			func() {
				defer func() { _ = recover() }()
				svc.Call("k", "b", does(what))
			}()
			pause()
			return again(svc)
		}
	}
	atOnce := func() {}
	begins := func(on testservice.Hook) *testservice.SpyStore {
		store := testservice.NewSpyStore()
		store.OnBegin = on
		return store
	}
	completes := func(err error) *testservice.SpyStore {
		store := testservice.NewSpyStore()
		store.OnComplete = testservice.Failing(testservice.Always, err)
		return store
	}
	then := func(err error) testservice.Hook { // the first claim is granted
		return func(_ context.Context, n int64, step func() error) error {
			if n > 1 {
				return fmt.Errorf("store: %w", err)
			}
			return step()
		}
	}
	for name, row := range map[string]struct {
		setup  testservice.Setup
		play   func(*testservice.Service) testservice.Answer // returns the refusal
		title  string
		detail string // or its beginning
	}{
		"an attempt runs": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer {
			go svc.Call("k", "b", does("wait"))
			synctest.Wait()
			return again(svc)
		}, "A request with this idempotency key may be in progress", mayRun},
		"the process died": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer {
			testservice.Crash(t, svc, "k", "b", time.Minute)
			return again(svc)
		}, "A request with this idempotency key may be in progress", mayRun},
		"the handler panicked":                  {testservice.Setup{Opts: refuse}, after("panic", atOnce), "", mayRun},
		"the handler panicked, lease over":      {testservice.Setup{Opts: refuse}, after("panic", leaseOver), "", noResult},
		"the handler does not know":             {testservice.Setup{Opts: refuse}, after("unknown", atOnce), "", mayRun},
		"the handler does not know, lease over": {testservice.Setup{Opts: refuse}, after("unknown", leaseOver), "", noResult},
		"the claim came too late": {testservice.Setup{Store: begins(func(_ context.Context, _ int64, step func() error) error {
			defer time.Sleep(time.Minute)
			return step()
		})}, again, "A request with this idempotency key may be in progress", lost},
		"another attempt took over": {testservice.Setup{Store: completes(idempotency.ErrClaimLost)}, again, "", lost},
		"the store is down":         {testservice.Setup{Store: begins(testservice.Failing(testservice.Always, testservice.ErrDown))}, again, "", storeDown},
		"the store is full":         {testservice.Setup{Store: begins(then(idempotency.ErrStoreFull))}, after("", atOnce), "", storeDown},
		"no connection is free":     {testservice.Setup{Store: begins(then(idempotency.ErrStoreBusy))}, after("", atOnce), "", storeDown},
		"the store broke down":      {testservice.Setup{Store: begins(then(testservice.ErrDown))}, after("", atOnce), "", storeDown},
		"the record is damaged":     {testservice.Setup{Store: begins(then(idempotency.ErrRecordInvalid))}, after("", atOnce), "", unread},
		"the user has no room":      {testservice.Setup{Store: begins(then(idempotency.ErrUserQuota))}, after("", atOnce), "", notThis},
		"the answer was a secret":   {testservice.Setup{}, after("tombstone", atOnce), "", before},
		"a right was withdrawn": {testservice.Setup{Opts: idempotency.Options{
			Replay: func(*http.Request, *idempotency.Response) error { return testservice.ErrDown },
		}}, after("", atOnce), "", before},
		"the key has another body": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer {
			again(svc)
			return svc.Call("k", "another")
		}, "", "This key was sent before with another request. This request was not executed."},
		"no key":      {testservice.Setup{Opts: idempotency.Options{Required: true}}, func(svc *testservice.Service) testservice.Answer { return svc.Call("", "b") }, "", "This request must carry"},
		"a wrong key": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer { return svc.Call("k k", "b") }, "", nothing},
		"a long body": {testservice.Setup{Opts: idempotency.Options{MaxBody: 1}}, func(svc *testservice.Service) testservice.Answer { return svc.Call("k", "bb") }, "", nothing},
		"a broken body": {testservice.Setup{Opts: idempotency.Options{Fingerprint: fingerprint.JSON}}, func(svc *testservice.Service) testservice.Answer {
			return svc.Call("k", "{", testservice.WithHeader("Content-Type", "application/json"))
		}, "", notThis},
		"nobody": {testservice.Setup{User: func(*http.Request) (string, error) { return "", nil }}, again, "", notThis},
		"a body that was read": {testservice.Setup{Outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				next.ServeHTTP(w, r)
			})
		}}, again, "", "This is a fault of the server: something else has read the request body"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ran bool // for the last request
				end := make(chan struct{})
				svc := row.setup.Guard(t, func(w http.ResponseWriter, r *http.Request) {
					ran = true
					switch r.Header.Get("X-Does") {
					case "panic":
						panic("boom")
					case "wait":
						<-end
					case "unknown":
						idempotency.Decide(r.Context(), idempotency.Unknown)
					case "tombstone":
						idempotency.Decide(r.Context(), idempotency.Tombstone)
					}
				})
				handler := svc.Handler
				svc.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ran = false
					handler.ServeHTTP(w, r)
				})
				refused := row.play(svc)
				ranThis, ranEver := ran, svc.Runs.Load() > 0
				close(end)
				synctest.Wait()

				var p testservice.Problem
				require.NoError(t, json.Unmarshal([]byte(refused.Body), &p), refused.Body)
				require.True(t, strings.HasPrefix(p.Detail, row.detail), p.Detail)
				require.Contains(t, []string{"", p.Title}, row.title)
				require.False(t, ranEver && strings.Contains(p.Detail, nothing), p.Detail)
				require.False(t, ranThis && strings.Contains(p.Detail, "not executed"), p.Detail)
				require.False(t, !ranEver && strings.Contains(p.Detail, "executed before"), p.Detail)
			})
		})
	}
	require.Contains(t, idempotency.RefusalFor(idempotency.ErrOverloaded).Detail, notThis)
	for _, err := range []error{idempotency.ErrRecordInvalid, idempotency.ErrStoreFull, idempotency.ErrStoreBusy, testservice.ErrDown} {
		require.ErrorIs(t, idempotency.RefusalFor(err), idempotency.ErrUnavailable)
		require.ErrorIs(t, idempotency.RefusalFor(err), err)
	}
}
