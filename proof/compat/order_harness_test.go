package compat_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/cors"
	"github.com/go-chi/httplog/v3"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// part is one middleware of a service.
type part string

const (
	tracing        part = "tracing"
	accessLog      part = "access log"
	recovery       part = "recovery"
	crossOrigin    part = "CORS"
	compression    part = "compression"
	ctxTimeout     part = "timeout" // chi's timeout, which ends the context
	deadline       part = "http.TimeoutHandler"
	authentication part = "authentication"
	guarding       part = "idempotency"
	handling       part = "handler" // the innermost part
)

// order is the middlewares of a service, the outermost first.
type order []part

// outside reports whether a is outside of b. Every part is outside of the handler.
func (o order) outside(a, b part) bool {
	for _, p := range o {
		if p == b {
			return false
		}
		if p == a {
			return true
		}
	}
	return false
}

func (o order) String() string {
	names := make([]string, len(o))
	for i, p := range o {
		names[i] = string(p)
	}
	return strings.Join(names, " > ")
}

const (
	origin  = "https://shop.example"
	payment = `{"charge":"1","note":"this text is long enough to be worth a compression, is it not?"}`
)

// visit is a request to a service, with the traces of the request in the service.
type visit struct {
	service  http.Handler
	done     chan struct{}          // closed when the server has finished the request
	answered chan struct{}          // closed when the client has its answer
	settled  chan idempotency.Event // receives the event of the request, if the request has reached the guard with a key
	goOn     chan struct{}          // lets a hanging handler continue
	finished chan struct{}          // closed when a hanging handler has continued
	patience time.Duration          // how long a late handler waits until the client has an answer

	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
	lines []accessLine
	runs  int // runs of the handler
}

type accessLine struct{ status, bytes int64 }

type visitKey struct{}

func visitOf(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

// orderServer is a real server with many services. Each service is a chi router with the same middlewares in a different
// order. The services share the guard and the guard's store, but no keys.
type orderServer struct {
	url    string
	client *http.Client
	visits sync.Map // by the header Visit
	guard  *idempotency.Middleware
	parts  map[part]layer
}

func newOrderServer(t *testing.T) *orderServer {
	t.Helper()
	transport := &http.Transport{
		DialContext: servertest.Dial, MaxIdleConnsPerHost: 32, DisableCompression: true, // keeps replies as they were sent
	}
	w := &orderServer{client: &http.Client{Timeout: long, Transport: transport}}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spanKeeper{}))
	telemetry, err := otelidempotency.New(otelidempotency.Options{TracerProvider: traces})
	require.NoError(t, err)
	w.guard, err = idempotency.New(newStore(), tokenUser, idempotency.Options{
		Logger: slog.New(slog.DiscardHandler),
		Observer: func(ctx context.Context, e idempotency.Event) {
			telemetry.Observe(ctx, e)
			trySend(visitOf(ctx).settled, e)
		},
	})
	require.NoError(t, err)
	w.parts = map[part]layer{
		tracing: otelhttp.NewMiddleware("payments", otelhttp.WithTracerProvider(traces)),
		accessLog: httplog.RequestLogger(slog.New(lineKeeper{}), &httplog.Options{
			Schema: &accessSchema, Level: slog.LevelDebug, // logs preflights as well
		}),
		recovery: middleware.Recoverer,
		crossOrigin: cors.Handler(cors.Options{
			AllowedOrigins: []string{origin, "https://other.example"},
			AllowedHeaders: []string{"Authorization", "Idempotency-Key"}, ExposedHeaders: []string{marker},
		}),
		compression:    middleware.Compress(5),
		ctxTimeout:     byHurry(middleware.Timeout),
		deadline:       byHurry(timeLimit),
		authentication: bearer,
		guarding:       w.guard.Handler,
	}
	server := http1.listen(t, quietly(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		found, _ := w.visits.Load(r.Header.Get("Visit"))
		v := found.(*visit)
		defer close(v.done)
		v.service.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})))
	w.url = server.URL
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

// open returns a service with middlewares in the given order. The guard and the middlewares inside the guard are
// mounted on the route, the other middlewares on the router.
func (w *orderServer) open(o order) http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.RequestID, freshID)
	at := slices.Index(o, guarding)
	for _, p := range o[:at] {
		r.Use(w.parts[p])
	}
	var inner []func(http.Handler) http.Handler
	for _, p := range o[at:] {
		inner = append(inner, w.parts[p])
	}
	r.With(inner...).Post("/payments", pay)
	return r
}

// pay is the handler. The header Do names its behaviour.
func pay(w http.ResponseWriter, r *http.Request) {
	v := visitOf(r.Context())
	v.mu.Lock()
	v.runs++
	v.mu.Unlock()
	switch r.Header.Get("Do") {
	case "panic":
		panic("the handler is broken")
	case "give up":
		v.tooLate(r.Context())
		return
	case "finish late":
		v.tooLate(r.Context())
	case "hang":
		<-v.goOn
		close(v.finished)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/payments/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, payment)
}

// tooLate waits until the time is up. If a middleware answers then, tooLate waits until the client has that answer.
func (v *visit) tooLate(ctx context.Context) {
	if tooLong(ctx) == nil {
		return
	}
	select {
	case <-v.answered:
	case <-time.After(v.patience):
	}
}

