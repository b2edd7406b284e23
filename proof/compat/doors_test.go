package compat_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// guardian is a middleware of package idempotency or upload, as the adapters accept it.
type guardian = interface {
	Handler(next http.Handler) http.Handler
}

// doors are the frameworks of services. TestDoors tests each way to answer that the documentation of a framework
// shows. The table in docs/frameworks.md has the results.
//
// To add a framework, write a file doors_NAME_test.go with a function that returns the door, and add the function
// here. Then write the table:
//
//	go test ./proof/compat -run TestFrameworksTable -write
//
// A way is a handler on its own server, with or without the guard:
//
//	way{asJSON, "c.JSON(201, charge)", replayed, func(t testing.TB, s *stage) string {
//		app := framework.New()
//		if s.guarded {
//			app.Use(adapter.Middleware(s.middleware(t)))
//		}
//		app.POST("/charges", func(c framework.Context) error { s.enter(); return c.JSON(201, charge) })
//		return s.listen(t, app) + "/charges"
//	}}
//
// For a framework without net/http, the function starts the framework's own server, makes the guard with s.options
// or s.runner, and returns the URL.
var doors = []func() door{
	serveMuxDoor,
	chiDoor,
	gorillaDoor,
	echoDoor,
	echo4Door,
	ginDoor,
	fiberDoor,
	humaDoor,
	oapiDoor,
	connectDoor,
	gatewayDoor,
	proxyDoor,
}

// door is a framework with its ways to answer.
type door struct {
	name string // with the major version, if several versions are tested
	ways []way
}

// way is one way to answer, or a handler together with a layer of the framework.
type way struct {
	kind  kind   // the line in the table of docs/frameworks.md
	name  string // what the handler does, in the words of the framework's documentation
	retry fate
	serve func(t testing.TB, s *stage) (url string)
}

// kind is a kind of answer, and a line of the table in docs/frameworks.md.
type kind string

const (
	returned     kind = "return value"
	erring       kind = "error"
	aborting     kind = "abort"
	panicking    kind = "panic"
	asJSON       kind = "JSON"
	asString     kind = "string"
	asFile       kind = "file"
	redirecting  kind = "redirect"
	streaming    kind = "stream"
	statusOnly   kind = "status only"
	silently     kind = "nothing"
	leaving      kind = "client leaves" // the handler waits by stage.wait, and the first client leaves in the meantime
	timingOut    kind = "timeout"
	errorHandler kind = "error handler"
	recovering   kind = "recovery"
	compressOut  kind = "compression outside"
	compressIn   kind = "compression inside"
)

var kinds = []kind{
	returned, erring, aborting, panicking, asJSON, asString, asFile, redirecting, streaming, statusOnly, silently,
	leaving, timingOut, errorHandler, recovering, compressOut, compressIn,
}

// fate says whether a retry is replayed or runs again. In both cases the answer equals the answer of the unguarded
// handler.
type fate string

const (
	replayed  fate = "replayed"
	runsAgain fate = "runs again"
)

func TestDoors(t *testing.T) {
	t.Parallel()
	for _, open := range doors {
		d := open()
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			for _, w := range d.ways {
				test := w.test
				if w.kind == timingOut && d.name != fiberName {
					test = w.testInBubble
				}
				t.Run(string(w.kind)+"/"+w.name, test)
			}
		})
	}
}

// test requires that three answers are equal: the unguarded answer, the first guarded answer, and the answer to the
// retry. There is no first answer if the client leaves.
func (w way) test(t *testing.T) {
	t.Parallel()
	w.play(t)
}

// testInBubble runs test in a bubble of testing/synctest, where no timeout expires before the handler runs.
func (w way) testInBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, w.play)
}

func (w way) play(t *testing.T) {
	bare, guarded := newStage(t, false), newStage(t, true)
	bareURL, url := w.serve(t, bare), w.serve(t, guarded)
	if w.kind == leaving {
		guarded.leave(t, url, "key")
	}
	bare.goOn()
	guarded.goOn()
	want := sendToURL(t.Context(), bareURL, "")
	if !slices.Contains([]kind{panicking, aborting, recovering}, w.kind) {
		require.NotEqual(t, broken, want.status)
	}
	if w.kind != leaving {
		requireSame(t, want, sendToURL(t.Context(), url, "key"))
	}
	receive(t, guarded.settled)

	retry := sendToURL(t.Context(), url, "key")
	requireSame(t, want, retry.unmarked())
	require.Equal(t, w.retry == replayed, retry.replayed())
	require.EqualValues(t, 1, bare.runs.Load())
	require.EqualValues(t, map[fate]int{replayed: 1, runsAgain: 2}[w.retry], guarded.runs.Load())
}

