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

// place is the position of a middleware, and a row of the table in docs/mounting.md. TestOrders shows what happens
// in this position.
type place struct {
	what, where string
	otherwise   string                               // what happens in a different position
	shows       []func(t *testing.T, w *orderServer) // show otherwise; empty if TestOrders tries both positions
}

var places = []place{
	{
		"router", "outside",
		"its 404 is stored, and replayed even when the route exists", shownBy(outsideOfRouter),
	},
	{
		"authentication", "outside",
		"requests with a key get 401 `user-unknown`, or strangers get stored answers", shownBy(insideNobody, insideStranger),
	},
	{
		"CORS", "outside, also of authentication",
		"browsers hide refusals and replays to other origins; preflights get 401", shownBy(insideCORS, corsInsideAuthentication),
	},
	{
		"compression", "outside",
		"a client that does not take gzip gets the stored gzip", shownBy(insideCompression),
	},
	{
		"`http.TimeoutHandler`", "outside",
		"after its 503 the handler still runs, and a retry runs beside it", shownBy(insideTimeoutHandler),
	},
	{
		"request ID in answers", "outside",
		"a replay has the ID of the first answer", shownBy(insideRequestID),
	},
	{
		"access log", "outside, also of recovery",
		"replays and refusals have no line; httplog logs a panic as 200", shownBy(logInsideRecovery),
	},
	{"tracing (otelhttp)", "outside", "replays and refusals have no server span", nil},
	{
		"what reads the body, such as a CSRF check", "inside",
		"requests with a key get 500 `body-consumed`", shownBy(bodyReaderOutside),
	},
	// TestChiThrottle shows both positions.
	{"rate limit", "either", "outside, every request counts; inside, only runs of the handler", nil},
	{"recovery, chi's `Timeout`", "either", "the same in both places", nil},
}

func shownBy(tests ...func(*testing.T, *orderServer)) []func(*testing.T, *orderServer) { return tests }

// A middleware in the wrong position fails in the way that docs/mounting.md describes.
func TestMisplaced(t *testing.T) {
	t.Parallel()
	w := newOrderServer(t)
	for _, p := range places {
		for i, shows := range p.shows {
			t.Run(fmt.Sprintf("%s/%d", p.what, i), func(t *testing.T) {
				t.Parallel()
				shows(t, w)
			})
		}
	}
}

func outsideOfRouter(t *testing.T, w *orderServer) {
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

func insideNobody(t *testing.T, w *orderServer) {
	r := w.send(t, w.open(order{guarding, authentication}), ask{key: rand.Text()})
	require.Equal(t, 401, r.status)
	require.Contains(t, r.body, "user-unknown")
	require.Zero(t, total(r))
}

func insideStranger(t *testing.T, w *orderServer) {
	careless := newMiddleware(t, newStore(), idempotency.Options{})
	service := careless.Handler(bearer(http.HandlerFunc(pay)))
	key := rand.Text()
	require.Equal(t, 201, w.send(t, service, ask{key: key}).status)
	stranger := w.send(t, service, ask{key: key, stranger: true})
	require.True(t, stranger.replayed())
	require.Equal(t, payment, stranger.body)
	require.Equal(t, 401, w.send(t, service, ask{key: rand.Text(), stranger: true}).status)
}

func insideCORS(t *testing.T, w *orderServer) {
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

func corsInsideAuthentication(t *testing.T, w *orderServer) {
	service := w.open(order{authentication, crossOrigin, guarding})
	require.Equal(t, 401, w.send(t, service, ask{method: http.MethodOptions, stranger: true}).status)
}

func insideCompression(t *testing.T, w *orderServer) {
	service := w.open(order{authentication, guarding, compression})
	key := rand.Text()
	first := w.send(t, service, ask{key: key, gzip: true})
	require.Equal(t, payment, first.body)
	plain := w.send(t, service, ask{key: key})
	require.True(t, plain.replayed())
	require.Equal(t, []string{"gzip"}, plain.header["Content-Encoding"])
	require.Equal(t, first.raw, plain.raw)
}

func insideTimeoutHandler(t *testing.T, w *orderServer) {
	service := w.open(order{authentication, guarding, deadline})
	key := rand.Text()
	first := w.send(t, service, ask{key: key, do: "hang", hurry: true})
	require.Equal(t, 503, first.status)
	require.Equal(t, idempotency.OutcomeReleased, receive(t, first.settled).Outcome)

	retry := w.send(t, service, ask{key: key})
	require.Equal(t, 201, retry.status)
	eventually(t, func() bool { return total(first, retry) == 2 }, "both have run")
	require.NotPanics(t, func() { close(first.goOn) }) // the first handler still runs
	receive(t, first.finished)
}

func logInsideRecovery(t *testing.T, w *orderServer) {
	r := w.send(t, w.open(order{recovery, accessLog, authentication, guarding}), ask{key: rand.Text(), do: "panic"})
	require.Equal(t, 500, r.status)
	require.Equal(t, []accessLine{{200, 0}}, r.lines)
}

func insideRequestID(t *testing.T, w *orderServer) {
	r := chi.NewRouter()
	r.Use(middleware.RequestID, bearer)
	r.With(w.guard.Handler, freshID).Post("/payments", pay)
	key := rand.Text()
	first, retry := w.send(t, r, ask{key: key}), w.send(t, r, ask{key: key})
	require.True(t, retry.replayed())
	require.NotEmpty(t, first.header["X-Request-Id"])
	require.Equal(t, first.header["X-Request-Id"], retry.header["X-Request-Id"])
}

func bodyReaderOutside(t *testing.T, w *orderServer) {
	r := w.send(t, w.reading(guarding), ask{key: rand.Text()})
	require.Equal(t, 500, r.status)
	require.Contains(t, r.body, "body-consumed")
	require.Zero(t, total(r))
}

// A middleware that reads the body reads all of the body inside the guard.
func TestReadsInside(t *testing.T) {
	t.Parallel()
	w := newOrderServer(t)
	service := w.reading(authentication)
	key := rand.Text()
	first, retry := w.send(t, service, ask{key: key}), w.send(t, service, ask{key: key})
	require.Equal(t, 201, first.status)
	require.Equal(t, "4200", first.header.Get("Read"))
	require.True(t, retry.replayed())
	require.Equal(t, first.lasting(), retry.lasting())
}

// reading returns a service with a middleware that reads the body. If next is the guard, the middleware is inside
// the guard; otherwise the middleware is outside.
func (w *orderServer) reading(next part) http.Handler {
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

// The page describes the results of TestOrders and TestMisplaced.
func TestOrderTable(t *testing.T) {
	t.Parallel()
	requireTable(t, "../../docs/mounting.md", orderTable())
}

func orderTable() string {
	var b strings.Builder
	b.WriteString("\n")
	line(&b, "middleware", "its place", "otherwise")
	line(&b, "---", "---", "---")
	for _, p := range places {
		line(&b, p.what, p.where, p.otherwise)
	}
	b.WriteString("\n")
	return b.String()
}
