package keyfrom_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// byCart are the sources of a shop whose older clients send no keys.
func byCart() []keyfrom.Source {
	same := fingerprint.Must(fingerprint.JSONOnly("/cart", "/card"))
	return []keyfrom.Source{keyfrom.JSON("/key"), keyfrom.Content(minute, same)}
}

func order(cart, rest string) message {
	return message{"", js, fmt.Sprintf(`{"cart":%q%s}`, cart, rest)}
}

// Requests of one user with the same content are one operation. Everything else is another one.
func TestContent(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for name, store := range map[string]idempotency.Store{
			"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
			"Redis":  idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
		} {
			opts := idempotency.Options{FingerprintHeaders: []string{"Account"}}
			svc := newService(t, setup{store: store, opts: opts, sources: byCart()}).serve(t, false)
			first := order("c", `,"token":1`).sendTo(svc, "")
			operations := map[string]bool{decode(t, first).Operation: true}
			for range 2 {
				testservice.RequireReplay(t, first, order("c", `,"token":2`).sendTo(svc, ""))
			}
			for other, got := range map[string]testservice.Answer{
				"user":                    order("c", "").sendTo(svc, "", as("bob")),
				"cart":                    order("d", "").sendTo(svc, ""),
				"method":                  order("c", "").sendTo(svc, "", testservice.WithMethod("PATCH")),
				"path":                    svc.Send("/orders", "", `{"cart":"c"}`, testservice.WithHeader("Content-Type", js)),
				"query":                   message{"q", js, `{"cart":"c"}`}.sendTo(svc, ""),
				"media type":              message{"", "text/plain", `{"cart":"c"}`}.sendTo(svc, ""),
				"account":                 order("c", "").sendTo(svc, "", testservice.WithHeader("Account", "a")),
				"account, two":            order("c", "").sendTo(svc, "", testservice.WithHeader("Account", "a", "b")),
				"method override":         order("c", "").sendTo(svc, "", testservice.WithHeader("X-HTTP-Method-Override", "PUT")),
				"key in the header":       order("c", "").sendTo(svc, "h"),
				"key in the body":         order("c", `,"key":"k"`).sendTo(svc, ""),
				"another key":             order("c", `,"key":"l"`).sendTo(svc, ""),
				"nothing":                 message{"", "", ""}.sendTo(svc, ""),
				"key of the content used": order("c", "").sendTo(svc, decode(t, first).Key+"-"),
			} {
				got := decode(t, got)
				require.NotContains(t, operations, got.Operation, "%s: %s", name, other)
				operations[got.Operation] = true
			}
			require.EqualValues(t, 15, svc.Runs.Load())
			testservice.RequireReplay(t, first, order("c", "").sendTo(svc, ""))
		}
	})
}

// A double click sends two requests at once. The second one waits for the answer to the first.
func TestDoubleClick(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		const clicks = 8
		started, finish := make(chan struct{}, clicks), make(chan struct{})
		handler := func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			<-finish
			showRequest(w, r)
		}
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		svc := newService(t, setup{
			store: store, handler: handler, sources: byCart(), opts: idempotency.Options{Wait: minute},
		}).serve(t, false)
		impatient := newService(t, setup{store: store, handler: handler, sources: byCart()}).serve(t, false)
		answers := make(chan testservice.Answer, clicks)
		var group sync.WaitGroup
		for range clicks {
			group.Go(func() { answers <- order("c", "").sendTo(svc, "") })
		}
		<-started
		refused := order("c", "").sendTo(impatient, "")
		testservice.RequireProblem(t, refused, http.StatusConflict, "in-progress")
		require.Equal(t, idempotency.OutcomeInProgress, impatient.Journal.Last(t).Outcome)
		close(finish)
		group.Wait()
		replays := 0
		for range clicks {
			got := <-answers
			require.NoError(t, got.Err)
			require.Equal(t, http.StatusCreated, got.Status, got.Body)
			if got.Replayed() {
				replays++
			}
		}
		require.Equal(t, clicks-1, replays)
		require.EqualValues(t, 1, svc.Runs.Load())
		require.Zero(t, impatient.Runs.Load())
	})
}

// The window begins when the first request ends, has no boundary before its end, and is not prolonged. The operation after
// it has an ID of its own.
func TestWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t, setup{sources: byCart(), handler: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * minute) // longer than the window
			showRequest(w, r)
		}})
		pending := make(chan testservice.Answer, 1)
		go func() { pending <- order("c", "").sendTo(svc, "") }()
		time.Sleep(2 * minute)
		testservice.RequireProblem(t, order("c", "").sendTo(svc, ""), http.StatusConflict, "in-progress")
		first := <-pending
		for range 59 {
			time.Sleep(time.Second)
			testservice.RequireReplay(t, first, order("c", "").sendTo(svc, ""))
		}
		time.Sleep(time.Second)
		next := order("c", "").sendTo(svc, "")
		require.NotEqual(t, decode(t, first).Operation, decode(t, next).Operation)
		require.NotEqual(t, decode(t, first).Downstream, decode(t, next).Downstream)
		require.EqualValues(t, 2, svc.Runs.Load())
	})
}

