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

func TestUserFuncChoosesItsAnswer(t *testing.T) {
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
			for range 2 { // the second answer must not contain the edit of the error handler
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

// ProblemBase and the code form the type of a refusal, unless the refusal has its own type.
func TestOptionProblemBase(t *testing.T) {
	t.Parallel()
	refuseWith := func(e idempotency.Error) idempotency.UserFunc {
		e.Status = http.StatusForbidden
		return func(*http.Request) (string, error) { return "", &e }
	}
	const base = "https://api.example.com/problems/"
	for _, row := range []struct {
		name     string
		user     idempotency.UserFunc
		keyLines []string // of the header Idempotency-Key
		wantType string
	}{
		{"key missing", nil, nil, base + "key-missing"},
		{"key invalid", nil, []string{"a b"}, base + "key-invalid"},
		{"key reused", nil, []string{"used"}, base + "key-reused"},
		{"a code of the service", refuseWith(idempotency.Error{Code: "tenant-missing"}), []string{"k"}, base + "tenant-missing"},
		{"no code", refuseWith(idempotency.Error{}), []string{"k"}, "about:blank"},
		{"a type of the service", refuseWith(idempotency.Error{Type: "urn:x", Code: "tenant-missing"}), []string{"k"}, "urn:x"},
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
				got := svc.Call("", "b", testservice.WithHeader("Idempotency-Key", row.keyLines...))
				var problem struct{ Type string }
				require.NoError(t, json.Unmarshal([]byte(got.Body), &problem), got.Body)
				require.Equal(t, row.wantType, problem.Type)
			}
			require.Equal(t, strings.TrimPrefix(row.wantType, "about:blank"), handled)
		})
	}
}

func TestUnknownUserIsChallenged(t *testing.T) {
	t.Parallel()
	unknownUser := func(*http.Request) (string, error) { return "", nil }
	askForBasic := func(*http.Request) (string, error) {
		return "", &idempotency.Error{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"Basic"}}}
	}
	askOutside := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Www-Authenticate"] = []string{"Digest", "Negotiate"}
			next.ServeHTTP(w, r)
		})
	}
	for _, row := range []struct {
		setup          testservice.Setup
		wantChallenges []string
	}{
		{testservice.Setup{User: unknownUser}, []string{"Bearer"}},
		{testservice.Setup{User: unknownUser, Outer: askOutside}, []string{"Digest", "Negotiate"}},
		{testservice.Setup{User: askForBasic}, []string{"Basic"}},
		{testservice.Setup{User: askForBasic, Outer: askOutside}, []string{"Basic"}},
	} {
		got := row.setup.Guard(t, testservice.Echo).Call("k", "b")
		require.Equal(t, http.StatusUnauthorized, got.Status)
		require.Equal(t, row.wantChallenges, got.Header.Values("WWW-Authenticate"))
	}
}

func TestOverloadAndConsumedBodyAreShown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err        error
		wantStatus int
		wantCode   string
	}{
		{idempotency.ErrBodyConsumed, http.StatusInternalServerError, "body-consumed"},
		{idempotency.ErrOverloaded, http.StatusServiceUnavailable, "overloaded"},
	} {
		refusal := idempotency.RefusalFor(row.err)
		require.ErrorIs(t, refusal, row.err)
		w := httptest.NewRecorder()
		idempotency.WriteProblem(w, nil, refusal)
		got := testservice.Answer{Status: w.Code, Header: w.Header(), Body: w.Body.String()}
		testservice.RequireProblem(t, got, row.wantStatus, row.wantCode)
	}
}

