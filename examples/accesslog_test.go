package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httplog/v3"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// accessLogs are the access logs of docs/operating.md, each with the line that adds what became of a request.
var accessLogs = map[string]func(*slog.Logger) func(http.Handler) http.Handler{
	"slog": func(logger *slog.Logger) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, report := idempotency.WithReport(r.Context())
				defer func() { logger.InfoContext(ctx, r.Method+" "+r.URL.Path, "idempotency", report) }()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		}
	},
	"httplog": func(logger *slog.Logger) func(http.Handler) http.Handler {
		options := &httplog.Options{Level: slog.LevelDebug}
		return func(next http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(httplog.RequestLogger(logger, options), idempotency.ReportTo(httplog.SetAttrs))
			r.Handle("/*", next)
			return r
		}
	},
}

// accessLine is what a line of an access log says about a request.
type accessLine struct {
	Outcome   idempotency.Outcome
	Attempt   int
	Operation string
	Refusal   string
}

// loggedService is a service inside of an access log.
type loggedService struct {
	*testservice.Service
	handlerEntered chan bool // receives a value when the handler begins to wait
	releaseHandler chan bool // a value lets the handler answer
	endRequest     context.CancelFunc

	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes the lines of the access log.
func (s *loggedService) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(line)
}

// awaitLines returns the lines when there are n of them, because a server writes the line after the answer.
func (s *loggedService) awaitLines(t *testing.T, n int) (lines []accessLine) {
	t.Helper()
	text := func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.text.String()
	}
	require.Eventually(t, func() bool { return strings.Count(text(), "\n") >= n }, 10*time.Second, time.Millisecond)
	for line := range strings.Lines(text()) {
		var logged struct{ Idempotency accessLine }
		require.NoError(t, json.Unmarshal([]byte(line), &logged), line)
		require.NotContains(t, line, keyOfPayment, "the log is free of keys")
		lines = append(lines, logged.Idempotency)
	}
	require.Len(t, lines, n)
	return lines
}

// charge answers 201. The body of the request may ask for another ending.
func (s *loggedService) charge(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	op, _ := idempotency.FromContext(r.Context())
	switch string(body) {
	case "wait":
		s.handlerEntered <- true
		<-s.releaseHandler
	case "wait until the client has left":
		s.handlerEntered <- true
		<-r.Context().Value(outerContextKey{}).(context.Context).Done()
	case "panic at first":
		if op.Attempt == 1 {
			panic("the provider is away")
		}
	}
	w.WriteHeader(http.StatusCreated)
}

type outerContextKey struct{}

// keepOuterContext puts the context of the request into a value, because the context of a handler outlives the client.
func (s *loggedService) keepOuterContext(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		s.mu.Lock()
		s.endRequest = cancel // of the last request
		s.mu.Unlock()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, outerContextKey{}, ctx)))
	})
}

const keyOfPayment = "order-4711"

// postWaiting sends a request whose handler waits, and returns when the handler runs.
func (s *loggedService) postWaiting() (answered chan testservice.Answer) {
	answered = make(chan testservice.Answer, 1)
	go func() { answered <- s.Send("/payments", keyOfPayment, "wait") }()
	<-s.handlerEntered
	return answered
}

// postAndLeave sends a request, and hangs up after reached has received a value.
func (s *loggedService) postAndLeave(t *testing.T, body string, reached <-chan bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan testservice.Answer, 1)
	go func() { answered <- s.Send("/payments", keyOfPayment, body, testservice.WithContext(ctx)) }()
	<-reached
	cancel()
	require.Error(t, (<-answered).Err)
}

