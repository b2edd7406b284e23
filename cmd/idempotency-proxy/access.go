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

// accessLog writes a line of JSON for each request when the request has ended. The log is free of queries, keys and users.
type accessLog struct{ logger *slog.Logger }

// newAccessLog returns a log that writes to out, or nil without -access-log.
func newAccessLog(c *config, out io.Writer) *accessLog {
	if !c.hasAccessLog {
		return nil
	}
	return &accessLog{slog.New(slog.NewJSONHandler(out, nil))}
}

// accessRecord is the result of a request.
type accessRecord struct {
	isComplete bool // false if the handler has panicked, which breaks the connection

	mu      sync.Mutex
	outcome idempotency.Outcome
}

type accessContextKey struct{}

// noteOutcome sets the outcome of a request in the access log. Without an access log, noteOutcome has no effect.
func noteOutcome(ctx context.Context, outcome idempotency.Outcome) {
	if record, ok := ctx.Value(accessContextKey{}).(*accessRecord); ok {
		record.mu.Lock()
		defer record.mu.Unlock()
		record.outcome = outcome
	}
}

// wrapHandler returns a handler that logs the requests to next. wrapHandler returns next if l is nil.
func (l *accessLog) wrapHandler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		startedAt, record, answer := time.Now(), new(accessRecord), &answerWriter{ResponseWriter: w}
		defer func() { l.writeEntry(r, answer, record, time.Since(startedAt)) }()
		next.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), accessContextKey{}, record)))
		record.isComplete = true
	})
}

func (l *accessLog) writeEntry(r *http.Request, answer *answerWriter, record *accessRecord, duration time.Duration) {
	record.mu.Lock()
	defer record.mu.Unlock()
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	l.logger.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("peer", peer), slog.String("method", r.Method), slog.String("host", r.Host),
		slog.String("path", r.URL.EscapedPath()), slog.String("proto", r.Proto),
		slog.Int("status", answer.status), slog.Int64("bytes", answer.bytesWritten), slog.Bool("complete", record.isComplete),
		slog.Float64("seconds", duration.Seconds()), slog.String("outcome", string(record.outcome)))
}

// answerWriter records the status of an answer and the number of bytes. The status is 0 before the answer.
type answerWriter struct {
	http.ResponseWriter
	status       int
	bytesWritten int64
}

// Unwrap is for [http.ResponseController].
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack records the switch to another protocol.
func (w *answerWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, buffers, err
}

func (w *answerWriter) WriteHeader(status int) {
	if w.status < http.StatusOK { // an informational response may come first
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(b []byte) (int, error) {
	if w.status < http.StatusOK {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytesWritten += int64(n)
	return n, err
}