// After a crash or a failure, a repetition is an attempt at the same operation. After a refusal, a corrected request runs.
func TestContentAfterFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen []shown
		svc := newService(t, setup{sources: byCart(), handler: func(w http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			seen = append(seen, shown{Operation: op.ID.String(), Downstream: op.DownstreamKey("charge")})
			switch len(seen) {
			case 1:
				panic(http.ErrAbortHandler)
			case 2:
				w.WriteHeader(http.StatusBadGateway)
			case 3:
				w.WriteHeader(http.StatusUnprocessableEntity)
			default:
				showRequest(w, r)
			}
		}})
		require.Panics(t, func() { order("c", `,"mail":""`).sendTo(svc, "") })
		time.Sleep(minute / 2) // the lease
		require.Equal(t, http.StatusBadGateway, order("c", `,"mail":""`).sendTo(svc, "").Status)
		require.Equal(t, http.StatusUnprocessableEntity, order("c", `,"mail":""`).sendTo(svc, "").Status)
		last := order("c", `,"mail":"a@b.example"`).sendTo(svc, "")
		require.Contains(t, decode(t, last).Body, "a@b.example")
		testservice.RequireReplay(t, last, order("c", "").sendTo(svc, ""))
		require.Len(t, seen, 4)
		for _, attempt := range seen {
			require.Equal(t, seen[0], attempt)
		}
	})
}

// Options of the service apply to requests without a key, too.
func TestContentFollowsTheOptions(t *testing.T) {
	t.Parallel()
	keepAll := func(*idempotency.Response) bool { return true }
	odd := func(string) error { return fmt.Errorf("no key is good enough") }
	svc := newService(t, setup{
		sources: byCart(), handler: testservice.Status(http.StatusUnprocessableEntity),
		opts: idempotency.Options{Storable: keepAll, ValidateKey: odd, Endpoint: func(*http.Request) string { return "one" }},
	})
	first := order("c", "").sendTo(svc, "")
	require.Equal(t, http.StatusUnprocessableEntity, first.Status)
	testservice.RequireReplay(t, first, order("c", "").sendTo(svc, "", testservice.WithMethod("PATCH")))
	testservice.RequireProblem(t, message{"", js, `{"cart":1,"Cart":2}`}.sendTo(svc, ""), http.StatusBadRequest, "body-invalid")
	require.ErrorContains(t, svc.Journal.Last(t).Err, "differs from a selected one in case only")
}

// While the store is down, requests are refused, or run unprotected if FailOpen allows it.
func TestContentWithoutStore(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = testservice.Failing(testservice.Always, testservice.ErrDown)
	svc := newService(t, setup{store: store, sources: byCart()})
	testservice.RequireProblem(t, order("c", "").sendTo(svc, ""), http.StatusServiceUnavailable, "store-unavailable")
	require.Equal(t, idempotency.OutcomeUnavailable, svc.Journal.Last(t).Outcome)
	require.Len(t, svc.Journal.All(), 1)
	require.Zero(t, svc.Runs.Load())

	svc = newService(t, setup{store: store, sources: byCart(), opts: idempotency.Options{FailOpen: true}})
	require.NotEmpty(t, decode(t, order("c", "").sendTo(svc, "")).Operation)
	require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnprotected}, svc.Journal.Outcomes())

	withoutSteps := testservice.WithoutSteps{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	svc = newService(t, setup{store: withoutSteps, sources: byCart()})
	refused := order("c", "").sendTo(svc, "")
	testservice.RequireProblem(t, refused, http.StatusServiceUnavailable, "store-unavailable")
	require.Zero(t, svc.Runs.Load(), "a store that keeps no steps")
}

// The observer hears once of each request.
func TestContentEvents(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{sources: byCart()})
	decode(t, order("c", "").sendTo(svc, ""))
	decode(t, order("c", "").sendTo(svc, ""))
	decode(t, order("c", "").sendTo(svc, "h"))
	require.Equal(t, []idempotency.Outcome{
		idempotency.OutcomeExecuted, idempotency.OutcomeReplayed, idempotency.OutcomeExecuted,
	}, svc.Journal.Outcomes())
	for _, event := range svc.Journal.All() {
		require.False(t, strings.HasPrefix(event.Key.ID, "content-"), "the operation, not its content")
	}
}
