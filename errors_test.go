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
)

func TestUserFuncAnswersAsItLikes(t *testing.T) {
	t.Parallel()
	down := &idempotency.Error{
		Status: http.StatusServiceUnavailable, Title: "Authentication is down", RetryAfter: 2 * time.Second,
		Retry: idempotency.RetrySameKey, Header: http.Header{"WWW-authenticate": {"Basic"}, "X-Own": {"1", "2"}}, Err: errDown,
	}
	for name, err := range map[string]error{"bare": down, "wrapped": fmt.Errorf("user: %w", down)} {
		t.Run(name, func(t *testing.T) {
			var refused *idempotency.Error
			svc := setup{
				user: func(*http.Request) (string, error) { return "alice", err },
				opts: idempotency.Options{
					ErrorHandler: func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
						refused = e
						idempotency.WriteProblem(w, r, e)
						e.Header.Set("X-Own", "edited")
					},
				},
			}.guard(t, echo)
			for range 2 { // what the error handler edits is its own
				got := svc.call("k", "b")
				require.Equal(t, http.StatusServiceUnavailable, got.status)
				require.Equal(t, "2", got.header.Get("Retry-After"))
				require.Equal(t, "Basic", got.header.Get("WWW-Authenticate"))
				require.Equal(t, []string{"1", "2"}, got.header["X-Own"])
				require.JSONEq(t, `{"type":"about:blank","title":"Authentication is down","status":503,"retry":"same-key"}`, got.body)
			}
			for _, err := range []error{refused, svc.journal.last(t).Err} {
				require.ErrorIs(t, err, idempotency.ErrUserUnknown)
				require.ErrorIs(t, err, errDown)
			}
			require.Equal(t, idempotency.OutcomeRejected, svc.journal.last(t).Outcome)
			require.Zero(t, svc.runs.Load())
			require.Zero(t, svc.store.begins.Load())
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
		svc := setup{
			user: func(*http.Request) (string, error) { return "", e },
			opts: idempotency.Options{ErrorHandler: func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
				shown = e.Status
				w.WriteHeader(shown)
			}},
		}.guard(t, echo)
		require.Equal(t, want, svc.call("k", "b").status)
		w := httptest.NewRecorder()
		idempotency.WriteProblem(w, nil, e)
		require.Equal(t, want, w.Code)
		require.Contains(t, w.Body.String(), fmt.Sprintf(`"status":%d`, want))
		require.Contains(t, w.Body.String(), `"type":"about:blank"`)
		require.NotContains(t, w.Body.String(), `:""`)
		require.Equal(t, status, e.Status, "the caller's error is left alone")
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
		setup setup
		want  []string
	}{
		{setup{user: nobody}, []string{"Bearer"}},
		{setup{user: nobody, outer: outer}, []string{"Digest", "Negotiate"}},
		{setup{user: basic}, []string{"Basic"}},
		{setup{user: basic, outer: outer}, []string{"Basic"}},
	} {
		got := row.setup.guard(t, echo).call("k", "b")
		require.Equal(t, http.StatusUnauthorized, got.status)
		require.Equal(t, row.want, got.header.Values("WWW-Authenticate"))
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
		requireProblem(t, answer{status: w.Code, header: w.Header(), body: w.Body.String()}, row.status, row.code)
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
		undone    = "Its effects were undone, or could not be confirmed. Retry with the same key: it is executed, or its answer replayed."
		storeDown = "This attempt was not executed; an earlier one may have been. Retry later with the same key, not with a new one."
		unread    = "Whether this request was executed is not known here, because its record cannot be read."
		before    = "The request was executed before and is not executed again"
	)
	refuse := idempotency.Options{Abandoned: idempotency.Refuse}
	leaseOver := func() { time.Sleep(time.Minute) }
	does := func(what string) edit { return withHeader("X-Does", what) }
	again := func(svc *service) answer { return svc.call("k", "b") }
	after := func(what string, pause func()) func(*service) answer {
		return func(svc *service) answer {
			func() {
				defer func() { _ = recover() }()
				svc.call("k", "b", does(what))
			}()
			pause()
			return again(svc)
		}
	}
	atOnce := func() {}
	begins := func(on hook) *spyStore {
		store := newSpyStore()
		store.onBegin = on
		return store
	}
	completes := func(err error) *spyStore {
		store := newSpyStore()
		store.onComplete = failing(always, err)
		return store
	}
	then := func(err error) hook { // the first claim is granted
		return func(_ context.Context, n int64, step func() error) error {
			if n > 1 {
				return fmt.Errorf("store: %w", err)
			}
			return step()
		}
	}
	for name, row := range map[string]struct {
		setup  setup
		play   func(*service) answer // returns the refusal
		title  string
		detail string // or its beginning
	}{
		"an attempt runs": {setup{}, func(svc *service) answer {
			go svc.call("k", "b", does("wait"))
			synctest.Wait()
			return again(svc)
		}, "A request with this idempotency key may be in progress", mayRun},
		"the process died": {setup{}, func(svc *service) answer {
			crash(t, svc, "k", "b", time.Minute)
			return again(svc)
		}, "A request with this idempotency key may be in progress", mayRun},
		"the handler panicked":                  {setup{opts: refuse}, after("panic", atOnce), "", mayRun},
		"the handler panicked, lease over":      {setup{opts: refuse}, after("panic", leaseOver), "", noResult},
		"the handler does not know":             {setup{opts: refuse}, after("unknown", atOnce), "", mayRun},
		"the handler does not know, lease over": {setup{opts: refuse}, after("unknown", leaseOver), "", noResult},
		"the claim came too late": {setup{store: begins(func(_ context.Context, _ int64, step func() error) error {
			defer time.Sleep(time.Minute)
			return step()
		})}, again, "A request with this idempotency key may be in progress", lost},
		"another attempt took over": {setup{store: completes(idempotency.ErrClaimLost)}, again, "", lost},
		"the transaction failed":    {setup{store: txStore{completes(errDown)}}, again, "The request was undone, or is in doubt", undone},
		"the store is down":         {setup{store: begins(failing(always, errDown))}, again, "", storeDown},
		"the store is full":         {setup{store: begins(then(idempotency.ErrStoreFull))}, after("", atOnce), "", storeDown},
		"no connection is free":     {setup{store: begins(then(idempotency.ErrStoreBusy))}, after("", atOnce), "", storeDown},
		"the store broke down":      {setup{store: begins(then(errDown))}, after("", atOnce), "", storeDown},
		"the record is damaged":     {setup{store: begins(then(idempotency.ErrRecordInvalid))}, after("", atOnce), "", unread},
		"the user has no room":      {setup{store: begins(then(idempotency.ErrUserQuota))}, after("", atOnce), "", notThis},
		"the answer was a secret":   {setup{}, after("tombstone", atOnce), "", before},
		"a right was withdrawn": {setup{opts: idempotency.Options{
			Replay: func(*http.Request, *idempotency.Response) error { return errDown },
		}}, after("", atOnce), "", before},
		"the key has another body": {setup{}, func(svc *service) answer {
			again(svc)
			return svc.call("k", "another")
		}, "", "This key was sent before with another request. This request was not executed."},
		"no key":      {setup{opts: idempotency.Options{Required: true}}, func(svc *service) answer { return svc.call("", "b") }, "", "This request must carry"},
		"a wrong key": {setup{}, func(svc *service) answer { return svc.call("k k", "b") }, "", nothing},
		"a long body": {setup{opts: idempotency.Options{MaxBody: 1}}, func(svc *service) answer { return svc.call("k", "bb") }, "", nothing},
		"a broken body": {setup{opts: idempotency.Options{Fingerprint: idempotency.FingerprintJSON}}, func(svc *service) answer {
			return svc.call("k", "{", withHeader("Content-Type", "application/json"))
		}, "", notThis},
		"nobody": {setup{user: func(*http.Request) (string, error) { return "", nil }}, again, "", notThis},
		"a body that was read": {setup{outer: func(next http.Handler) http.Handler {
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
				svc := row.setup.guard(t, func(w http.ResponseWriter, r *http.Request) {
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
				handler := svc.handler
				svc.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ran = false
					handler.ServeHTTP(w, r)
				})
				refused := row.play(svc)
				ranThis, ranEver := ran, svc.runs.Load() > 0
				close(end)
				synctest.Wait()

				var p problem
				require.NoError(t, json.Unmarshal([]byte(refused.body), &p), refused.body)
				require.True(t, strings.HasPrefix(p.Detail, row.detail), p.Detail)
				require.Contains(t, []string{"", p.Title}, row.title)
				require.False(t, ranEver && strings.Contains(p.Detail, nothing), p.Detail)
				require.False(t, ranThis && strings.Contains(p.Detail, "not executed"), p.Detail)
				require.False(t, !ranEver && strings.Contains(p.Detail, "executed before"), p.Detail)
			})
		})
	}
	require.Contains(t, idempotency.RefusalFor(idempotency.ErrOverloaded).Detail, notThis)
	for _, err := range []error{idempotency.ErrRecordInvalid, idempotency.ErrStoreFull, idempotency.ErrStoreBusy, errDown} {
		require.ErrorIs(t, idempotency.RefusalFor(err), idempotency.ErrUnavailable)
		require.ErrorIs(t, idempotency.RefusalFor(err), err)
	}
}