// An access log says what became of each request, whichever way the request ends.
func TestAccessLogs(t *testing.T) {
	t.Parallel()
	operation := idempotency.Key{User: "single", Endpoint: "POST /payments", ID: keyOfPayment}.OperationID().String()
	for name, row := range map[string]struct {
		opts         idempotency.Options
		hasTimeout   bool // whether an http.TimeoutHandler is inside of the access log
		sendRequests func(*testing.T, *loggedService)
		want         []accessLine
	}{
		"execution and replay": {
			sendRequests: func(t *testing.T, s *loggedService) {
				require.Equal(t, 201, s.Post(keyOfPayment, "42.00").Status)
				s.awaitLines(t, 1)
				require.True(t, s.Post(keyOfPayment, "42.00").Replayed())
			},
			want: []accessLine{{"executed", 1, operation, ""}, {"replayed", 1, operation, ""}},
		},
		"key reused": {
			sendRequests: func(t *testing.T, s *loggedService) {
				s.Post(keyOfPayment, "42.00")
				s.awaitLines(t, 1)
				require.Equal(t, 409, s.Post(keyOfPayment, "99.00").Status)
			},
			want: []accessLine{{"executed", 1, operation, ""}, {"key-reused", 1, operation, ""}},
		},
		"in progress": {
			sendRequests: func(t *testing.T, s *loggedService) {
				first := s.postWaiting()
				require.Equal(t, 409, s.Post(keyOfPayment, "wait").Status)
				s.awaitLines(t, 1)
				s.releaseHandler <- true
				require.Equal(t, 201, (<-first).Status)
			},
			want: []accessLine{{"in-progress", 1, operation, ""}, {"executed", 1, operation, ""}},
		},
		"key invalid": {
			sendRequests: func(t *testing.T, s *loggedService) { require.Equal(t, 400, s.Post("two words", "42.00").Status) },
			want:         []accessLine{{"rejected", 0, "", "key-invalid"}},
		},
		"key missing": {
			opts:         idempotency.Options{Required: true},
			sendRequests: func(t *testing.T, s *loggedService) { require.Equal(t, 400, s.Post("", "42.00").Status) },
			want:         []accessLine{{"rejected", 0, "", "key-missing"}},
		},
		"no key, and an unguarded method": {
			sendRequests: func(t *testing.T, s *loggedService) {
				require.Equal(t, 201, s.Post("", "42.00").Status)
				require.Equal(t, 201, s.Post(keyOfPayment, "", testservice.WithMethod("PUT")).Status)
			},
			want: []accessLine{{}, {}},
		},
		"panic, and a second attempt": {
			sendRequests: func(t *testing.T, s *loggedService) {
				require.Error(t, s.Send("/payments", keyOfPayment, "panic at first").Err)
				s.awaitLines(t, 1)
				require.Equal(t, 201, s.Post(keyOfPayment, "panic at first").Status)
			},
			want: []accessLine{{"released", 1, operation, ""}, {"executed", 2, operation, ""}},
		},
		"store down": {
			sendRequests: func(t *testing.T, s *loggedService) {
				s.Store.OnBegin = func(context.Context, int64, func() error) error { return errors.New("down") }
				require.Equal(t, 503, s.Post(keyOfPayment, "42.00").Status)
			},
			want: []accessLine{{"store-unavailable", 0, operation, ""}},
		},
		"the client left while the handler ran": {
			sendRequests: func(t *testing.T, s *loggedService) {
				s.postAndLeave(t, "wait until the client has left", s.handlerEntered)
			},
			want: []accessLine{{"executed", 1, operation, ""}},
		},
		"the client left while it waited": {
			opts: idempotency.Options{Wait: time.Minute},
			sendRequests: func(t *testing.T, s *loggedService) {
				first, isHeld := s.postWaiting(), make(chan bool, 1)
				s.Store.OnBegin = func(_ context.Context, _ int64, step func() error) error {
					defer func() { isHeld <- true }()
					return step()
				}
				s.postAndLeave(t, "wait", isHeld)
				s.awaitLines(t, 1)
				s.releaseHandler <- true
				require.Equal(t, 201, (<-first).Status)
			},
			want: []accessLine{{"client-left", 1, operation, ""}, {"executed", 1, operation, ""}},
		},
		"http.TimeoutHandler inside has answered before": {
			hasTimeout: true,
			sendRequests: func(t *testing.T, s *loggedService) {
				answered := s.postWaiting()
				s.endRequest()
				require.Equal(t, 503, (<-answered).Status)
				s.awaitLines(t, 1)
				s.releaseHandler <- true
				require.Eventually(t, func() bool { return len(s.Journal.All()) == 1 }, 10*time.Second, time.Millisecond)
			},
			want: []accessLine{{}},
		},
	} {
		for logName, accessLog := range accessLogs {
			t.Run(name+"/"+logName, func(t *testing.T) {
				t.Parallel()
				s := &loggedService{handlerEntered: make(chan bool), releaseHandler: make(chan bool)}
				addLog := accessLog(slog.New(slog.NewJSONHandler(s, nil)))
				s.Service = testservice.Setup{Opts: row.opts, Outer: func(guarded http.Handler) http.Handler {
					if row.hasTimeout {
						guarded = http.TimeoutHandler(guarded, time.Minute, "")
					}
					return addLog(s.keepOuterContext(guarded))
				}}.Serve(t, s.charge)
				row.sendRequests(t, s)
				require.Equal(t, row.want, s.awaitLines(t, len(row.want)))
			})
		}
	}
}

// The lines in docs/operating.md are the lines of accessLogs.
func TestOperatingShowsTheAccessLogs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operating.md")
	require.NoError(t, err)
	source, err := os.ReadFile("accesslog_test.go")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Access log\n")
	section, _, _ = strings.Cut(section, "\n## ")
	snippets := snippetPattern.FindAllStringSubmatch(section, -1)
	require.Len(t, snippets, len(accessLogs))
	for _, snippet := range snippets {
		require.Contains(t, removeIndentation(string(source)), snippet[1])
	}
}
