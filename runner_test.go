package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
)

func TestDoReturnsTheStoredResponse(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	var operation idempotency.Operation
	first, replayed, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
		var ok bool
		operation, ok = idempotency.FromContext(ctx)
		assert.True(t, ok)
		return idempotency.Response{Status: 207, Header: "A: 1\n", Body: []byte("done")}, nil
	})
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, someKey, operation.Key)
	require.Equal(t, 1, operation.Attempt)
	again, replayed, err := b.doOperation(mustNotWork(t))
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, first, again)
	require.Equal(t, operation.ID, b.journal.Last(t).Operation)
	require.Equal(t, 207, b.journal.Last(t).Status)
}

func TestDoSharesNoMemory(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	mine := idempotency.Response{Header: "A: 1\n", Trailer: "B: 2\n", Body: []byte("done")}
	want := mine.Clone()
	for range 3 {
		got, _, err := b.doOperation(func(context.Context) (idempotency.Response, error) { return mine, nil })
		require.NoError(t, err)
		require.Equal(t, want, got)
		for _, resp := range []idempotency.Response{mine, got} {
			resp.Body[0] = 'x'
		}
	}
}

// A record keeps its key although the caller uses the memory of the key again, as fiber does after a request.
func TestDoCopiesTheKey(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	require.NoError(t, err)
	user := []byte("alice")
	key := idempotency.Key{User: unsafe.String(&user[0], len(user)), Endpoint: "charge", ID: "1"}
	_, _, err = runner.Do(t.Context(), key, nil, func(context.Context) (idempotency.Response, error) {
		return workResponse, nil
	})
	require.NoError(t, err)
	copy(user, "bobby")
	want := idempotency.Key{User: "alice", Endpoint: "charge", ID: "1"}
	require.Equal(t, want, testservice.MustInspect(t, store, want).Key)
}

func TestDoMayBeTriedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	busy := errors.New("busy")
	var operations []idempotency.Operation
	work := func(err error) func(context.Context) (idempotency.Response, error) {
		return func(ctx context.Context) (idempotency.Response, error) {
			operation, _ := idempotency.FromContext(ctx)
			operations = append(operations, operation)
			return idempotency.Response{Status: 200}, err
		}
	}
	_, replayed, err := b.doOperation(work(busy))
	require.Equal(t, busy, err)
	require.False(t, replayed)
	require.Equal(t, idempotency.OutcomeReleased, b.journal.Last(t).Outcome)
	require.Equal(t, busy, b.journal.Last(t).Err)
	require.PanicsWithValue(t, "boom", func() {
		_, _, _ = b.doOperation(func(context.Context) (idempotency.Response, error) { panic("boom") })
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = b.doOperation(func(context.Context) (idempotency.Response, error) {
			runtime.Goexit()
			return idempotency.Response{}, nil
		})
	}()
	<-ended
	_, _, err = b.doOperation(work(nil))
	require.NoError(t, err)
	require.Equal(t, operations[0].ID, operations[1].ID)
	require.Equal(t, 1, operations[0].Attempt)
	require.Equal(t, 4, operations[1].Attempt)
}

func TestDoRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	refused := func(key idempotency.Key, payload string, is error) {
		t.Helper()
		_, _, err := b.Do(t.Context(), key, []byte(payload), mustNotWork(t))
		require.ErrorIs(t, err, is)
		refusal, ok := errors.AsType[*idempotency.Error](err)
		require.True(t, ok)
		require.NotZero(t, refusal.Status)
	}
	_, _, err := b.doOperation(func(context.Context) (idempotency.Response, error) {
		refused(someKey, "payload", idempotency.ErrInProgress)
		refused(someKey, "other", idempotency.ErrKeyReused)
		return idempotency.Response{Status: 203, Omitted: true}, nil
	})
	require.NoError(t, err)
	refused(someKey, "payload", idempotency.ErrNotReplayable)
	refused(idempotency.Key{User: "u", Endpoint: "e"}, "", idempotency.ErrKeyInvalid)
	require.Equal(t, idempotency.OutcomeRejected, b.journal.Last(t).Outcome)
	b.store.OnBegin = testservice.Failing(testservice.Always, testservice.ErrDown)
	refused(someKey, "payload", testservice.ErrDown)
}

func TestDoGoesOnWhenItsCallerGivesUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	store := b.store
	store.OnBegin = func(ctx context.Context, _ int64, step func() error) error {
		select {
		case <-ctx.Done():
			t.Error("the step of the store ended with the request")
		default:
			assert.NoError(t, ctx.Err())
		}
		return step()
	}
	store.OnComplete = store.OnBegin
	_, _, err := b.Do(ctx, someKey, []byte("payload"), func(ctx context.Context) (idempotency.Response, error) {
		cancel()
		<-ctx.Done()
		return someWork(ctx)
	})
	require.NoError(t, err)
	_, replayed, err := b.Do(ctx, someKey, []byte("payload"), mustNotWork(t))
	require.NoError(t, err)
	require.True(t, replayed)
}

func TestStoreGetsTheValuesOfTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type tracer struct{}
		store := testservice.NewSpyStore()
		var seen atomic.Int64
		see := func(ctx context.Context, _ int64, step func() error) error {
			assert.Equal(t, "span", ctx.Value(tracer{}))
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.LessOrEqual(t, time.Until(deadline), 2*time.Second)
			seen.Add(1)
			return step()
		}
		store.OnBegin, store.OnExtend, store.OnComplete, store.OnRelease = see, see, see, see
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute, StoreTimeout: 2 * time.Second})
		ctx := context.WithValue(t.Context(), tracer{}, "span")
		for _, err := range []error{testservice.ErrDown, nil} {
			_, _, got := b.Do(ctx, someKey, nil, func(context.Context) (idempotency.Response, error) {
				time.Sleep(30 * time.Second)
				return idempotency.Response{}, err
			})
			require.Equal(t, err, got)
		}
		require.EqualValues(t, 6, seen.Load()) // twice Begin and Extend, Release and Complete
	})
}

func TestNewRunnerReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := idempotency.NewRunner(nil, idempotency.RunnerOptions{
		TTL: time.Second, Lease: time.Minute, Wait: -1, StoreTimeout: time.Hour, Abandoned: 7,
	})
	for _, fault := range []string{"Store is nil", "TTL", "Wait", "StoreTimeout", "Abandoned"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{Lease: time.Microsecond, StoreTimeout: -1})
	require.ErrorContains(t, err, "Lease")
	require.ErrorContains(t, err, "StoreTimeout")
}

// receipt has a field that JSON omits, so that a stored receipt differs from the original.
type receipt struct {
	ID     string    `json:"id"`
	Paid   time.Time `json:"paid"`
	Secret string    `json:"-"`
}

func TestDoJSONKeepsTheResult(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	message := idempotency.Key{User: "billing", Endpoint: "orders", ID: "1526919030474-55"}
	want := receipt{ID: "r-1", Paid: time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)}

	for call := range 3 {
		got, replayed, err := idempotency.DoJSON(t.Context(), runner, message, []byte("order 1"),
			func(context.Context) (receipt, error) {
				require.Zero(t, call, "done again")
				return receipt{want.ID, want.Paid, "not kept"}, nil
			})
		require.NoError(t, err)
		require.Equal(t, call > 0, replayed)
		require.Equal(t, want, got, "the first result equals the replayed results")
	}
}

func TestDoJSONMayBeTriedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	declined := errors.New("declined")
	do := func(err error) (int, bool, error) {
		return idempotency.DoJSON(t.Context(), runner, idempotency.Key{ID: "1"}, nil,
			func(ctx context.Context) (int, error) {
				op, _ := idempotency.FromContext(ctx)
				return op.Attempt, err
			})
	}
	_, _, err = do(declined)
	require.ErrorIs(t, err, declined)
	attempt, replayed, err := do(nil)
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, 2, attempt)
}

func TestDoJSONDoesNotRepeatWorkWhoseResultHasNoForm(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	runs := 0
	do := func() error {
		_, _, err := idempotency.DoJSON(t.Context(), runner, idempotency.Key{ID: "1"}, nil,
			func(context.Context) (chan int, error) {
				runs++
				return make(chan int), nil
			})
		return err
	}
	require.ErrorContains(t, do(), "unsupported type")
	require.ErrorIs(t, do(), idempotency.ErrNotReplayable)
	require.Equal(t, 1, runs)
}

func TestDoJSONReportsAResultOfAnotherType(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	key := idempotency.Key{ID: "1"}
	_, _, err = idempotency.DoJSON(t.Context(), runner, key, nil,
		func(context.Context) (string, error) { return "r-1", nil })
	require.NoError(t, err)
	_, replayed, err := idempotency.DoJSON(t.Context(), runner, key, nil,
		func(context.Context) (int, error) { panic("done again") })
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.True(t, replayed)
}

// Decided returns the last verdict of Decide to the work itself.
func TestDecided(t *testing.T) {
	t.Parallel()
	r, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	require.NoError(t, err)
	_, _, err = r.Do(t.Context(), idempotency.Key{ID: "1"}, nil, func(ctx context.Context) (idempotency.Response, error) {
		_, ok := idempotency.Decided(ctx)
		require.False(t, ok)
		idempotency.Decide(context.WithoutCancel(ctx), idempotency.Tombstone)
		decided, ok := idempotency.Decided(ctx)
		require.True(t, ok)
		require.Equal(t, idempotency.Tombstone, decided)
		return idempotency.Response{}, nil
	})
	require.NoError(t, err)
	_, ok := idempotency.Decided(t.Context())
	require.False(t, ok)
}

// scriptedHandler runs the handler answers[i] for request i, and notes the attempt number of each request.
type scriptedHandler struct {
	answers        []http.HandlerFunc
	attemptNumbers []int
}

func (a *scriptedHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	a.attemptNumbers = append(a.attemptNumbers, op.Attempt)
	a.answers[len(a.attemptNumbers)-1](w, r)
}

// decideAndAnswer returns a handler that decides v, and answers with the status code.
func decideAndAnswer(v idempotency.Verdict, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), v)
		w.WriteHeader(code)
	}
}

