package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// script answers the first attempt, the second one and so on, and notes the ID that each of them has.
type script struct {
	answers []http.HandlerFunc
	numbers []int // of the attempts
}

func (a *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	a.numbers = append(a.numbers, op.Attempt)
	a.answers[len(a.numbers)-1](w, r)
}

func decide(v idempotency.Verdict, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), v)
		w.WriteHeader(code)
	}
}

// What has done nothing is forgotten soon, so that nobody fills the store with it. What may have done something is not:
// the next attempt must have its ID, by which its effects are found.
func TestHowLongAnUnfinishedOperationIsKnown(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	crash := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	limited := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusConflict)
	}
	for name, test := range map[string]struct {
		before    []http.HandlerFunc // the attempts, of which each comes at once
		wait      time.Duration
		forgotten bool
	}{
		"401":                          {[]http.HandlerFunc{testservice.Status(401)}, 2 * lease, true},
		"425":                          {[]http.HandlerFunc{testservice.Status(425)}, 2 * lease, true},
		"429":                          {[]http.HandlerFunc{testservice.Status(429)}, 2 * lease, true},
		"429 a moment ago":             {[]http.HandlerFunc{testservice.Status(429)}, 2*lease - 1, false},
		"429 again and again":          {[]http.HandlerFunc{testservice.Status(429), testservice.Status(429), testservice.Status(429)}, 2 * lease, true},
		"408, of a service behind it":  {[]http.HandlerFunc{testservice.Status(408)}, 2 * lease, false},
		"409, of a service behind it":  {[]http.HandlerFunc{limited}, 2 * lease, false},
		"499, of a service behind it":  {[]http.HandlerFunc{testservice.Status(499)}, 2 * lease, false},
		"500":                          {[]http.HandlerFunc{testservice.Status(500)}, 24*time.Hour - 1, false},
		"500 a day ago":                {[]http.HandlerFunc{testservice.Status(500)}, 24 * time.Hour, true},
		"500, then 429":                {[]http.HandlerFunc{testservice.Status(500), testservice.Status(429)}, 24*time.Hour - 1, false},
		"429, then 500":                {[]http.HandlerFunc{testservice.Status(429), testservice.Status(500)}, 24*time.Hour - 1, false},
		"429, then 500, then 429":      {[]http.HandlerFunc{testservice.Status(429), testservice.Status(500), testservice.Status(429)}, 24*time.Hour - 1, false},
		"panic":                        {[]http.HandlerFunc{crash}, 24*time.Hour - 1, false},
		"panic, then 429":              {[]http.HandlerFunc{crash, testservice.Status(429)}, 24*time.Hour - 1, false},
		"the handler has done nothing": {[]http.HandlerFunc{decide(idempotency.Release, 500)}, 2 * lease, true},
		"the handler does not know":    {[]http.HandlerFunc{decide(idempotency.Unknown, 429)}, 2 * lease, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &script{answers: append(test.before, testservice.Status(http.StatusCreated))}
				svc := testservice.Setup{Opts: idempotency.Options{Lease: lease}, Outer: recovering}.Guard(t, a.ServeHTTP)
				for range test.before {
					svc.Call("k", "")
				}
				time.Sleep(test.wait)
				svc.Call("k", "")
				require.Len(t, a.numbers, len(test.before)+1)
				require.Equal(t, test.forgotten, a.numbers[len(test.before)] == 1)
			})
		})
	}
}

func TestHowLongUnfinishedWorkIsKnown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verdict   idempotency.Verdict
		forgotten bool
	}{"no verdict": {}, "Keep": {idempotency.Keep, false}, "Release": {idempotency.Release, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
				require.NoError(t, err)
				var numbers []int
				work := func(ctx context.Context) (idempotency.Response, error) {
					op, _ := idempotency.FromContext(ctx)
					numbers = append(numbers, op.Attempt)
					idempotency.Decide(ctx, test.verdict)
					return idempotency.Response{}, errors.New("down")
				}
				for range 2 {
					_, _, err := runner.Do(t.Context(), idempotency.Key{ID: "k"}, nil, work)
					require.Error(t, err)
					time.Sleep(time.Minute)
				}
				require.Equal(t, test.forgotten, numbers[1] == 1)
			})
		})
	}
}

// A store that does not say how long it would have kept a record is not made to forget an operation.
func TestRemainingTimeThatTheStoreDoesNotTell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &script{answers: []http.HandlerFunc{testservice.Status(500), testservice.Status(429), testservice.Status(201)}}
		untold := func(record *idempotency.Record) { record.Remaining = 0 }
		svc := testservice.Setup{Store: testservice.AlteredStore{Store: testservice.NewSpyStore(), Alter: untold}}.Guard(t, a.ServeHTTP)
		for range a.answers {
			svc.Call("k", "")
			time.Sleep(time.Hour)
		}
		require.Equal(t, []int{1, 2, 3}, a.numbers)
	})
}
