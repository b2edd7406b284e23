package main

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
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

// wrapHandler returns a handler that logs the requests to next. wrapHandler returns next if l is nil.
func (l *accessLog) wrapHandler(next http.Handler) http.Handler {
	if l == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		startedAt, answer, isComplete := time.Now(), &answerWriter{ResponseWriter: w}, false
		ctx, report := idempotency.WithReport(r.Context())
		defer func() {
			l.writeEntry(r, answer, slog.Bool("complete", isComplete), slog.Float64("seconds", time.Since(startedAt).Seconds()),
				slog.Any("", report))
		}()
		next.ServeHTTP(answer, r.WithContext(ctx))
		isComplete = true // after a panic, which breaks the connection, isComplete stays false
	})
}

// writeEntry writes the line of a request. The attributes of the empty key in result stand beside the others.
func (l *accessLog) writeEntry(r *http.Request, answer *answerWriter, result ...slog.Attr) {
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	l.logger.LogAttrs(r.Context(), slog.LevelInfo, "request", append([]slog.Attr{
		slog.String("peer", peer), slog.String("method", r.Method), slog.String("host", r.Host),
		slog.String("path", r.URL.EscapedPath()), slog.String("proto", r.Proto),
		slog.Int("status", answer.status), slog.Int64("bytes", answer.bytesWritten),
	}, result...)...)
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