// An operation without effects is forgotten, because clients could fill the store with such operations. An operation
// with possible effects is kept, because only the same request may run again, as its next attempt.
func TestHowLongAnUnfinishedOperationIsKnown(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	crash := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	limited := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusConflict)
	}
	for name, test := range map[string]struct {
		before    []http.HandlerFunc // the attempts, without a pause between them
		wait      time.Duration
		forgotten bool
	}{
		"401":                          {[]http.HandlerFunc{testservice.Status(401)}, 2 * lease, true},
		"425":                          {[]http.HandlerFunc{testservice.Status(425)}, 2 * lease, true},
		"429":                          {[]http.HandlerFunc{testservice.Status(429)}, 2 * lease, true},
		"429 a moment ago":             {[]http.HandlerFunc{testservice.Status(429)}, 0, true},
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
		"the handler has done nothing": {[]http.HandlerFunc{decideAndAnswer(idempotency.Free, 500)}, 2 * lease, true},
		"the handler does not know":    {[]http.HandlerFunc{decideAndAnswer(idempotency.Unknown, 429)}, 2 * lease, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &scriptedHandler{answers: append(test.before, testservice.Status(http.StatusCreated))}
				svc := testservice.Setup{Opts: idempotency.Options{Lease: lease}, Outer: recoverPanics}.Guard(t, a.ServeHTTP)
				for range test.before {
					svc.Call("k", "")
				}
				time.Sleep(test.wait)
				svc.Call("k", "")
				require.Len(t, a.attemptNumbers, len(test.before)+1)
				require.Equal(t, test.forgotten, a.attemptNumbers[len(test.before)] == 1)
			})
		})
	}
}

// A freed key is as good as unused, even for a request with other content. A key cannot be freed if an earlier
// attempt may have done something, or if a step is stored.
func TestFreedKey(t *testing.T) {
	t.Parallel()
	crash := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	stepping := func(w http.ResponseWriter, r *http.Request) {
		_, err := step.Do(r.Context(), "charge", func(context.Context) (int, error) { return 1, nil })
		assert.NoError(t, err)
		decideAndAnswer(idempotency.Free, 422)(w, r)
	}
	attempting := func(w http.ResponseWriter, r *http.Request) { // a step that has failed
		_, err := step.AtMostOnce(r.Context(), "charge", func(context.Context) (int, error) { return 0, testservice.ErrDown }, nil)
		assert.Equal(t, testservice.ErrDown, err)
		decideAndAnswer(idempotency.Free, 422)(w, r)
	}
	free := decideAndAnswer(idempotency.Free, 422)
	onlySuccess := func(resp *idempotency.Response) bool { return resp.Status < 400 }
	for name, test := range map[string]struct {
		before   []http.HandlerFunc // the attempts with the first body
		storable func(*idempotency.Response) bool
		refused  bool // whether a request with another body is refused
		attempt  int  // number of the next attempt with the first body
	}{
		"verdict":                     {[]http.HandlerFunc{free}, nil, false, 1},
		"verdict on a success":        {[]http.HandlerFunc{decideAndAnswer(idempotency.Free, 201)}, nil, false, 1},
		"verdict, again and again":    {[]http.HandlerFunc{free, free, free}, nil, false, 1},
		"401":                         {[]http.HandlerFunc{testservice.Status(401)}, nil, false, 1},
		"429":                         {[]http.HandlerFunc{testservice.Status(429)}, nil, false, 1},
		"422 that is not storable":    {[]http.HandlerFunc{testservice.Status(422)}, onlySuccess, false, 1},
		"408":                         {[]http.HandlerFunc{testservice.Status(408)}, nil, true, 2},
		"500":                         {[]http.HandlerFunc{testservice.Status(500)}, nil, true, 2},
		"after a failure":             {[]http.HandlerFunc{testservice.Status(500), free}, nil, true, 3},
		"429 after a failure":         {[]http.HandlerFunc{testservice.Status(500), testservice.Status(429)}, nil, true, 3},
		"after a panic":               {[]http.HandlerFunc{crash, free}, nil, true, 3},
		"after an unknown outcome":    {[]http.HandlerFunc{decideAndAnswer(idempotency.Unknown, 500), free}, nil, true, 3},
		"with a step":                 {[]http.HandlerFunc{stepping}, nil, true, 2},
		"with a step that has failed": {[]http.HandlerFunc{attempting}, nil, true, 2},
	} {
		for _, corrected := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, corrected %t", name, corrected), func(t *testing.T) {
				t.Parallel()
				a := &scriptedHandler{answers: append(test.before[:len(test.before):len(test.before)], testservice.Status(http.StatusCreated))}
				store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
				svc := testservice.Setup{
					Store: store, Opts: idempotency.Options{Storable: test.storable}, Outer: recoverPanics,
				}.Guard(t, a.ServeHTTP)
				for range test.before {
					svc.Call("k", "first")
				}
				if corrected && test.refused {
					testservice.RequireProblem(t, svc.Call("k", "corrected"), http.StatusConflict, "key-reused")
					return
				}
				body, attempt := "first", test.attempt
				if corrected {
					body, attempt = "corrected", 1
				}
				require.Equal(t, http.StatusCreated, svc.Call("k", body).Status)
				require.Equal(t, attempt, a.attemptNumbers[len(a.attemptNumbers)-1])
				require.True(t, svc.Call("k", body).Replayed())
				testservice.RequireProblem(t, svc.Call("k", "another"), http.StatusConflict, "key-reused")
			})
		}
	}
}