// freshID returns the request ID in a field of the answer, so that each answer is different.
func freshID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", middleware.GetReqID(r.Context()))
		next.ServeHTTP(w, r)
	})
}

// byHurry gives a request with the header Hurry little time.
func byHurry(limit func(time.Duration) layer) layer {
	return func(next http.Handler) http.Handler {
		slow, fast := limit(long)(next), limit(shortly)(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Hurry") != "" {
				fast.ServeHTTP(w, r)
				return
			}
			slow.ServeHTTP(w, r)
		})
	}
}

func timeLimit(d time.Duration) layer {
	return func(next http.Handler) http.Handler { return http.TimeoutHandler(next, d, "late") }
}

type tokenKey struct{}

// bearer accepts every token, and takes the token as the name of the user.
func bearer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, user)))
	})
}

// tokenUser returns the user whom bearer has accepted.
func tokenUser(r *http.Request) (string, error) {
	user, _ := r.Context().Value(tokenKey{}).(string)
	return user, nil
}

// spanKeeper stores the spans of a visit.
type spanKeeper struct{}

func (spanKeeper) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	v := visitOf(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.spans = append(v.spans, s)
}
func (spanKeeper) OnEnd(sdktrace.ReadOnlySpan)      {}
func (spanKeeper) Shutdown(context.Context) error   { return nil }
func (spanKeeper) ForceFlush(context.Context) error { return nil }

// lineKeeper stores the access log lines of a visit.
type lineKeeper struct{}

var accessSchema = httplog.Schema{ResponseStatus: "status", ResponseBytes: "bytes"}

func (lineKeeper) Enabled(context.Context, slog.Level) bool { return true }
func (k lineKeeper) WithAttrs([]slog.Attr) slog.Handler     { return k }
func (k lineKeeper) WithGroup(string) slog.Handler          { return k }

func (lineKeeper) Handle(ctx context.Context, r slog.Record) error {
	var l accessLine
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "status":
			l.status = a.Value.Int64()
		case "bytes":
			l.bytes = a.Value.Int64()
		}
		return true
	})
	v := visitOf(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lines = append(v.lines, l)
	return nil
}

// ask describes a request. The zero value is the usual request, apart from the key.
type ask struct {
	method   string // empty: POST
	path     string // empty: /payments
	key      string
	stranger bool   // the request has no token
	origin   string // empty: the shop
	gzip     bool   // the client accepts gzip
	body     string
	do       string // the behaviour of pay
	hurry    bool
}

// reply is an answer as sent, and as the client reads it.
type reply struct {
	*visit
	status int
	header http.Header
	raw    []byte
	body   string
	gzip   bool // the client accepts gzip
}

func (r reply) replayed() bool { return slices.Equal(r.header[marker], []string{"true"}) }

// send sends a request to a service, and waits until the server has finished the request.
func (w *orderServer) send(t *testing.T, service http.Handler, a ask) reply {
	t.Helper()
	return w.sendPatiently(t, service, a, 0)
}

// sendPatiently makes a late handler wait until the client has an answer, for at most patience.
func (w *orderServer) sendPatiently(t *testing.T, service http.Handler, a ask, patience time.Duration) reply {
	t.Helper()
	v := &visit{
		service: service, patience: patience,
		goOn: make(chan struct{}), finished: make(chan struct{}),
		done: make(chan struct{}), answered: make(chan struct{}), settled: make(chan idempotency.Event, 1),
	}
	id := rand.Text()
	w.visits.Store(id, v)
	defer w.visits.Delete(id)
	method, path := cmp.Or(a.method, http.MethodPost), cmp.Or(a.path, "/payments")
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(cmp.Or(a.body, "4200")))
	require.NoError(t, err)
	r.GetBody = nil // otherwise net/http repeats a request whose connection broke
	for name, value := range map[string]string{
		"Visit": id, "Idempotency-Key": a.key, "Do": a.do, "Origin": cmp.Or(a.origin, origin),
		"Authorization":   map[bool]string{false: "Bearer alice"}[a.stranger],
		"Accept-Encoding": map[bool]string{true: "gzip"}[a.gzip],
		"Hurry":           map[bool]string{true: "yes"}[a.hurry],
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	if method == http.MethodOptions {
		r.Header.Del("Idempotency-Key") // a browser sends only the name of the field
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		r.Header.Set("Access-Control-Request-Headers", "authorization,idempotency-key")
	}
	resp, err := w.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	close(v.answered)
	receive(t, v.done)
	return reply{v, resp.StatusCode, resp.Header, raw, readable(t, resp.Header, raw), a.gzip}
}

// readable returns a body, decompressed.
func readable(t *testing.T, header http.Header, raw []byte) string {
	t.Helper()
	if header.Get("Content-Encoding") == "" || len(raw) == 0 {
		return string(raw)
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	require.NoError(t, err)
	body, err := io.ReadAll(z)
	require.NoError(t, err)
	return string(body)
}

// lasting returns the fields of an answer that the answer to a retry must also have.
func (r reply) lasting(but ...string) http.Header {
	h := maps.Clone(r.header)
	for _, name := range append(but, "Date", "X-Request-Id", marker) {
		delete(h, name)
	}
	return h
}

// total returns the number of the handler's runs.
func total(replies ...reply) (runs int) {
	for _, r := range replies {
		r.mu.Lock()
		runs += r.runs
		r.mu.Unlock()
	}
	return runs
}
