package idempotency_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
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

// A record that cannot be read does not tell whether the request was executed; nor does a store that cannot be asked.
// A client that took "nothing was executed" for the truth would send the request under a new key.
func TestDetailClaimsNoMoreThanIsKnown(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		idempotency.ErrRecordInvalid: "^Whether this request was executed is not known here",
		idempotency.ErrUnavailable:   "^This attempt was not executed; an earlier one may have been",
		idempotency.ErrStoreFull:     "^This attempt was not executed; an earlier one may have been",
		idempotency.ErrStoreBusy:     "^This attempt was not executed; an earlier one may have been",
		errDown:                      "^This attempt was not executed; an earlier one may have been",
	} {
		store := newSpyStore()
		svc := setup{store: store}.guard(t, echo)
		require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
		store.onBegin = failing(always, fmt.Errorf("store: %w", err))
		refused := svc.call("k", "b")
		detail := requireProblem(t, refused, http.StatusServiceUnavailable, "store-unavailable").Detail
		require.Regexp(t, want, detail)
		require.Contains(t, detail, "the same key")
		require.ErrorIs(t, idempotency.RefusalFor(err), idempotency.ErrUnavailable)
		require.ErrorIs(t, idempotency.RefusalFor(err), err)
	}
	for err, want := range map[error]string{
		idempotency.ErrUserUnknown: "This attempt was not executed",
		idempotency.ErrBodyInvalid: "This attempt was not executed",
		idempotency.ErrOverloaded:  "This attempt was not executed",
		idempotency.ErrUserQuota:   "This attempt was not executed",
		idempotency.ErrKeyReused:   "This request was not executed",
	} {
		require.Contains(t, idempotency.RefusalFor(err).Detail, want)
	}
}
