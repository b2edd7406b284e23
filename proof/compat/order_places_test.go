package compat_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// A place is where a middleware belongs, and a row of the table in docs/integrating.md.
type place struct {
	what, where string
	here        string                      // what TestOrders shows, or the test that is named
	elsewhere   string                      // what shows shows, or TestOrders if it is nil
	shows       func(t *testing.T, w *town) // what goes wrong elsewhere
}

var places = []place{
	{
		"router", "outside", "its 404 is its own, and not stored",
		"a 404 is stored, and replayed even when the route exists", outsideOfRouter,
	},
	{
		"authentication", "outside", "a request without a valid token gets 401, whatever its key",
		"the function that returns the user finds nobody: every request with a key is refused, 401 `user-unknown`",
		insideNobody,
	},
	{
		"authentication", "outside", "as above",
		"if that function believes what a request claims, or names one user for all, a stranger gets the stored answer", insideStranger,
	},
	{
		"CORS", "outside", "its fields are on each answer once, for the origin that asks: first, replay, refusal, 401; " +
			"a preflight does not reach the middleware",
		"a replay to a page of another origin has the fields for the first one, and refusals have none: browsers hide both",
		insideCORS,
	},
	{
		"CORS and authentication", "CORS outside of authentication", "a preflight, which has no token, is answered",
		"a preflight gets 401, so the browser does not send the request", corsInsideAuthentication,
	},
	{
		"compression", "outside", "each client gets the encoding that it takes, also if the first took another",
		"a retry that does not take gzip gets gzip, because the compressed answer is stored", insideCompression,
	},
	{
		"`http.TimeoutHandler`", "outside", "503 when the time is up; if the handler finishes all the same, " +
			"a retry gets its answer, else it runs again",
		"the 503 ends the attempt while the handler still runs, and a retry runs beside it", insideTimeoutHandler,
	},
	{
		"chi's `Timeout`", "either", "504 if the handler gave up, and a retry runs again; " +
			"the handler's answer if it finished, and a retry gets it", "the same", nil,
	},
	{"recovery", "either", "a panic is answered 500, and a retry runs again", "the same", nil},
	{
		"access log", "either", "one line for each request, with the status and the bytes that were sent, " +
			"or those before compression if that is outside of the log",
		"a line for each run of the handler; replays and refusals have none", nil,
	},
	{
		"access log and recovery", "log outside of recovery",
		"a panic is logged as 500", "a panic is logged as 200 by httplog",
		logInsideRecovery,
	},
	{
		"tracing (otelhttp)", "either", "one span for each request, and it tells of the replay",
		"a span of the server for each run of the handler; `otelidempotency` makes a span of its own for the replay", nil,
	},
	{
		"request ID that answers show", "outside",
		"each answer has its own", "a replay has that of the first answer", insideRequestID,
	},
	{
		"rate limit (chi's `Throttle`)", "either",
		"a request that is turned away does not reach the middleware, and may be sent again (`TestChiThrottle`)",
		"only runs of the handler count; a 429 is not stored, and a retry runs (`TestChiThrottle`)", nil,
	},
	{
		"what reads the body (CSRF check of a form field)", "inside", "the body is whole (`TestReadsInside`)",
		"requests with a key are refused, 500 `body-consumed`; the handler does not run", bodyReaderOutside,
	},
}

// What is in the wrong place goes wrong in the way that docs/integrating.md tells.
func TestMisplaced(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	for _, p := range places {
		if p.shows != nil {
			t.Run(p.what+": "+p.elsewhere, func(t *testing.T) {
				t.Parallel()
				p.shows(t, w)
			})
		}
	}
}

func outsideOfRouter(t *testing.T, w *town) {
	right := w.send(t, w.open(order{authentication, guarding}), ask{key: rand.Text(), path: "/refunds"})
	require.Equal(t, 404, right.status)
	require.Empty(t, right.settled)

	r := chi.NewRouter()
	r.Use(bearer, w.guard.Handler)
	r.Post("/payments", pay)
	key := rand.Text()
	first := w.send(t, r, ask{key: key, path: "/refunds"})
	require.Equal(t, 404, first.status)
	require.False(t, first.replayed())

	r.Post("/refunds", pay)
	retry := w.send(t, r, ask{key: key, path: "/refunds"})
	require.Equal(t, 404, retry.status)
	require.True(t, retry.replayed())
	require.Zero(t, total(first, retry))
}

func insideNobody(t *testing.T, w *town) {
	r := w.send(t, w.open(order{guarding, authentication}), ask{key: rand.Text()})
	require.Equal(t, 401, r.status)
	require.Contains(t, r.body, "user-unknown")
	require.Zero(t, total(r))
}

func insideStranger(t *testing.T, w *town) {
	careless := newMiddleware(t, newStore(), idempotency.Options{})
	service := careless.Handler(bearer(http.HandlerFunc(pay)))
	key := rand.Text()
	require.Equal(t, 201, w.send(t, service, ask{key: key}).status)
	stranger := w.send(t, service, ask{key: key, stranger: true})
	require.True(t, stranger.replayed())
	require.Equal(t, payment, stranger.body)
	require.Equal(t, 401, w.send(t, service, ask{key: rand.Text(), stranger: true}).status)
}