func TestHowLongUnfinishedWorkIsKnown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verdict   idempotency.Verdict
		forgotten bool
	}{"no verdict": {}, "Keep": {idempotency.Keep, false}, "Free": {idempotency.Free, true}} {
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

// A store may not report the remaining time of a record. A release then still keeps the operation known.
func TestRemainingTimeThatTheStoreDoesNotTell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &scriptedHandler{answers: []http.HandlerFunc{testservice.Status(500), testservice.Status(429), testservice.Status(201)}}
		untold := func(record *idempotency.Record) { record.Remaining = 0 }
		svc := testservice.Setup{Store: &testservice.AlteredStore{Store: testservice.NewSpyStore(), Alter: untold}}.Guard(t, a.ServeHTTP)
		for range a.answers {
			svc.Call("k", "")
			time.Sleep(time.Hour)
		}
		require.Equal(t, []int{1, 2, 3}, a.attemptNumbers)
	})
}

// requestOnlyResponse sends a request over a new connection, and requires exactly one response.
func requestOnlyResponse(t require.TestingT, address string) testservice.Answer {
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = fmt.Fprint(conn, "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	return readOnlyResponse(t, conn)
}

// readOnlyResponse reads a response, and requires the end of conn after the response.
func readOnlyResponse(t require.TestingT, conn io.Reader) testservice.Answer {
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Empty(t, string(rest), "a second response")
	resp.Header.Del("Date")
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: nil}
}

// A stored response that this package cannot have written is refused. The client gets no part of the response.
func TestForgedResponseIsNotReplayed(t *testing.T) {
	t.Parallel()
	const smuggled = "0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!"
	forged := map[string]idempotency.Response{}
	for _, code := range []int{-1, 0, 42, 99, 100, 101, 103, 199, 1000, 1 << 30} {
		forged[fmt.Sprint("status ", code)] = idempotency.Response{Status: code, Body: []byte("body")}
	}
	lengths := map[string]string{
		"sign": "+%d", "minus": "-%d", "space": "%d ", "underscore": "0_%d", "hexadecimal": "%#x", "octal": "%#o", "twice": "%[1]d, %[1]d",
	}
	headers := map[string]idempotency.Fields{
		"huge length":                 "Content-Length: 99999999999999999999\n",
		"coding of the transfer":      "Transfer-Encoding: chunked\n",
		"the same in lower case":      "transfer-encoding: chunked\n",
		"the same, escaped":           `\x74ransfer-encoding: chunked` + "\n",
		"connection":                  "Connection: close\n",
		"upgrade":                     "Upgrade: h2c\n",
		"date":                        "Date: now\n",
		"short length":                "Content-Length: 2\n",
		"long length":                 "Content-Length: 400\n",
		"no length":                   "Content-Length: x\n",
		"empty length":                "Content-Length: \n",
		"two lengths":                 "Content-Length: 2\nContent-Length: 50\n",
		"length in lower case":        "content-length: 2\n",
		"mark of a replay":            "Idempotent-Replayed: true\n",
		"mark of a replay, lowercase": "idempotent-replayed: true\n",
	}
	for name, format := range lengths {
		headers["length, "+name] = idempotency.Fields("Content-Length: " + fmt.Sprintf(format, len(smuggled)) + "\n")
	}
	for name, fields := range headers {
		forged[name] = idempotency.Response{Status: 200, Header: fields, Body: []byte(smuggled)}
		forged[name+", as trailer"] = idempotency.Response{Status: 200, Trailer: `Trailer\x3a` + fields, Body: []byte(smuggled)}
	}
	for name, resp := range forged {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Store: testservice.ForgedStore{Response: &resp}}.Serve(t, testservice.Echo)
			got := requestOnlyResponse(t, svc.Server.Listener.Addr().String())
			testservice.RequireProblem(t, got, http.StatusServiceUnavailable, "store-unavailable")
			require.Zero(t, svc.Runs.Load())
			event := svc.Journal.Last(t)
			require.Equal(t, idempotency.OutcomeUnavailable, event.Outcome)
			require.ErrorIs(t, event.Err, idempotency.ErrRecordInvalid)
		})
	}
}

func TestUnusualResponseIsReplayed(t *testing.T) {
	t.Parallel()
	for name, resp := range map[string]idempotency.Response{
		"length":                     {Status: 200, Header: "Content-Length: 4\n", Body: []byte("body")},
		"length with zeros":          {Status: 200, Header: "Content-Length: 004\n", Body: []byte("body")},
		"suppressed date":            {Status: 200, Header: "Date\n", Body: []byte("body")},
		"no body":                    {Status: 204},
		"length of what is not sent": {Status: 304, Header: "Content-Length: 4\n"},
		"unknown status":             {Status: 999, Body: []byte("body")},
		"field that cannot be sent":  {Status: 200, Header: `a b: \x0d\x0aX: y` + "\n", Body: []byte("body")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Store: testservice.ForgedStore{Response: &resp}}.Serve(t, testservice.Echo)
			got := requestOnlyResponse(t, svc.Server.Listener.Addr().String())
			require.Equal(t, resp.Status, got.Status)
			require.Equal(t, string(resp.Body), got.Body)
			require.True(t, got.Replayed())
			require.Empty(t, got.Header["X"])
		})
	}
}

// A fingerprint of zeros stands for a running attempt with a fingerprint that the store cannot see. No request
// matches the fingerprint of zeros.
func TestForgedFingerprintMatchesNoRequest(t *testing.T) {
	t.Parallel()
	lost := func(record *idempotency.Record) { record.Fingerprint = idempotency.Fingerprint{} }
	svc := testservice.Setup{
		Store: &testservice.AlteredStore{Store: testservice.NewSpyStore(), Alter: lost},
	}.Guard(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Call("k", "body").Status)
	testservice.RequireProblem(t, svc.Call("k", "another body"), http.StatusConflict, "key-reused")
}