// requireSame compares two answers. If net/http did not know the length of the wanted answer before sending, the
// other answer may have a Content-Length, because the field belongs to the framing.
func requireSame(t *testing.T, want, got answer) {
	t.Helper()
	if want.header.Get("Content-Length") == "" && got.header != nil {
		got.header.Del("Content-Length")
	}
	require.Equal(t, want, got)
}

// sendToURL sends a request, with key unless key is empty. The returned answer has every field except Date.
func sendToURL(ctx context.Context, url, key string) answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount":4200}`))
	if err != nil {
		return answer{status: broken, body: err.Error()}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept-Encoding", "gzip") // set by hand, so that net/http does not decompress the answer
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	transport := &http.Transport{DialContext: servertest.Dial, DisableKeepAlives: true, Protocols: new(http.Protocols)}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return answer{status: broken}
	}
	defer resp.Body.Close()
	body, err := decoded(resp)
	if err != nil {
		return answer{status: broken}
	}
	resp.Header.Del("Date")
	compressed := resp.Header.Get("Content-Encoding") == "gzip"
	if compressed {
		resp.Header.Del("Content-Length") // the compressed length depends on how the answer was cut into pieces
	}
	return answer{strconv.Itoa(resp.StatusCode), resp.Header, resp.Trailer, body, compressed}
}

// decoded returns the body, decompressed.
func decoded(resp *http.Response) (string, error) {
	body, err := io.ReadAll(resp.Body)
	if err != nil || len(body) == 0 || resp.Header.Get("Content-Encoding") != "gzip" {
		return string(body), err
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	body, err = io.ReadAll(z)
	return string(body), err
}

// stage is a service whose handler answers in one way.
type stage struct {
	guarded bool
	runs    atomic.Int64             // runs of the handler
	entered chan struct{}            // receives a value when a handler waits
	left    chan struct{}            // receives a value when a request has ended; nil if the server cannot tell
	settled chan idempotency.Outcome // receives the outcome of a guarded request
	waiting context.Context          // ends when handlers may continue
	goOn    func()
}

func newStage(t testing.TB, guarded bool) *stage {
	t.Helper()
	const many = 10
	s := &stage{
		guarded: guarded, entered: make(chan struct{}, many), settled: make(chan idempotency.Outcome, many),
	}
	s.waiting, s.goOn = context.WithCancel(context.Background())
	return s
}

// options returns the options of the guard.
func (s *stage) options() idempotency.Options {
	return idempotency.Options{
		Logger:   slog.New(slog.DiscardHandler),
		Observer: func(_ context.Context, e idempotency.Event) { trySend(s.settled, e.Outcome) },
	}
}

// middleware returns the guard of a net/http service.
func (s *stage) middleware(t testing.TB) *idempotency.Middleware {
	t.Helper()
	m, err := idempotency.New(newStore(), idempotency.SingleUser, s.options())
	require.NoError(t, err)
	return m
}

// guard puts the guard around a handler if the stage is guarded.
func (s *stage) guard(t testing.TB, next http.Handler) http.Handler {
	t.Helper()
	if !s.guarded {
		return next
	}
	return s.middleware(t).Handler(next)
}

// enter counts a run of the handler. The handler calls enter first.
func (s *stage) enter() { s.runs.Add(1) }

// wait makes a handler wait for goOn. The error is not nil if ctx ends before.
func (s *stage) wait(ctx context.Context) error {
	trySend(s.entered, struct{}{})
	select {
	case <-s.waiting.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listen starts a net/http server, and returns its URL.
func (s *stage) listen(t testing.TB, handler http.Handler) (url string) {
	t.Helper()
	s.left = make(chan struct{}, cap(s.entered))
	server := http1.listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { trySend(s.left, struct{}{}) })
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.goOn) // runs before the server is closed
	return server.URL
}

// leave sends a request, and leaves while the handler waits.
func (s *stage) leave(t *testing.T, url, key string) {
	t.Helper()
	ctx, leave := context.WithTimeout(t.Context(), long)
	defer leave()
	got := make(chan answer, 1)
	go func() { got <- sendToURL(ctx, url, key) }()
	receive(t, s.entered)
	leave()
	require.Equal(t, broken, receive(t, got).status)
	if s.left != nil {
		receive(t, s.left)
	}
}

// tooLong waits until ctx ends, in a handler that is never told to continue.
func tooLong(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long):
		return nil
	}
}