// What a customer shows to support leads to the record.
func TestInstanceNamesTheOperation(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, testservice.Echo)
	svc.Call("k", "b")
	key := svc.Journal.All()[0].Key
	for range 2 {
		got := testservice.RequireProblem(t, svc.Call("k", "c"), http.StatusConflict, "key-reused")
		require.Equal(t, "urn:uuid:"+key.OperationID().String(), got.Instance)
	}

	own := func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
		e.Instance = "https://shop.example/operations/" + strings.TrimPrefix(e.Instance, "urn:uuid:")
		idempotency.WriteProblem(w, r, e)
	}
	svc = testservice.Setup{Opts: idempotency.Options{ErrorHandler: own}}.Guard(t, testservice.Echo)
	svc.Call("k", "b")
	require.Contains(t, svc.Call("k", "c").Body, `"instance":"https://shop.example/operations/`+key.OperationID().String()+`"`)
}

// The detail of a refusal must be true in each situation, and must not claim more than the Middleware knows, because a client
// that believes "Nothing was executed" sends the request again with a new key.
func TestDetailsAreTrue(t *testing.T) {
	t.Parallel()
	const (
		nothingExecuted = "Nothing was executed"
		notExecuted     = "This attempt was not executed"
		mayRun          = "This attempt was not executed, because an earlier one may still be running. " +
			"Retry later with the same key to learn what became of it."
		claimLost = "This attempt has lost its claim to the key, so its answer does not count. " +
			"Retry later with the same key."
		noResult = "This attempt was not executed, because an earlier one ended without a known result. " +
			"Find out what became of it before using a new key."
		storeDown      = "This attempt was not executed; an earlier one may have been. Retry later with the same key, not with a new one."
		unreadable     = "Whether this request was executed is not known here, because its record cannot be read."
		executedBefore = "The request was executed before and is not executed again"
	)
	refuse := testservice.Setup{Opts: idempotency.Options{Abandoned: idempotency.Refuse}}
	withAction := func(action string) testservice.Edit { return testservice.WithHeader("X-Action", action) } // of the handler
	callWith := func(key, body string) func(*testservice.Service) testservice.Answer {
		return func(svc *testservice.Service) testservice.Answer { return svc.Call(key, body) }
	}
	callAgain := callWith("k", "b")
	callAfter := func(action string, pause func()) func(*testservice.Service) testservice.Answer {
		return func(svc *testservice.Service) testservice.Answer {
			func() {
				defer func() { _ = recover() }()
				svc.Call("k", "b", withAction(action))
			}()
			pause()
			return callAgain(svc)
		}
	}
	withoutPause := func() {}
	withBegin := func(hook testservice.Hook) testservice.Setup {
		store := testservice.NewSpyStore()
		store.OnBegin = hook
		return testservice.Setup{Store: store}
	}
	withComplete := func(err error) testservice.Setup {
		store := testservice.NewSpyStore()
		store.OnComplete = testservice.Failing(testservice.Always, err)
		return testservice.Setup{Store: store}
	}
	failAfterFirst := func(err error) testservice.Setup { // the store grants the first claim
		return withBegin(func(_ context.Context, n int64, step func() error) error {
			if n > 1 {
				return fmt.Errorf("store: %w", err)
			}
			return step()
		})
	}
	for name, row := range map[string]struct {
		setup          testservice.Setup
		provokeRefusal func(*testservice.Service) testservice.Answer
		wantTitle      string // empty: any
		wantDetail     string // or the beginning
	}{
		"an attempt runs": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer {
			go svc.Call("k", "b", withAction("wait"))
			synctest.Wait()
			return callAgain(svc)
		}, "A request with this idempotency key may be in progress", mayRun},
		"the process died": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer {
			testservice.Crash(t, svc, "k", "b", time.Minute)
			return callAgain(svc)
		}, "A request with this idempotency key may be in progress", mayRun},
		"the handler panicked":        {refuse, callAfter("panic", withoutPause), "", noResult},
		"the handler decides Unknown": {refuse, callAfter("unknown", withoutPause), "", noResult},
		"the claim arrives after its lease": {withBegin(func(_ context.Context, _ int64, step func() error) error {
			defer time.Sleep(time.Minute)
			return step()
		}), callAgain, "A request with this idempotency key may be in progress", claimLost},
		"another attempt took over":         {withComplete(idempotency.ErrClaimLost), callAgain, "", claimLost},
		"the store is down":                 {withBegin(testservice.Failing(testservice.Always, testservice.ErrDown)), callAgain, "", storeDown},
		"the store is full":                 {failAfterFirst(idempotency.ErrStoreFull), callAfter("", withoutPause), "", storeDown},
		"no connection is free":             {failAfterFirst(idempotency.ErrStoreBusy), callAfter("", withoutPause), "", storeDown},
		"the store goes down after a claim": {failAfterFirst(testservice.ErrDown), callAfter("", withoutPause), "", storeDown},
		"the record is damaged":             {failAfterFirst(idempotency.ErrRecordInvalid), callAfter("", withoutPause), "", unreadable},
		"the user has no room":              {failAfterFirst(idempotency.ErrUserQuota), callAfter("", withoutPause), "", notExecuted},
		"the handler decides Tombstone":     {testservice.Setup{}, callAfter("tombstone", withoutPause), "", executedBefore},
		"the replay is refused": {testservice.Setup{Opts: idempotency.Options{
			Replay: func(*http.Request, *idempotency.Response) error { return testservice.ErrDown },
		}}, callAfter("", withoutPause), "", executedBefore},
		"the key has another body": {testservice.Setup{}, func(svc *testservice.Service) testservice.Answer {
			callAgain(svc)
			return svc.Call("k", "another")
		}, "", "This key was sent before with another request. This request was not executed."},
		"no key":      {testservice.Setup{Opts: idempotency.Options{Required: true}}, callWith("", "b"), "", "This request must carry"},
		"a wrong key": {testservice.Setup{}, callWith("k k", "b"), "", nothingExecuted},
		"a long body": {testservice.Setup{Opts: idempotency.Options{MaxBody: 1}}, callWith("k", "bb"), "", nothingExecuted},
		"a broken body": {testservice.Setup{
			Opts: idempotency.Options{Fingerprint: fingerprint.JSON},
		}, func(svc *testservice.Service) testservice.Answer {
			return svc.Call("k", "{", testservice.WithHeader("Content-Type", "application/json"))
		}, "", notExecuted},
		"the user is unknown": {testservice.Setup{User: func(*http.Request) (string, error) { return "", nil }}, callAgain, "", notExecuted},
		"outer middleware has read the body": {testservice.Setup{Outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				next.ServeHTTP(w, r)
			})
		}}, callAgain, "", "This is a fault of the server: something else has read the request body"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ran bool // whether the handler has run for the last request
				end := make(chan struct{})
				svc := row.setup.Guard(t, func(w http.ResponseWriter, r *http.Request) {
					ran = true
					switch r.Header.Get("X-Action") {
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
				refused := row.provokeRefusal(svc)
				ranForLast, ranAtAll := ran, svc.Runs.Load() > 0
				close(end)
				synctest.Wait()

				var p testservice.Problem
				require.NoError(t, json.Unmarshal([]byte(refused.Body), &p), refused.Body)
				require.True(t, strings.HasPrefix(p.Detail, row.wantDetail), p.Detail)
				require.Contains(t, []string{"", p.Title}, row.wantTitle)
				require.False(t, ranAtAll && strings.Contains(p.Detail, nothingExecuted), p.Detail)
				require.False(t, ranForLast && strings.Contains(p.Detail, "not executed"), p.Detail)
				require.False(t, !ranAtAll && strings.Contains(p.Detail, "executed before"), p.Detail)
			})
		})
	}
	require.Contains(t, idempotency.RefusalFor(idempotency.ErrOverloaded).Detail, notExecuted)
	for _, err := range []error{idempotency.ErrRecordInvalid, idempotency.ErrStoreFull, idempotency.ErrStoreBusy, testservice.ErrDown} {
		require.ErrorIs(t, idempotency.RefusalFor(err), idempotency.ErrUnavailable)
		require.ErrorIs(t, idempotency.RefusalFor(err), err)
	}
}