func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reason error
		want   func(*testing.T, testservice.Answer)
	}{
		"reason": {errors.New("rights were withdrawn"), func(t *testing.T, got testservice.Answer) {
			testservice.RequireProblem(t, got, http.StatusForbidden, "replay-refused")
			require.NotContains(t, got.Body, "withdrawn")
		}},
		"answer of its own": {
			fmt.Errorf("wrapped: %w", &idempotency.Error{Status: http.StatusNotFound, Code: "gone"}),
			func(t *testing.T, got testservice.Answer) {
				require.Equal(t, http.StatusNotFound, got.Status)
				require.Contains(t, got.Body, "#gone")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refuses atomic.Bool
			asked := 0
			svc := testservice.Setup{Opts: idempotency.Options{Replay: func(r *http.Request, resp *idempotency.Response) error {
				asked++
				require.Equal(t, "/payments", r.URL.Path)
				require.Equal(t, "secret", string(resp.Body))
				if refuses.Load() {
					return test.reason
				}
				return nil
			}}}.Guard(t, testservice.Echo)
			first := svc.Call("k", "secret")
			require.Zero(t, asked, "about the first answer")
			testservice.RequireReplay(t, first, svc.Call("k", "secret"))
			refuses.Store(true)
			got := svc.Call("k", "secret")
			test.want(t, got)
			require.NotContains(t, got.Body, "secret")
			require.Equal(t, idempotency.OutcomeReplayRefused, svc.Journal.Last(t).Outcome)
			require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrReplayRefused)
			require.ErrorIs(t, svc.Journal.Last(t).Err, test.reason)
			refuses.Store(false)
			testservice.RequireReplay(t, first, svc.Call("k", "secret"))
			require.EqualValues(t, 1, svc.Runs.Load())
			require.Equal(t, 3, asked)
		})
	}
}

// Options.Replay gets the response as the client gets it: without the fields of OmitHeaders, even from a record older
// than this option.
func TestReplayIsAskedAboutWhatIsSent(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "secret")
		w.Header().Set("X", "y")
		w.Header().Set("Trailer", "Set-Cookie2")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Set-Cookie2", "secret")
	}
	first := testservice.Setup{Store: store}.Guard(t, answer).Call("k", "b")
	require.Equal(t, "secret", first.Header.Get("Set-Cookie"))
	var asked *idempotency.Response
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{
		OmitHeaders: []string{"set-cookie", "Set-Cookie2"},
		Replay: func(_ *http.Request, resp *idempotency.Response) error {
			asked = resp
			return nil
		},
	}}.Guard(t, answer)
	got := svc.Call("k", "b")
	require.True(t, got.Replayed())
	require.NotContains(t, got.Header, "Set-Cookie")
	require.Equal(t, idempotency.Fields("Trailer: Set-Cookie2\nX: y\n"), asked.Header)
	require.Empty(t, asked.Trailer)
}

// Options.Replay reads the body of the request from its start, as a handler does. The body is closed after the call.
func TestReplayIsAskedWithTheBody(t *testing.T) {
	t.Parallel()
	var read []string
	var kept io.Reader
	svc := testservice.Setup{Opts: idempotency.Options{Replay: func(r *http.Request, _ *idempotency.Response) error {
		body, err := io.ReadAll(r.Body)
		read, kept = append(read, string(body)), r.Body
		return err
	}}}.Serve(t, testservice.Echo)
	first := svc.Post("k", "some body")
	for range 2 {
		testservice.RequireReplay(t, first, svc.Post("k", "some body"))
		_, err := kept.Read(make([]byte, 1))
		require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
	}
	require.Equal(t, []string{"some body", "some body"}, read)

	none := svc.Post("empty", "")
	testservice.RequireReplay(t, none, svc.Post("empty", ""))
	require.Empty(t, read[2])
}

// The files of a form are removed after Options.Replay has parsed the form.
func TestReplayParsesAForm(t *testing.T) {
	t.Parallel()
	body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\nxx\r\n--b--\r\n"
	var name string
	svc := testservice.Setup{Opts: idempotency.Options{Replay: func(r *http.Request, _ *idempotency.Response) error {
		err := r.ParseMultipartForm(1) // a file of more than one byte goes to the disk
		if err != nil {
			return err
		}
		f, _, err := r.FormFile("f")
		if err != nil {
			return err
		}
		defer f.Close()
		name = f.(*os.File).Name()
		return nil
	}}}.Serve(t, testservice.Status(http.StatusCreated))
	form := testservice.WithHeader("Content-Type", "multipart/form-data; boundary=b")
	first := svc.Post("k", body, form)
	testservice.RequireReplay(t, first, svc.Post("k", body, form))
	require.NotEmpty(t, name)
	require.Eventually(t, func() bool {
		_, err := os.Stat(name)
		return errors.Is(err, os.ErrNotExist)
	}, 10*time.Second, time.Millisecond)
}

