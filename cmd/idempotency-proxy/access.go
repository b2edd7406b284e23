package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// accessLog writes one line of JSON for each request, when it has ended. It shows no query, key or user.
type accessLog struct{ lines *slog.Logger }

// newAccessLog returns a log that writes to out, or nil.
func newAccessLog(c *config, out io.Writer) *accessLog {
	if !c.accessLog {
		return nil
	}
	return &accessLog{slog.New(slog.NewJSONHandler(out, nil))}
}

// access is what becomes of a request.
type access struct {
	complete bool // false if the connection is to break

	mu      sync.Mutex
	outcome idempotency.Outcome
}

type accessKey struct{}

// noteOutcome tells the access log of a request, if there is one, what the middleware has done.
func noteOutcome(ctx context.Context, outcome idempotency.Outcome) {
	if a, ok := ctx.Value(accessKey{}).(*access); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.outcome = outcome
	}
}

// handler has requests logged that next answers. Without a log, it is next.
func (l *accessLog) handler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, a, answer := time.Now(), new(access), &answerWriter{ResponseWriter: w}
		defer func() { l.write(r, answer, a, time.Since(began)) }()
		next.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), accessKey{}, a)))
		a.complete = true
	})
}

func (l *accessLog) write(r *http.Request, answer *answerWriter, a *access, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	l.lines.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("peer", peer), slog.String("method", r.Method), slog.String("host", r.Host),
		slog.String("path", r.URL.EscapedPath()), slog.String("proto", r.Proto),
		slog.Int("status", answer.status), slog.Int64("bytes", answer.bytes), slog.Bool("complete", a.complete),
		slog.Float64("seconds", took.Seconds()), slog.String("outcome", string(a.outcome)))
}

// answerWriter counts what is answered. The status is 0 if nothing was.
type answerWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// Unwrap lets http.ResponseController get at what the writer below can do.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack is asked for when the protocol is switched.
func (w *answerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, buffers, err
}

func (w *answerWriter) WriteHeader(status int) {
	if w.status < http.StatusOK { // one of those of information may be first
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(b []byte) (int, error) {
	if w.status < http.StatusOK {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}