func insideCORS(t *testing.T, w *town) {
	service := w.open(order{authentication, guarding, crossOrigin})
	key := rand.Text()
	first := w.send(t, service, ask{key: key})
	require.Equal(t, []string{origin}, first.header["Access-Control-Allow-Origin"])
	other := w.send(t, service, ask{key: key, origin: "https://other.example"})
	require.True(t, other.replayed())
	require.Equal(t, []string{origin}, other.header["Access-Control-Allow-Origin"])
	refusal := w.send(t, service, ask{key: key, body: "9900"})
	require.Equal(t, 409, refusal.status)
	require.NotContains(t, refusal.header, "Access-Control-Allow-Origin")
}

func corsInsideAuthentication(t *testing.T, w *town) {
	service := w.open(order{authentication, crossOrigin, guarding})
	require.Equal(t, 401, w.send(t, service, ask{method: http.MethodOptions, stranger: true}).status)
}

func insideCompression(t *testing.T, w *town) {
	service := w.open(order{authentication, guarding, compression})
	key := rand.Text()
	first := w.send(t, service, ask{key: key, gzip: true})
	require.Equal(t, payment, first.body)
	plain := w.send(t, service, ask{key: key})
	require.True(t, plain.replayed())
	require.Equal(t, []string{"gzip"}, plain.header["Content-Encoding"])
	require.Equal(t, first.raw, plain.raw)
}

func insideTimeoutHandler(t *testing.T, w *town) {
	service := w.open(order{authentication, guarding, deadline})
	key := rand.Text()
	first := w.send(t, service, ask{key: key, do: "hang", hurry: true})
	require.Equal(t, 503, first.status)
	require.Equal(t, idempotency.OutcomeReleased, receive(t, first.settled).Outcome)

	retry := w.send(t, service, ask{key: key})
	require.Equal(t, 201, retry.status)
	eventually(t, func() bool { return total(first, retry) == 2 }, "both have run")
	require.NotPanics(t, func() { close(first.goOn) }) // the first still runs
	receive(t, first.finished)
}

func logInsideRecovery(t *testing.T, w *town) {
	r := w.send(t, w.open(order{recovery, accessLog, authentication, guarding}), ask{key: rand.Text(), do: "panic"})
	require.Equal(t, 500, r.status)
	require.Equal(t, []accessLine{{200, 0}}, r.lines)
}

func insideRequestID(t *testing.T, w *town) {
	r := chi.NewRouter()
	r.Use(middleware.RequestID, bearer)
	r.With(w.guard.Handler, freshID).Post("/payments", pay)
	key := rand.Text()
	first, retry := w.send(t, r, ask{key: key}), w.send(t, r, ask{key: key})
	require.True(t, retry.replayed())
	require.NotEmpty(t, first.header["X-Request-Id"])
	require.Equal(t, first.header["X-Request-Id"], retry.header["X-Request-Id"])
}

func bodyReaderOutside(t *testing.T, w *town) {
	r := w.send(t, w.reading(guarding), ask{key: rand.Text()})
	require.Equal(t, 500, r.status)
	require.Contains(t, r.body, "body-consumed")
	require.Zero(t, total(r))
}

// What reads the body reads all of it inside of the guard.
func TestReadsInside(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	service := w.reading(authentication)
	key := rand.Text()
	first, retry := w.send(t, service, ask{key: key}), w.send(t, service, ask{key: key})
	require.Equal(t, 201, first.status)
	require.Equal(t, "4200", first.header.Get("Read"))
	require.True(t, retry.replayed())
	require.Equal(t, first.lasting(), retry.lasting())
}

// reading returns a service with a middleware that reads the body. If next is the guard, it is outside of that, else
// inside.
func (w *town) reading(next part) http.Handler {
	reads := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			rw.Header().Set("Read", string(body))
			next.ServeHTTP(rw, r)
		})
	}
	handler := http.Handler(http.HandlerFunc(pay))
	if next == guarding {
		return bearer(reads(w.guard.Handler(handler)))
	}
	return bearer(w.guard.Handler(reads(handler)))
}

// The page says what TestOrders and TestMisplaced show.
func TestOrderTable(t *testing.T) {
	t.Parallel()
	requireTable(t, "../../docs/integrating.md", orderTable())
}

func orderTable() string {
	var b strings.Builder
	b.WriteString("\n")
	line(&b, "middleware", "its place", "there", "elsewhere")
	line(&b, "---", "---", "---", "---")
	for _, p := range places {
		line(&b, p.what, p.where, p.here, p.elsewhere)
	}
	fmt.Fprintf(&b, "\n%s orders obey these places. A test run tries one in %d of them; `-orders` tries all.\n\n",
		thousands(len(orders())), sampled)
	return b.String()
}

func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