// Options.Replay is called only for answers that clients may get.
func TestReplayIsAskedOnlyAboutWhatCanBeReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 4, Replay: func(*http.Request, *idempotency.Response) error {
		t.Error("asked")
		return nil
	}}}.Guard(t, testservice.Echo)
	svc.Call("k", "too large")
	testservice.RequireProblem(t, svc.Call("k", "too large"), http.StatusConflict, "not-replayable")
	testservice.RequireProblem(t, svc.Call("k", "another"), http.StatusConflict, "key-reused")
}

// A field that OmitHeaders has listed since a change of the options is not replayed from older records, either.
func TestOmittedFieldOfAnOlderRecord(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "session=1")
		w.Header().Set("X-Kept", "1")
		w.Header().Set("Trailer", "X-Sum, X-Late")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "1")
		w.Header().Set("X-Late", "1")
		w.Header().Set(http.TrailerPrefix+"X-Undeclared", "1")
	}
	require.Equal(t, http.StatusOK, testservice.Setup{Store: store}.Guard(t, handler).Call("k", "").Status)
	sent := []string{"Set-Cookie", "X-Kept", "X-Late", "X-Sum", "X-Undeclared"}
	for name, omitted := range map[string][]string{
		"nothing": nil, "what is not there": {"Set-Cookie2", "X-Other"}, "in the header": {"set-cookie"},
		"in the trailer": {"x-late"}, "undeclared": {"X-Undeclared"}, "most": {"Set-Cookie", "X-Late", "X-Sum", "X-Undeclared"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{OmitHeaders: omitted}}.Guard(t, handler)
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/payments", nil)
			r.Header.Set("Idempotency-Key", "k")
			svc.Handler.ServeHTTP(w, r)
			got := w.Result()
			require.Equal(t, "true", got.Header.Get("Idempotent-Replayed"))
			require.Equal(t, "body", w.Body.String())
			for _, field := range sent {
				gone := slices.ContainsFunc(omitted, func(o string) bool { return strings.EqualFold(o, field) })
				require.Equal(t, gone, got.Header.Get(field) == "" && got.Trailer.Get(field) == "", field)
			}
		})
	}
}

// The mark of a replay comes only from the Middleware, and never from a handler or a service behind the handler.
func TestHandlerCannotMarkItsAnswerAsAReplay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Idempotent-Replayed", "idempotent-replayed", http.TrailerPrefix + "Idempotent-Replayed"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				t.Parallel()
				svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header()[name] = []string{"true"}
					_, _ = io.Copy(w, strings.NewReader(strings.Repeat("x", 5000)))
				})
				first := svc.Post("k", "")
				require.False(t, first.Replayed())
				testservice.RequireReplay(t, first, svc.Post("k", ""))
			})
		}
	}
}

func TestLargeHeaderIsNotStored(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size   int
		where  string
		stored bool
	}{
		"header of 60 KiB":  {60 << 10, "", true},
		"header of 65 KiB":  {65 << 10, "", false},
		"trailer of 65 KiB": {65 << 10, http.TrailerPrefix, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			svc := testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(test.where+"X-Large", strings.Repeat("x", test.size))
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, "body")
			})
			first := svc.Call("k", "")
			require.Equal(t, "body", first.Body)
			if test.stored {
				testservice.RequireReplay(t, first, svc.Call("k", ""))
				return
			}
			problem := testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "not-replayable")
			require.Equal(t, http.StatusOK, problem.OriginalStatus)
			require.EqualValues(t, 1, svc.Runs.Load())
			require.Less(t, store.CountedUsage().TotalBytes, int64(1000))
		})
	}
}

// After a 101, the connection continues in a new protocol, so no answer can be replayed.
func TestSwitchOfProtocolsIsNotReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, testservice.Status(http.StatusSwitchingProtocols))
	require.Equal(t, http.StatusSwitchingProtocols, svc.Call("k", "").Status)
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "not-replayable")
}

// The Connection field of an answer may list many fields. The answer is filtered in linear time, because each name is
// looked up.
func TestManyConnectionFields(t *testing.T) {
	t.Parallel()
	const n = 3000
	var listed bytes.Buffer
	for i := range n {
		fmt.Fprintf(&listed, "x-%d, ", i)
	}
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", listed.String())
		for i := range 2 * n {
			w.Header().Set(fmt.Sprint("X-", i), "1")
		}
	})
	first := svc.Call("k", "")
	require.Len(t, first.Header, 2*n+1)
	require.Len(t, svc.Call("k", "").Header, n+1, "the fields that are not listed, and the mark of a replay")
}

// waiting are the options of a Runner whose duplicates wait for the answer.
var waiting = idempotency.RunnerOptions{Wait: time.Minute}

// startOperation starts work that takes d and returns err. After the work has begun, startOperation returns a function
// that waits for the end of the work.
func (b *runnerBench) startOperation(d time.Duration, err error) (wait func()) {
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			close(began)
			time.Sleep(d)
			resp, _ := someWork(ctx)
			return resp, err
		})
	}()
	<-began
	return func() { <-ended }
}

// mustNotWork returns work that fails the test.
func mustNotWork(t *testing.T) func(context.Context) (idempotency.Response, error) {
	return func(context.Context) (idempotency.Response, error) {
		t.Error("executed")
		return idempotency.Response{}, nil
	}
}

func TestDuplicateWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		elsewhere bool // the owner is in another process
		within    time.Duration
	}{"same process": {false, 0}, "other process": {true, 320 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here := newBench(t, testservice.NewSpyStore(), waiting)
				owner := here
				if row.elsewhere {
					owner = newBench(t, here.store, waiting)
				}
				began := time.Now()
				wait := owner.startOperation(10*time.Second, nil)
				resp, replayed, err := here.doOperation(mustNotWork(t))
				require.NoError(t, err)
				require.True(t, replayed)
				require.Equal(t, "done", string(resp.Body))
				require.InDelta(t, 10*time.Second, time.Since(began), float64(row.within))
				require.Equal(t, idempotency.OutcomeReplayed, here.journal.Last(t).Outcome)
				require.Equal(t, time.Since(began), here.journal.Last(t).Waited)
				wait()
			})
		})
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.startOperation(time.Hour, nil)
		began := time.Now()
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				_, _, err := b.doOperation(mustNotWork(t))
				assert.ErrorIs(t, err, idempotency.ErrInProgress)
				assert.Equal(t, time.Minute, time.Since(began))
			})
		}
		group.Wait()
		require.Equal(t, idempotency.OutcomeInProgress, b.journal.Last(t).Outcome)
		require.Equal(t, time.Minute, b.journal.Last(t).Waited)
		wait()
	})
}

// The number of waiting requests of each user is bounded. A request beyond the limit gets the problem in-progress at
// once, while the request of a second user waits.
func TestWaitingRequestsOfAUserAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 128
		finish := make(chan struct{})
		svc := testservice.Setup{
			User: func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil },
			Opts: idempotency.Options{Wait: time.Hour},
		}.Guard(t, func(http.ResponseWriter, *http.Request) { <-finish })
		alice, bob := testservice.WithHeader("X-User", "alice"), testservice.WithHeader("X-User", "bob")
		var group sync.WaitGroup
		for range 2 { // the second round needs the places that the first round has given back
			key := rand.Text()
			for _, user := range []testservice.Edit{alice, bob} {
				group.Go(func() { svc.Call(key, "", user) })
				synctest.Wait()
			}
			for range most {
				group.Go(func() { assert.Equal(t, http.StatusOK, svc.Call(key, "", alice).Status) })
			}
			synctest.Wait()
			testservice.RequireProblem(t, svc.Call(key, "", alice), http.StatusConflict, "in-progress")
			group.Go(func() { assert.Equal(t, http.StatusOK, svc.Call(key, "", bob).Status) })
			synctest.Wait()
			close(finish)
			group.Wait()
			finish = make(chan struct{})
		}
	})
}

func TestManyWaitersAskTheStoreSeldom(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"same process": false, "other process": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const waiters = 1000
				here := newBench(t, testservice.NewSpyStore(), waiting)
				owner := here
				if elsewhere {
					owner = newBench(t, here.store, waiting)
				}
				wait := owner.startOperation(10*time.Second, nil)
				var group sync.WaitGroup
				for range waiters {
					group.Go(func() {
						_, replayed, err := here.doOperation(mustNotWork(t))
						assert.NoError(t, err)
						assert.True(t, replayed)
					})
				}
				group.Wait()
				wait()
				// Each waiter asks once, and one of them polls for all, at most four times a second.
				require.LessOrEqual(t, here.store.Begins.Load(), int64(1+waiters+50))
			})
		})
	}
}

func TestWaiterTakesOverThePolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, owner := newBench(t, testservice.NewSpyStore(), waiting), (*runnerBench)(nil)
		owner = newBench(t, here.store, waiting)
		wait := owner.startOperation(10*time.Second, nil)
		var group sync.WaitGroup
		for i := range 10 { // each waiter polls for a second, and then its client hangs up
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second+time.Millisecond)
			defer cancel()
			group.Go(func() {
				_, _, err := here.Do(ctx, someKey, []byte("payload"), mustNotWork(t))
				assert.ErrorIs(t, err, idempotency.ErrInProgress)
			})
			synctest.Wait()
		}
		began := time.Now()
		_, replayed, err := here.doOperation(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
		require.InDelta(t, 10*time.Second, time.Since(began), float64(320*time.Millisecond))
		group.Wait()
		wait()
	})
}

func TestWaiterClaimsWhatTheOwnerReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.startOperation(10*time.Second, errors.New("try again"))
		began := time.Now()
		executed := 0
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
					assert.Equal(t, 10*time.Second, time.Since(began))
					executed++
					time.Sleep(time.Second)
					return someWork(ctx)
				})
				assert.NoError(t, err)
				assert.Equal(t, 11*time.Second, time.Since(began))
			})
		}
		group.Wait()
		wait()
		require.Equal(t, 1, executed)
		require.LessOrEqual(t, b.store.Begins.Load(), int64(1+100+60))
	})
}

func TestWaiterThatGaveUpDoesNotHoldTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.startOperation(10*time.Second, errors.New("try again"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := b.Do(ctx, someKey, []byte("payload"), mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrInProgress)
		wait()
		_, replayed, err := b.doOperation(someWork)
		require.NoError(t, err)
		require.False(t, replayed)
	})
}

func TestWaiterIsToldThatTheStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		open := waiting
		open.FailOpen = true // but FailOpen does not apply: another attempt may still be running
		b := newBench(t, store, open)
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n > 4 {
				return testservice.ErrDown
			}
			return step()
		}
		wait := b.startOperation(10*time.Second, nil)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				_, _, err := b.doOperation(mustNotWork(t))
				assert.ErrorIs(t, err, idempotency.ErrUnavailable)
				assert.ErrorIs(t, err, testservice.ErrDown)
			})
		}
		group.Wait()
		wait()
	})
}

func TestAnotherRequestDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.startOperation(10*time.Second, nil)
		began := time.Now()
		_, _, err := b.Do(t.Context(), someKey, []byte("other"), mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrKeyReused)
		require.Zero(t, time.Since(began))
		wait()
	})
}

// FailOpen accepts the risk of an unknown attempt that holds the key. After a request has waited for a running
// attempt, FailOpen does not apply.
func TestFailOpenDoesNotRunBesideTheAttemptThatItWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n >= 3 {
				return testservice.ErrDown
			}
			return step()
		}
		opts := waiting
		opts.FailOpen = true
		b := newBench(t, store, opts)
		wait := b.startOperation(time.Second, nil)
		_, _, err := b.doOperation(mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		require.Equal(t, idempotency.OutcomeUnavailable, b.journal.Last(t).Outcome)
		wait()
	})
}

// Of two requests waiting for a key, the leader polls the store. The polled record says nothing about the fingerprint
// of the follower. Here the leader and the follower belong to different operations: between two polls, the key is
// freed, and claimed with the payload of the follower.
func TestWaitersOfAStoreWithSecretFingerprints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := concealingStore{testservice.NewSpyStore()}
		runners := make([]*idempotency.Runner, 2) // as in two processes: neither Runner wakes the waiters of the other Runner
		for i := range runners {
			var err error
			runners[i], err = idempotency.NewRunner(store, idempotency.RunnerOptions{Wait: time.Minute, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
		}
		do := func(process int, payload string, verdict idempotency.Verdict) chan error {
			ended := make(chan error, 1)
			go func() {
				_, _, err := runners[process].Do(t.Context(), testservice.NumberedKey(1), []byte(payload), func(ctx context.Context) (idempotency.Response, error) {
					time.Sleep(10 * time.Second)
					idempotency.Decide(ctx, verdict)
					return testservice.BodyOf(1), nil
				})
				ended <- err
			}()
			synctest.Wait()
			return ended
		}
		first := do(0, "payload", idempotency.Free)
		leader := do(1, "payload", idempotency.Keep)
		require.NoError(t, <-first)
		second := do(0, "other payload", idempotency.Keep)
		follower := do(1, "other payload", idempotency.Keep)
		require.ErrorIs(t, <-leader, idempotency.ErrKeyReused)
		require.NoError(t, <-second)
		require.NoError(t, <-follower)
	})
}

// concealingStore conceals the fingerprint of a record: each request with another fingerprint gets a different value.
type concealingStore struct{ *testservice.SpyStore }

func (s concealingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.SpyStore.Begin(ctx, key, request)
	if claim == nil && record.Fingerprint != request.Fingerprint {
		record.Fingerprint = sha256.Sum256(request.Fingerprint[:])
	}
	return record, claim, err
}

// wrapper is a third-party store in front of a store.
type wrapper struct{ idempotency.Store }

func (w wrapper) Unwrap() idempotency.Store { return w.Store }

// deadlineStore notes whether the context of Begin had a deadline.
type deadlineStore struct {
	idempotency.Store
	hadDeadline *bool
}

func (s deadlineStore) Unwrap() idempotency.Store { return s.Store }

func (s deadlineStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	_, *s.hadDeadline = ctx.Deadline()
	return s.Store.Begin(ctx, key, request)
}

// immediateStore is a deadlineStore with the method Immediate.
type immediateStore struct {
	deadlineStore
	isImmediate bool
}

func (s immediateStore) Immediate() bool { return s.isImmediate }

// Begin runs without a deadline only if the store itself is immediate. Wrappers and stores without the method get a
// deadline.
func TestImmediateStore(t *testing.T) {
	t.Parallel()
	had := false
	memory := deadlineStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{}), &had}
	for name, row := range map[string]struct {
		store    idempotency.Store
		deadline bool
	}{
		"immediate":                 {immediateStore{memory, true}, false},
		"not immediate":             {immediateStore{memory, false}, true},
		"in front of one":           {memory, true},
		"in front of one that says": {wrapper{immediateStore{memory, true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			testservice.Setup{Store: row.store}.Guard(t, testservice.Echo).Call("key", "body")
			require.Equal(t, row.deadline, had)
		})
	}
	require.True(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}).Immediate())
}

// cachedRecordStore returns a completed record from a cache for every key.
type cachedRecordStore struct {
	idempotency.Store
	record idempotency.Record
}

func (s cachedRecordStore) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record := s.record
	record.FromCache = true
	return record, nil, nil
}

// Records from a cache are checked like all records. The event of a replay reports the cache as the source.
func TestRecordFromCache(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	svc := testservice.Setup{Store: inner}.Guard(t, testservice.Echo)
	first := svc.Call("key", "body")
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	require.False(t, svc.Journal.Last(t).FromCache)
	record, _, err := inner.Store.Begin(t.Context(), idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "key"}, testservice.AttemptFor(time.Hour))
	require.NoError(t, err)

	svc = testservice.Setup{Store: cachedRecordStore{inner, record}}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	require.True(t, svc.Journal.Last(t).FromCache)
	testservice.RequireProblem(t, svc.Call("key", "another body"), http.StatusConflict, "key-reused")
	require.EqualValues(t, 2, inner.Begins.Load())
}
