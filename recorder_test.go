package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// scenario is a handler that uses its http.ResponseWriter in a certain way. The tests compare three answers: the answer
// of the bare handler, the first answer of the guarded handler, and the replay.
type scenario struct {
	name        string
	handler     http.HandlerFunc
	editRequest func(*http.Request)
	opts        idempotency.Options
	outer       func(http.Handler) http.Handler // middleware around the guarded handler, and around the bare handler

	lacksLength      bool // the bare server sends no Content-Length, although the body is small
	firstLacksLength bool // the first answer has no Content-Length either; implied by Stream
	isCutOff         bool // the bare server cuts the answer off, so nothing is stored
	isNotReplayable  bool // the answer cannot be sent again, and a retry gets the refusal not-replayable
}

var scenarios = []scenario{
	// Status and header.
	{name: "nothing written", handler: func(http.ResponseWriter, *http.Request) {}},
	{name: "status only", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }},
	{name: "body only", handler: writeChunks("hello")},
	{name: "empty write", handler: func(w http.ResponseWriter, r *http.Request) {
		logResult(r)(w.Write(nil))
		w.WriteHeader(http.StatusTeapot)
	}},
	{name: "header, status, body", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/payments/1")
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.Header().Set("Cache-Control", "private")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":1}`)
	}},
	{name: "client error", handler: func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusUnprocessableEntity)
	}},
	{name: "redirect", handler: func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusSeeOther)
	}},
	{name: "status twice", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusTeapot)
		w.WriteHeader(0)
	}},
	{name: "header after WriteHeader", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Before", "1")
		w.Header()["X-Changed"] = []string{"1", "2"}
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("X-After", "1")
		w.Header()["X-Changed"][0] = "changed"
		w.Header().Del("X-Before")
	}},
	{name: "header after Write", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-After", "1")
		w.WriteHeader(http.StatusTeapot)
	}},
	{name: "many values", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Many"] = []string{"b", "a", "", "b"}
		w.Header()["Set-Cookie"] = []string{"a=1; Expires=Thu, 01 Jan 2099 00:00:00 GMT", "b=2"}
	}},
	{name: "odd names and values", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["x-lower"] = []string{"1"}
		w.Header()["X-lOWER"] = []string{"2"}
		w.Header()["X-Nil"] = nil
		w.Header()["X-Empty"] = []string{""}
		w.Header()["X-Colon"] = []string{"a:b: c\\d"}
		w.Header()["Bad Name"] = []string{"dropped"}
		w.Header()[""] = []string{"dropped"}
		w.Header()["X-Space"] = []string{"  a  "}
		w.Header()["X-Obs"] = []string{"caf\xe9"}
	}},
	{name: "line breaks in a value", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Split"] = []string{"a\r\nX-Injected: 1", "b\nc", "d\re"}
	}},
	{name: "Connection: close", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Id", "1")
		w.Header().Set("Connection", "close")
	}},

	// Content-Type and Date.
	{name: "sniffed as HTML", handler: writeChunks("<html><body>hello")},
	{name: "sniffed as text", handler: writeChunks(`{"a":1}`)},
	{name: "sniffed over several writes", handler: writeChunks("<ht", "ml>", strings.Repeat("x", 3000))},
	{name: "sniffed from nothing", handler: writeChunks("")},
	{name: "Content-Type nil", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		writeChunks("<html>")(w, r)
	}},
	{name: "Content-Type empty", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "")
		writeChunks("<html>")(w, r)
	}},
	{name: "Content-Encoding", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		writeChunks("<html>")(w, r)
	}},
	{name: "Content-Encoding empty", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "")
		writeChunks("<html>")(w, r)
	}},
	{name: "Date nil", handler: func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil }},
	{name: "Date set", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
	}},

	// Statuses with rules of their own.
	{name: "204", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusNoContent)
	}},
	{name: "204 with a body", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4")
		w.WriteHeader(http.StatusNoContent)
		logResult(r)(w.Write([]byte("body")))
	}},
	{name: "205", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusResetContent) }},
	{name: "304", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "4")
		w.Header().Set("ETag", `"1"`)
		w.WriteHeader(http.StatusNotModified)
		logResult(r)(w.Write([]byte("body")))
	}},
	{name: "103, 103, 102, 201", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Add("Link", "</b>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.WriteHeader(http.StatusProcessing)
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "done")
	}},
	{name: "103 and nothing else", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
	}},

	// Length and framing.
	{name: "2048 bytes", handler: writeChunks(strings.Repeat("x", 2048))},
	{name: "2049 bytes", handler: writeChunks(strings.Repeat("x", 2048), "x")},
	{name: "100,000 bytes", handler: writeChunks(strings.Repeat("x", 50_000), strings.Repeat("y", 50_000))},
	{name: "Content-Length", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "6")
		writeChunks("<html>")(w, r)
	}},
	{name: "Content-Length of a large body", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		writeChunks(strings.Repeat("x", 100_000))(w, r)
	}},
	{name: "Content-Length too large", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		logResult(r)(w.Write([]byte("abc")))
	}, isCutOff: true},
	{name: "Content-Length of no body", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
	}, isCutOff: true},
	{name: "Content-Length too small", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("abc"))
		_, _ = w.Write([]byte("def"))
	}, isCutOff: true},
	{name: "Content-Length reached, then exceeded", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("abcde"))
		w.(http.Flusher).Flush()
		_, _ = w.Write([]byte("f"))
	}},
	{name: "Content-Length is not a number", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "three")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length negative", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "-1")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length empty", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length empty, then a number", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"", "5"}
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length nil", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = nil
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length with zeros", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "003")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length with a sign", isNotReplayable: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "+3")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length twice", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"3", "3"}
		writeChunks("abc")(w, r)
	}},
	{name: "two lengths", isNotReplayable: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"3", "5"}
		writeChunks("abc")(w, r)
	}},
	{name: "two lengths, streamed", isNotReplayable: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"3", "5"}
		writeChunks("abc")(w, r)
	}, opts: idempotency.Options{Stream: true}},
	{name: "flushed by http.Flusher", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.(http.Flusher).Flush()
		w.WriteHeader(http.StatusTeapot)
		writeChunks("abc", "def")(w, r)
	}},
	{name: "flushed by http.ResponseController", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		writeChunks("abc")(w, r)
		logResult(r)(0, http.NewResponseController(w).Flush())
		w.Header().Set("X-After", "1")
		writeChunks("def")(w, r)
	}},
	{name: "flushed before it can be sniffed", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		writeChunks("<ht")(w, r)
		w.(http.Flusher).Flush()
		writeChunks("ml>")(w, r)
	}},
	{name: "flushed before anything is written", lacksLength: true, handler: func(w http.ResponseWriter, r *http.Request) {
		logResult(r)(0, http.NewResponseController(w).Flush())
		w.WriteHeader(http.StatusTeapot)
	}},
	{name: "Transfer-Encoding chunked", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Transfer-Encoding", "chunked")
		writeChunks("<html>")(w, r)
	}, lacksLength: true, firstLacksLength: true},
	{name: "Transfer-Encoding identity", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Transfer-Encoding", "identity")
		writeChunks("<html>")(w, r)
	}, lacksLength: true, firstLacksLength: true},
	{name: "body copied with io.Copy", handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		n, err := io.Copy(w, struct{ io.Reader }{strings.NewReader("copied")})
		logResult(r)(int(n), err)
	}},
	{name: "HEAD", handler: writeChunks("hello"), editRequest: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},
	{name: "HEAD, large", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 5000)) // the results depend on the protocol, so the log must not contain them
	}, editRequest: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},
	{name: "HEAD, nothing written", handler: writeChunks(),
		editRequest: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},
	{name: "HEAD, length only", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
	}, editRequest: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},

	// Trailers.
	{name: "trailers", handler: writeDeclaredTrailer(3)},
	{name: "trailers, large", handler: writeDeclaredTrailer(10_000)},
	{name: "trailers without a body", handler: writeDeclaredTrailer(0)},
	{name: "trailer declared, not set", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Other")
		writeChunks("abc")(w, r)
		w.Header().Set("X-Other", "2")
	}},
	{name: "trailer declared, and set before the body", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "early")
		writeChunks("abc")(w, r)
	}},
	{name: "trailers set before the body, and not changed afterwards", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "early")
		w.Header().Set(http.TrailerPrefix+"X-Late", "early too")
		writeChunks("abc")(w, r)
	}},
	{name: "trailers of an answer with Content-Length", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3")
		writeDeclaredTrailer(3)(w, r)
	}},
	{name: "Content-Length declared as a trailer", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "content-length, X-Sum")
		writeChunks("abc")(w, r)
		w.Header().Set("Content-Length", "5")
		w.Header().Set("X-Sum", "1")
	}},
	{name: "undeclared trailers", handler: writePrefixedTrailer(3)},
	{name: "undeclared trailers, large", handler: writePrefixedTrailer(10_000)},
	{name: "undeclared trailers, set before the body", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "early")
		writeChunks("abc")(w, r)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "late")
	}},

	// Handlers and middleware of the standard library, and middleware that compresses.
	{name: "ServeContent", handler: serveContent, opts: guardMethods(http.MethodGet), editRequest: withMethod(http.MethodGet)},
	{name: "ServeContent, range", handler: serveContent,
		opts: guardMethods(http.MethodGet), editRequest: withGetField("Range", "bytes=10-19")},
	{name: "ServeContent, bad range", handler: serveContent,
		opts: guardMethods(http.MethodGet), editRequest: withGetField("Range", "bytes=9999999-")},
	{name: "ServeContent, not modified", handler: serveContent,
		opts: guardMethods(http.MethodGet), editRequest: withGetField("If-None-Match", `"v1"`)},
	{name: "ServeContent, HEAD", handler: serveContent,
		opts: guardMethods(http.MethodHead), editRequest: withMethod(http.MethodHead)},
	{name: "gzip inside", handler: func(w http.ResponseWriter, r *http.Request) {
		gzipAnswer(writeChunks(strings.Repeat("hello ", 1000))).ServeHTTP(w, r)
	}, lacksLength: true},
	{name: "gzip outside", handler: writeChunks(strings.Repeat("hello ", 1000)), outer: gzipAnswer, lacksLength: true},
	{name: "field of outer middleware deleted after WriteHeader", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusOK)
		w.Header().Del("X-Outer")
		writeChunks("abc")(w, r)
	}, outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "1")
			next.ServeHTTP(w, r)
		})
	}},
	{name: "TimeoutHandler inside", handler: func(w http.ResponseWriter, r *http.Request) {
		http.TimeoutHandler(writeChunks("in time"), time.Minute, "late").ServeHTTP(w, r)
	}},
	{name: "TimeoutHandler outside", handler: writeChunks("in time"), outer: func(next http.Handler) http.Handler {
		return http.TimeoutHandler(next, time.Minute, "late")
	}},
	{name: "request as the handler sees it", handler: func(w http.ResponseWriter, r *http.Request) {
		dump, err := httputil.DumpRequest(r, true)
		logResult(r)(len(dump), err)
		_, _ = fmt.Fprintf(w, "%s %v %v %s", dump, r.Trailer, r.ContentLength, r.Pattern)
	}, editRequest: func(r *http.Request) {
		r.ContentLength = -1
		r.Header.Set("Expect", "100-continue")
		r.Trailer = http.Header{"X-Sum": {"1"}}
	}},
	{name: "deadlines and full duplex", handler: func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		logResult(r)(0, rc.SetReadDeadline(time.Now().Add(time.Hour)))
		logResult(r)(0, rc.SetWriteDeadline(time.Now().Add(time.Hour)))
		logResult(r)(0, rc.EnableFullDuplex())
		writeChunks("done")(w, r)
	}},

	// Streamed answers.
	{name: "streamed", handler: writeChunks("a", "b"), opts: idempotency.Options{Stream: true}},
	{name: "streamed, large",
		handler: writeChunks(strings.Repeat("x", 1500), "<html>", strings.Repeat("y", 9000)),
		opts:    idempotency.Options{Stream: true}},
	{name: "streamed, nothing written", handler: writeChunks(), opts: idempotency.Options{Stream: true}},
	{name: "trailers set while the answer is buffered", handler: writeTrailersBeforeBody},
	{name: "trailers set before the stream begins", handler: writeTrailersBeforeBody, opts: idempotency.Options{Stream: true}},
	{name: "streamed trailers", handler: writeDeclaredTrailer(10_000), opts: idempotency.Options{Stream: true}},
	{name: "streamed, undeclared trailers", handler: writePrefixedTrailer(10_000), opts: idempotency.Options{Stream: true}},
	{name: "streamed, flushed", handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		logResult(r)(0, http.NewResponseController(w).Flush())
		writeChunks("abc")(w, r)
		w.Header().Set("X-After", "1")
		logResult(r)(0, http.NewResponseController(w).Flush())
	}, opts: idempotency.Options{Stream: true}, lacksLength: true},
	{name: "streamed 204", handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		logResult(r)(0, http.NewResponseController(w).Flush())
		logResult(r)(w.Write([]byte("body")))
	}, opts: idempotency.Options{Stream: true}},
}

// writeChunks returns a handler that writes the chunks one by one.
func writeChunks(chunks ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, chunk := range chunks {
			logResult(r)(io.WriteString(w, chunk))
		}
	}
}

// writeDeclaredTrailer returns a handler that writes size bytes, and sets two of its three declared trailers.
func writeDeclaredTrailer(size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, x-other")
		w.Header().Add("Trailer", "X-Third")
		w.WriteHeader(http.StatusCreated)
		writeChunks(strings.Repeat("x", size))(w, r)
		w.Header()["X-Sum"] = []string{"1", "2"}
		w.Header().Set("X-Third", "3")
		w.Header().Set("X-Undeclared", "4")
	}
}

// writePrefixedTrailer returns a handler that writes size bytes, and sets a trailer with http.TrailerPrefix.
func writePrefixedTrailer(size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		writeChunks(strings.Repeat("x", size))(w, r)
		w.Header()[http.TrailerPrefix+"X-Sum"] = []string{"1", "2"}
	}
}

func serveContent(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"v1"`)
	http.ServeContent(w, r, "page.html", time.Unix(1e9, 0), strings.NewReader(strings.Repeat("<p>hello", 1000)))
}

func withMethod(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }

func withGetField(name, value string) func(*http.Request) {
	return func(r *http.Request) {
		r.Method = http.MethodGet
		r.Header.Set(name, value)
	}
}

func guardMethods(methods ...string) idempotency.Options {
	return idempotency.Options{Methods: methods}
}

// gzipAnswer is middleware that compresses the answer of next.
func gzipAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		compressor := gzip.NewWriter(w)
		next.ServeHTTP(&gzipWriter{w, compressor}, r)
		_ = compressor.Close()
	})
}

type gzipWriter struct {
	http.ResponseWriter
	compressor *gzip.Writer
}

func (w *gzipWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Content-Encoding", "gzip")
	w.ResponseWriter.WriteHeader(status)
}

func (w *gzipWriter) Write(p []byte) (int, error) {
	if w.Header().Get("Content-Encoding") == "" {
		w.WriteHeader(http.StatusOK)
	}
	return w.compressor.Write(p)
}

// callLog holds the results that an http.ResponseWriter has returned to handlers.
type callLog struct {
	runningHandlers sync.WaitGroup
	mu              sync.Mutex
	results         []string
}

// collectResults returns the results after all handlers have returned.
func (l *callLog) collectResults() []string {
	l.runningHandlers.Wait()
	return l.results
}

type callLogKey struct{}

// logCalls is middleware that puts l into the context of the request, where logResult finds the log.
func (l *callLog) logCalls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.runningHandlers.Add(1)
		defer l.runningHandlers.Done()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callLogKey{}, l)))
	})
}

// logResult returns a function that logs the results of a call.
func logResult(r *http.Request) func(n int, err error) {
	log := r.Context().Value(callLogKey{}).(*callLog)
	return func(n int, err error) {
		log.mu.Lock()
		defer log.mu.Unlock()
		log.results = append(log.results, fmt.Sprint(n, err))
	}
}

// clientView is everything that a client can see of an answer.
type clientView struct {
	Informational    []testservice.Answer // 1xx
	Status           int
	Header           http.Header // without Date and the mark of a replay
	HasDate          bool
	Body             string
	Trailer          http.Header
	ContentLength    int64
	TransferEncoding []string
	ClosesConnection bool
	IsCutOff         bool
	IsReplay         bool
	wireText         string // the bytes of the connection in HTTP/1.1, without the lines of Date and the mark of a replay
}

// sendRequest sends the request of the scenario on a separate connection.
func (sc scenario) sendRequest(t *testing.T, server *httptest.Server) (view clientView) {
	t.Helper()
	var recording recordingConn
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.ExpectContinueTimeout = time.Minute
	if !server.EnableHTTP2 {
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			recording.Conn = conn
			return &recording, err
		}
	}
	defer transport.CloseIdleConnections()

	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			view.Informational = append(view.Informational, testservice.Answer{Status: code, Header: http.Header(header)})
			return nil
		},
	}), http.MethodPost, server.URL+"/page?q=1", strings.NewReader("input"))
	require.NoError(t, err)
	r.Host = "service.test"
	r.Header.Set("Idempotency-Key", "k")
	if sc.editRequest != nil {
		sc.editRequest(r)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		view.IsCutOff, view.wireText = true, recording.receivedText()
		return view
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	view.Status, view.Header, view.Trailer = resp.StatusCode, resp.Header, resp.Trailer
	view.Body, view.ContentLength, view.TransferEncoding = string(body), resp.ContentLength, resp.TransferEncoding
	view.ClosesConnection, view.IsCutOff = resp.Close, err != nil
	view.HasDate = len(resp.Header["Date"]) == 1
	view.IsReplay = resp.Header.Get("Idempotent-Replayed") == "true"
	resp.Header.Del("Date")
	resp.Header.Del("Idempotent-Replayed")
	view.wireText = recording.receivedText()
	return view
}

// recordingConn keeps the bytes that are read from the connection.
type recordingConn struct {
	net.Conn
	mu       sync.Mutex
	received bytes.Buffer
}

func (c *recordingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received.Write(p[:n])
	return n, err
}

// receivedText returns the received bytes without the lines of Date and the mark of a replay.
func (c *recordingConn) receivedText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	for line := range strings.Lines(c.received.String()) {
		if !strings.HasPrefix(line, "Date: ") && !strings.HasPrefix(line, "Idempotent-Replayed: ") {
			text.WriteString(line)
		}
	}
	return text.String()
}

// withoutChunking returns v as if the server had sent the body with a Content-Length.
func (v clientView) withoutChunking() clientView {
	v.Header = v.Header.Clone()
	v.Header.Set("Content-Length", strconv.Itoa(len(v.Body)))
	v.ContentLength, v.TransferEncoding, v.wireText = int64(len(v.Body)), nil, ""
	return v
}

// withoutClose returns v as if the connection had stayed open.
func (v clientView) withoutClose() clientView {
	v.Header = v.Header.Clone()
	v.Header.Del("Connection")
	v.ClosesConnection, v.wireText = false, strings.Replace(v.wireText, "Connection: close\r\n", "", 1)
	return v
}

// writeTrailersBeforeBody sets its trailers between the header and the body.
func writeTrailersBeforeBody(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	w.WriteHeader(http.StatusCreated)
	w.Header().Set("X-Sum", "1")
	w.Header().Set(http.TrailerPrefix+"X-Undeclared", "2")
	writeChunks(strings.Repeat("x", 10_000))(w, r)
}

// A body may exceed MaxResponse in its second Write. The Content-Type is still detected from the start of the body, and
// a trailer that was set before this Write is still sent.
func TestOutgrownAnswerEqualsThatOfTheBareHandler(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "<ht")
		w.Header().Set("X-Sum", "1")
		_, _ = io.WriteString(w, "ml><body>"+strings.Repeat("x", 10_000))
	}
	for name, opts := range map[string]idempotency.Options{"": {MaxResponse: 100}, "streamed": {MaxResponse: 100, Stream: true}} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP2=%t", name, http2), func(t *testing.T) {
				sc := scenario{handler: handler}
				svc := testservice.Setup{Opts: opts}.Guard(t, sc.handler)
				bare := sc.sendRequest(t, testservice.Listen(t, sc.handler, http2))
				guarded := sc.sendRequest(t, testservice.Listen(t, svc.Handler, http2))
				require.Equal(t, "text/html; charset=utf-8", bare.Header.Get("Content-Type"))
				require.Equal(t, bare.Header["Content-Type"], guarded.Header["Content-Type"])
				require.Equal(t, http.Header{"X-Sum": {"1"}}, bare.Trailer)
				require.Equal(t, bare.Trailer, guarded.Trailer)
				require.Equal(t, bare.Body, guarded.Body)
			})
		}
	}
}

func TestAnswersEqualThoseOfTheBareHandler(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		for _, sc := range append(scenarios, newServeFileScenario(t), newReverseProxyScenario(t)) {
			t.Run(fmt.Sprintf("HTTP2=%t/%s", http2, sc.name), func(t *testing.T) { sc.runScenario(t, http2) })
		}
	}
}

// runScenario compares the answers of the bare handler and of the guarded handler.
func (sc scenario) runScenario(t *testing.T, http2 bool) {
	if sc.outer == nil {
		sc.outer = func(next http.Handler) http.Handler { return next }
	}
	var bareLog, guardedLog callLog
	svc := testservice.Setup{Opts: sc.opts}.Guard(t, sc.handler)
	server := testservice.Listen(t, bareLog.logCalls(sc.outer(sc.handler)), http2)
	guarded := testservice.Listen(t, guardedLog.logCalls(sc.outer(svc.Handler)), http2)

	bare := sc.sendRequest(t, server)
	first := sc.sendRequest(t, guarded)
	require.False(t, first.IsReplay)
	if sc.isCutOff {
		require.True(t, bare.IsCutOff)
		require.True(t, first.IsCutOff)
		require.True(t, sc.sendRequest(t, guarded).IsCutOff)
		require.EqualValues(t, 2, svc.Runs.Load(), "an answer that was cut off is not stored")
		return
	}
	require.Equal(t, bareLog.collectResults(), guardedLog.collectResults())
	replay := sc.sendRequest(t, guarded)
	if sc.isNotReplayable {
		bare.wireText, first.wireText = withSortedHead(bare.wireText), withSortedHead(first.wireText)
		require.Equal(t, bare, first, "bare handler and first answer")
		require.Equal(t, http.StatusConflict, replay.Status, replay.Body)
		require.Contains(t, replay.Body, "#not-replayable")
		require.EqualValues(t, 1, svc.Runs.Load())
		return
	}
	require.Equal(t, bare.Status != 0, replay.IsReplay, "%+v", replay) // 0 if the client has refused the answer
	require.Equal(t, idempotency.OutcomeReplayed, svc.Journal.Last(t).Outcome)
	require.EqualValues(t, 1, svc.Runs.Load())

	// A replay repeats no informational responses, and the hop-by-hop fields depend on the connection.
	replay.IsReplay, replay.Informational = false, first.Informational
	if first.ClosesConnection || sc.lacksLength && bare.ClosesConnection {
		first, bare = first.withoutClose(), bare.withoutClose()
	}
	replay.wireText, first.wireText = withoutInformational(replay.wireText), withoutInformational(first.wireText)
	if (sc.firstLacksLength || sc.opts.Stream) && first.ContentLength < 0 && replay.ContentLength >= 0 {
		require.Equal(t, first.withoutChunking(), replay.withoutChunking())
	} else {
		require.Equal(t, first, replay, "first answer and replay")
	}

	threshold := 2048
	if http2 {
		threshold = 4096
	}
	if bare.ContentLength < 0 && (sc.lacksLength || len(bare.Body) > threshold) {
		bare, first = bare.withoutChunking(), first.withoutChunking()
	}
	bare.wireText, first.wireText = withSortedHead(withoutInformational(bare.wireText)), withSortedHead(first.wireText)
	require.Equal(t, bare, first, "bare handler and first answer")
}

// Whatever status, header, trailer and body a handler writes, the record is valid: a retry gets the replay, or the refusal
// not-replayable. The only exception is an answer shorter than its Content-Length, which releases the claim.
func TestAnyAnswerIsKeptSoThatItCanBeUsed(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	names := []string{
		"Content-Length", "content-length", "Trailer", "Transfer-Encoding", "transfer-encoding", "Connection", "Date",
		"Idempotent-Replayed", "idempotent-Replayed", "Upgrade", "Te", "Keep-Alive", "X-A", "X a", "x\r\ny: z", "Content-Type", "",
	}
	values := []string{
		"", "0", "1", "3", "003", "+3", "-3", " 3", "3 ", "3, 3", "x", "9223372036854775808", "chunked", "close", "X-A",
		"Content-Length", "Content-Length, Date, X-A", "Idempotent-Replayed", "true", "a\r\nb: c", "caf\xe9",
	}
	statuses := []int{101, 103, 200, 200, 201, 204, 205, 304, 404, 422, 999}
	pick := func(from []string) string { return from[rnd.IntN(len(from))] }
	fields := func() http.Header {
		h := http.Header{}
		for range rnd.IntN(4) {
			name := pick(names)
			if rnd.IntN(4) == 0 {
				name = http.TrailerPrefix + name
			}
			h[name] = nil
			for range rnd.IntN(3) {
				h[name] = append(h[name], pick(values))
			}
		}
		return h
	}
	var status, size int
	var flush bool
	var early, late http.Header
	var last idempotency.Event
	var services []*testservice.Service
	for _, stream := range []bool{false, true} {
		services = append(services, testservice.Setup{Opts: idempotency.Options{
			Methods: []string{http.MethodPost, http.MethodHead}, Stream: stream, MaxResponse: 4096,
			Storable: func(*idempotency.Response) bool { return true },
			Observer: func(_ context.Context, e idempotency.Event) { last = e },
		}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
			maps.Copy(w.Header(), early)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.Repeat("x", size))
			if flush {
				w.(http.Flusher).Flush()
			}
			maps.Copy(w.Header(), late)
		}))
	}
	seen := map[idempotency.Outcome]int{}
	for i := range 3000 {
		early, late = fields(), fields()
		status, size, flush = statuses[rnd.IntN(len(statuses))], []int{0, 1, 3, 5000}[rnd.IntN(4)], rnd.IntN(3) == 0
		method := testservice.WithMethod([]string{http.MethodPost, http.MethodPost, http.MethodHead}[rnd.IntN(3)])
		svc := services[rnd.IntN(len(services))]
		what := fmt.Sprintf("%d, %d bytes, %q, %q", status, size, early, late)
		svc.Call(fmt.Sprint(i), "", method)
		first := last
		svc.Call(fmt.Sprint(i), "", method)
		retry := last
		seen[retry.Outcome]++
		if first.Outcome == idempotency.OutcomeReleased {
			require.ErrorContains(t, first.Err, "shorter than its Content-Length", what)
			continue
		}
		require.Equal(t, idempotency.OutcomeExecuted, first.Outcome, what)
		require.Contains(t, []idempotency.Outcome{idempotency.OutcomeReplayed, idempotency.OutcomeNotReplayable},
			retry.Outcome, "%s: %v", what, retry.Err)
	}
	require.Len(t, seen, 3, "%v", seen)
}

// withoutInformational returns wireText without its informational responses.
func withoutInformational(wireText string) string {
	for strings.HasPrefix(wireText, "HTTP/1.1 1") {
		_, wireText, _ = strings.Cut(wireText, "\r\n\r\n")
	}
	return wireText
}

// withSortedHead returns wireText with its fields in the order of their names, because net/http puts its own fields
// behind the fields of the handler.
func withSortedHead(wireText string) string {
	head, body, _ := strings.Cut(wireText, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	slices.SortStableFunc(lines[1:], func(a, b string) int {
		return strings.Compare(a[:strings.Index(a, ":")], b[:strings.Index(b, ":")])
	})
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

// newServeFileScenario returns a scenario with a handler that serves a part of a file.
func newServeFileScenario(t *testing.T) scenario {
	path := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("<p>hello", 10_000)), 0o600))
	return scenario{
		name:        "ServeFile, range",
		handler:     func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) },
		opts:        guardMethods(http.MethodGet),
		editRequest: withGetField("Range", "bytes=100-70000"),
	}
}

// newReverseProxyScenario returns a scenario with a reverse proxy. The answer of the backend has an informational
// response, repeated fields, a body without Content-Length, and a trailer.
func newReverseProxyScenario(t *testing.T) scenario {
	backend := testservice.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		body, err := io.ReadAll(r.Body) // first, because the proxy may close a connection whose answer comes before the end of the body
		assert.NoError(t, err)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, strings.Repeat("x", 5000))
		_, _ = w.Write(body)
		w.Header().Set("X-Sum", "1")
	}), false)
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	proxy.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	return scenario{name: "ReverseProxy", handler: proxy.ServeHTTP}
}

func TestReplayKeepsCurrentOuterHeaders(t *testing.T) {
	t.Parallel()
	today := 0
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			today++
			for _, name := range []string{"X-Request-Id", "X-Changed", "X-Deleted", "X-Suppressed", "Connection"} {
				w.Header().Set(name, fmt.Sprint("day ", today))
			}
			w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
			w.Header().Set("Vary", "Origin")
			if today == 1 {
				w.Header().Set("X-Only-First", "1")
			} else {
				w.Header().Set("X-Only-Later", "1")
			}
			next.ServeHTTP(w, r)
		})
	}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("X-Changed", "changed")
		w.Header().Del("X-Deleted")
		w.Header()["X-Suppressed"] = nil
		w.Header().Set("X-Added", "added")
		w.WriteHeader(http.StatusCreated)
	})
	first := svc.Post("k", "b", testservice.WithHeader("Origin", "https://a.test"))
	require.Equal(t, http.Header{
		"X-Request-Id": {"day 1"}, "X-Changed": {"changed"}, "X-Added": {"added"}, "Vary": {"Origin", "Accept"},
		"Access-Control-Allow-Origin": {"https://a.test"}, "X-Only-First": {"1"}, "Content-Length": {"0"},
		"Connection": {"day 1"},
	}, first.Header)
	replay := svc.Post("k", "b", testservice.WithHeader("Origin", "https://b.test"))
	require.Equal(t, http.Header{
		"X-Request-Id": {"day 2"}, "X-Changed": {"changed"}, "X-Added": {"added"}, "Vary": {"Origin", "Accept"},
		"Access-Control-Allow-Origin": {"https://b.test"}, "X-Only-Later": {"1"}, "Content-Length": {"0"},
		"Connection": {"day 2"}, "Idempotent-Replayed": {"true"},
	}, replay.Header)
}

// Hop-by-hop fields belong to one connection, and Date to one moment. The first client gets these fields, but the record
// does not contain them.
func TestFieldsOfTheConnectionAreNotStored(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date",
			"X-Hop", "X-Kept"} {
			w.Header().Set(name, "1")
		}
		w.Header()["Connection"] = []string{"close", "upgrade, x-hop"}
	})
	r := httptest.NewRequest(http.MethodPost, "/payments", http.NoBody)
	r.Header.Set("Idempotency-Key", "k")
	first, replay := httptest.NewRecorder(), httptest.NewRecorder()
	svc.Handler.ServeHTTP(first, r)
	require.Subset(t, first.Header(), map[string][]string{"X-Hop": {"1"}, "Date": {"1"}, "Keep-Alive": {"1"}})
	svc.Handler.ServeHTTP(replay, r)
	require.Equal(t, http.Header{
		"X-Kept": {"1"}, "Content-Type": nil, "Idempotent-Replayed": {"true"},
	}, replay.Header())
}

func TestInvalidStatusPanicsInTheHandler(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 0, 99, 1000} {
		svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
			assert.PanicsWithValue(t, fmt.Sprint("invalid WriteHeader code ", status), func() { w.WriteHeader(status) })
			w.WriteHeader(http.StatusAccepted)
		})
		require.Equal(t, http.StatusAccepted, svc.Call("k", "b").Status)
	}
}

func TestWriterOffersNoWayPastTheRecord(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, unwraps := w.(interface{ Unwrap() http.ResponseWriter })
			assert.False(t, unwraps)
			_, reads := w.(io.ReaderFrom)
			assert.False(t, reads)
			_, hijacks := w.(http.Hijacker)
			assert.False(t, hijacks)
			_, _, err := http.NewResponseController(w).Hijack()
			assert.ErrorIs(t, err, http.ErrNotSupported)
			w.WriteHeader(http.StatusCreated)
		})
		testservice.RequireReplay(t, svc.Post("k", "b"), svc.Post("k", "b"))
	}
}

func TestAnswerPassesThroughCompression(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: compressAnswer}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("hello ", 1000))
	})
	require.Equal(t, strings.Repeat("hello ", 1000), svc.Post("k", "b").Body)
	require.Equal(t, strings.Repeat("hello ", 1000), svc.Post("k", "b").Body)
}

func TestWriteDeadlineHolds(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second)))
		w.WriteHeader(http.StatusCreated)
	})
	require.Error(t, svc.Send("/payments", "k", "b").Err)
	got := svc.Post("k", "b")
	require.Equal(t, http.StatusCreated, got.Status)
	require.True(t, got.Replayed())
}

func TestFlushDoesNothingUnlessStreaming(t *testing.T) {
	t.Parallel()
	flushed := make(chan struct{})
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "abc")
		w.(http.Flusher).Flush()
		<-flushed
	})
	answers := make(chan testservice.Answer, 1)
	go func() { answers <- svc.Post("k", "b") }()
	select {
	case got := <-answers:
		t.Errorf("answered before the handler returned: %+v", got)
	case <-time.After(50 * time.Millisecond):
	}
	close(flushed)
	testservice.RequireReplay(t, <-answers, svc.Post("k", "b"))
}

func TestStreamSendsWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		for name, part := range map[string]struct {
			text      string
			isFlushed bool
		}{"flushed": {"data: 1\n\n", true}, "buffer full": {strings.Repeat("x", 5000), false}} {
			t.Run(fmt.Sprintf("HTTP2=%t/%s", http2, name), func(t *testing.T) {
				received := make(chan struct{})
				svc := testservice.Setup{Opts: idempotency.Options{Stream: true}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, part.text)
					if part.isFlushed {
						w.(http.Flusher).Flush()
					}
					select {
					case <-received:
					case <-time.After(10 * time.Second):
						t.Error("nothing was sent")
					}
					_, _ = io.WriteString(w, "data: 2\n\n")
				})
				svc.Server = testservice.Listen(t, svc.Handler, http2)
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, svc.Server.URL+"/payments", http.NoBody)
				require.NoError(t, err)
				r.Header.Set("Idempotency-Key", "k")
				resp, err := svc.Server.Client().Do(r)
				require.NoError(t, err)
				defer resp.Body.Close()
				start := make([]byte, 9)
				_, err = io.ReadFull(resp.Body, start)
				require.NoError(t, err)
				close(received) // lets the handler continue
				rest, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, part.text+"data: 2\n\n", string(start)+string(rest))
				replay := svc.Post("k", "")
				require.True(t, replay.Replayed())
				require.Equal(t, part.text+"data: 2\n\n", replay.Body)
				require.Equal(t, "text/event-stream", replay.Header.Get("Content-Type"))
			})
		}
	}
}

func TestStreamIsRecordedWholeWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	left := make(chan struct{})
	svc := testservice.Setup{Opts: idempotency.Options{Stream: true}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		w.(http.Flusher).Flush()
		<-left
		<-r.Context().Done()
		for range 100 {
			n, err := io.WriteString(w, strings.Repeat("x", 1000))
			assert.Equal(t, 1000, n)
			assert.NoError(t, err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, svc.Server.URL+"/payments", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "k")
	resp, err := svc.Server.Client().Do(r)
	require.NoError(t, err)
	cancel()
	require.NoError(t, errors.Join(resp.Body.Close()))
	close(left)
	require.Eventually(t, func() bool { return len(svc.Journal.All()) == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, "first\n"+strings.Repeat("x", 100_000), svc.Post("k", "").Body)
}

func TestTimeoutHandlerOutsideDoesNotLoseTheRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		timedOut := make(chan struct{})
		outer := func(next http.Handler) http.Handler { return http.TimeoutHandler(next, time.Second, "late") }
		svc := testservice.Setup{Outer: outer}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
			<-timedOut
			testservice.Echo(w, r)
		})
		require.Equal(t, http.StatusServiceUnavailable, svc.Post("k", "b").Status)
		close(timedOut)
		require.Eventually(t, func() bool { return len(svc.Journal.All()) == 1 }, 10*time.Second, time.Millisecond)
		got := svc.Post("k", "b")
		require.Equal(t, "b", got.Body)
		require.True(t, got.Replayed())
	})
}

// newStoreWithHook returns a store that calls beforeComplete before its first Complete.
func newStoreWithHook(beforeComplete func()) *testservice.SpyStore {
	store := testservice.NewSpyStore()
	store.OnComplete = func(_ context.Context, n int64, step func() error) error {
		if n == 1 {
			beforeComplete()
		}
		return step()
	}
	return store
}

// A goroutine that the handler leaves behind may set and read fields while the answer is stored and sent. As on a bare
// server, the goroutine does no harm, and no client gets these fields.
func TestHeaderIsTheHandlersOwn(t *testing.T) {
	t.Parallel()
	for name, outer := range map[string]http.Header{
		"bare": nil, "with fields of outer middleware": {"X-Outer": {"1"}, "Vary": {"Origin"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			completing, stop := make(chan struct{}), make(chan struct{})
			var left sync.WaitGroup
			var rounds atomic.Int64 // of the goroutine that the handler leaves behind
			store := newStoreWithHook(func() {
				close(completing)
				assert.Eventually(t, func() bool { return rounds.Load() > 100 }, 10*time.Second, time.Millisecond)
			})
			svc := testservice.Setup{Store: store, Outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					maps.Copy(w.Header(), outer)
					next.ServeHTTP(w, r)
				})
			}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Early", "1")
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "ok")
				left.Go(func() {
					<-completing
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
							w.Header().Set("X-Late", strconv.Itoa(n))
							w.Header().Del("X-Early")
							_ = w.Header().Clone()
							rounds.Add(1)
						}
					}
				})
			})
			first := svc.Post("k", "b")
			close(stop)
			left.Wait()
			require.Equal(t, "1", first.Header.Get("X-Early"))
			require.NotContains(t, first.Header, "X-Late")
			require.Equal(t, outer.Get("X-Outer"), first.Header.Get("X-Outer"))
			testservice.RequireReplay(t, first, svc.Post("k", "b"))
		})
	}
}

// The handler sees the fields that outer middleware has set. If the handler panics, its changes to the header are
// dropped, so the answer to the panic has the fields of outer middleware only.
func TestHeaderOfOuterMiddlewareIsSafeFromAPanic(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return recoverPanics(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "1")
			next.ServeHTTP(w, r)
		}))
	}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "1", w.Header().Get("X-Outer"))
		w.Header().Del("X-Outer")
		w.Header().Set("X-Inner", "1")
		panic("boom")
	})
	got := svc.Post("k", "b")
	require.Equal(t, http.StatusInternalServerError, got.Status)
	require.Equal(t, "1", got.Header.Get("X-Outer"))
	require.NotContains(t, got.Header, "X-Inner")
}

// The first client gets also the fields that are not stored, with the values that the fields had when the handler called
// WriteHeader. A bare server sends the same values.
func TestUnstoredFieldsAreThoseOfWriteHeader(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		cookies := []string{"a=1", "b=2"}
		w.Header()["Set-Cookie"] = cookies
		w.Header().Set("Keep-Alive", "timeout=5")
		w.WriteHeader(http.StatusCreated)
		cookies[0] = "changed=1"
		w.Header().Del("Set-Cookie")
		w.Header().Del("Keep-Alive")
		w.Header().Set("X-Late", "1")
	}
	svc := testservice.Setup{Opts: idempotency.Options{OmitHeaders: []string{"Set-Cookie"}}}.Guard(t, handler)
	bare := httptest.NewRecorder()
	handler(bare, nil)
	first := svc.Call("k", "b")
	require.Equal(t, bare.Result().Header["Keep-Alive"], first.Header["Keep-Alive"])
	require.Equal(t, []string{"a=1", "b=2"}, first.Header["Set-Cookie"])
	require.NotContains(t, first.Header, "X-Late")
	second := svc.Call("k", "b")
	require.NotContains(t, second.Header, "Set-Cookie")
	require.NotContains(t, second.Header, "Keep-Alive")
}

// First answer and replay have the trailers that a bare server sends. The trailers are in both forms of net/http, set
// before and after the body, with and without a flush.
func TestTrailersAreThoseOfABareServer(t *testing.T) {
	t.Parallel()
	prefixed := http.TrailerPrefix + "X-Late"
	for name, handler := range map[string]http.HandlerFunc{
		"undeclared, flushed": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
			w.(http.Flusher).Flush()
			w.Header().Set(prefixed, "1")
		},
		"undeclared, flushed before the body": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "ok")
			w.Header().Set(prefixed, "1")
		},
		"undeclared, not flushed": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
			w.Header().Set(prefixed, "1")
		},
		"undeclared, large": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 2049))
			w.Header().Set(prefixed, "1")
		},
		"undeclared, not large": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 2048))
			w.Header().Set(prefixed, "1")
		},
		"undeclared, set before the body and after it": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(prefixed, "0")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set(prefixed, "1")
		},
		"undeclared, several": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.Header()[prefixed] = []string{"1", "2"}
			w.Header().Set(http.TrailerPrefix+"X-Another", "3")
		},
		"declared": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set("X-Sum", "1")
		},
		"declared in lower case": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "x-sum, X-MORE")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set("X-Sum", "1")
			w.Header().Set("X-More", "2")
		},
		"declared too late": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set("X-Sum", "1")
		},
		"declaration deleted too late": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusOK)
			w.Header().Del("Trailer")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set("X-Sum", "1")
		},
		"declared and undeclared": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "ok")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(prefixed, "2")
		},
		"declared, never set": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "ok")
		},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, http2=%t", name, http2), func(t *testing.T) {
				t.Parallel()
				bare := fetchTrailers(t, testservice.Listen(t, handler, http2))
				for _, stream := range []bool{false, true} {
					svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Guard(t, handler)
					server := testservice.Listen(t, svc.Handler, http2)
					require.Equal(t, bare, fetchTrailers(t, server), "first, stream=%t", stream)
					require.Equal(t, bare, fetchTrailers(t, server), "replay, stream=%t", stream)
					require.EqualValues(t, 1, svc.Runs.Load())
				}
			})
		}
	}
}

// fetchTrailers returns the trailers that a client gets, by their names.
func fetchTrailers(t *testing.T, server *httptest.Server) map[string][]string {
	r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("b"))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "k")
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	trailers := map[string][]string{}
	for name, values := range resp.Trailer {
		if len(values) > 0 { // a declared trailer without a value was never sent
			trailers[name] = values
		}
	}
	return trailers
}

// If an answer exceeds MaxResponse, the Content-Type is detected from the buffered body and the next Write together. The
// detection must leave both unchanged.
func TestOutgrownAnswerIsSentAsItWasWritten(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 900), strings.Repeat("b", 900)
	for _, stream := range []bool{false, true} {
		opts := idempotency.Options{MaxResponse: 1000, Stream: stream}
		svc := testservice.Setup{Opts: opts}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, a)
			_, _ = io.WriteString(w, b)
		})
		got := svc.Post("k", "b")
		require.Equal(t, a+b, got.Body)
		require.Equal(t, "text/plain; charset=utf-8", got.Header.Get("Content-Type"))
	}
}

// A goroutine that a panicked handler leaves behind may write more than MaxResponse. The claim is settled already, so
// the goroutine must neither settle the claim again nor send an answer.
func TestGoroutineOfAPanickedHandlerIsSilenced(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	releasing, written := make(chan struct{}), make(chan struct{})
	store.OnRelease = func(_ context.Context, _ int64, step func() error) error {
		close(releasing)
		<-written
		return step()
	}
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{MaxResponse: 8}}.Guard(t,
		func(w http.ResponseWriter, _ *http.Request) {
			go func() {
				defer close(written)
				<-releasing
				_, err := io.WriteString(w, "over the limit")
				assert.Equal(t, http.ErrHandlerTimeout, err)
			}()
			panic("boom")
		})
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	require.PanicsWithValue(t, "boom", func() { svc.Handler.ServeHTTP(w, r) })
	require.Empty(t, w.Body.String())
	require.Zero(t, store.Completes.Load())
	require.Equal(t, []idempotency.Outcome{idempotency.OutcomeReleased}, svc.Journal.Outcomes())
}

func TestRefusalPassesThroughCompression(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: compressAnswer, Opts: idempotency.Options{Required: true}}.Serve(t, testservice.Echo)
	got := svc.Post("", "b") // the client decompresses
	got.Header.Del("Content-Encoding")
	testservice.RequireProblem(t, got, http.StatusBadRequest, "key-missing")
}

// compressAnswer is middleware that compresses the body and keeps a Content-Length. Many compressing middlewares keep
// this field, because handlers seldom set the field.
func compressAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		compressor := gzip.NewWriter(w)
		defer compressor.Close()
		next.ServeHTTP(plainGzipWriter{w, compressor}, r)
	})
}

// plainGzipWriter compresses the body, and leaves the header alone.
type plainGzipWriter struct {
	http.ResponseWriter
	compressor *gzip.Writer
}

func (w plainGzipWriter) Write(p []byte) (int, error) { return w.compressor.Write(p) }

// Outer middleware may set fields while the handler runs. The first answer has these fields, but the record does not,
// because the handler has not set them.
func TestFieldsThatOuterMiddlewareSetsLate(t *testing.T) {
	t.Parallel()
	var outer http.Header
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			outer = w.Header()
			outer.Set("X-Early", "1")
			next.ServeHTTP(w, r)
		})
	}}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Inner", "1")
		outer.Set("X-Late", "1")
		w.WriteHeader(http.StatusCreated)
	})
	first := svc.Call("k", "b")
	require.Equal(t, "1", first.Header.Get("X-Late"))
	require.Equal(t, "1", first.Header.Get("X-Inner"))
	second := svc.Call("k", "b")
	require.True(t, second.Replayed())
	require.NotContains(t, second.Header, "X-Late", "it is no part of the answer")
	require.Equal(t, "1", second.Header.Get("X-Early"))
}

// The mark of a replay is removed from all parts of a handler's answer, including informational responses and trailers.
func TestHandlerCannotMarkAPartOfItsAnswerAsAReplay(t *testing.T) {
	t.Parallel()
	const mark = "Idempotent-Replayed"
	for name, sc := range map[string]struct {
		earlyHeader, lateHeader http.Header // set before an informational response, and after the body
	}{
		"informational":                   {earlyHeader: http.Header{mark: {"true"}}},
		"informational, lower case":       {earlyHeader: http.Header{"idempotent-replayed": {"true"}}},
		"declared trailer":                {http.Header{"Trailer": {mark}}, http.Header{mark: {"true"}}},
		"declared, set before the body":   {earlyHeader: http.Header{"Trailer": {"idempotent-replayed"}, mark: {"true"}}},
		"undeclared trailer":              {lateHeader: http.Header{http.TrailerPrefix + mark: {"true"}}},
		"undeclared, lower case":          {lateHeader: http.Header{http.TrailerPrefix + "idempotent-replayed": {"true"}}},
		"undeclared, set before the body": {earlyHeader: http.Header{http.TrailerPrefix + mark: {"true"}}},
		"undeclared, in two spellings": {lateHeader: http.Header{
			http.TrailerPrefix + mark: {"true"}, http.TrailerPrefix + "IDEMPOTENT-REPLAYED": {"true"},
		}},
	} {
		for _, http2 := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, HTTP2=%t, stream=%t", name, http2, stream), func(t *testing.T) {
					t.Parallel()
					svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
						maps.Copy(w.Header(), sc.earlyHeader)
						w.Header().Set("Link", "</a>; rel=preload")
						w.WriteHeader(http.StatusEarlyHints)
						_, _ = io.WriteString(w, strings.Repeat("x", 5000))
						maps.Copy(w.Header(), sc.lateHeader)
						w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
					})
					got := scenario{}.sendRequest(t, testservice.Listen(t, svc.Handler, http2))
					require.Len(t, got.Informational, 1)
					require.Equal(t, http.Header{"Link": {"</a>; rel=preload"}}, withoutField(got.Informational[0].Header, "Trailer"))
					require.False(t, got.IsReplay)
					require.Equal(t, http.Header{"X-Sum": {"1"}}, withoutField(got.Trailer, ""))
				})
			}
		}
	}
}

// withoutField returns the fields of h with values, except name.
func withoutField(h http.Header, name string) http.Header {
	others := http.Header{}
	for field, values := range h {
		if field != name && len(values) > 0 && !strings.HasPrefix(field, http.TrailerPrefix) {
			others[field] = values
		}
	}
	return others
}

// lateWriter is the writer of a framework that answers after its handlers have returned.
type lateWriter struct {
	http.ResponseWriter
	isWritten bool
}

func (w *lateWriter) Write(p []byte) (int, error) {
	w.isWritten = true
	return w.ResponseWriter.Write(p)
}

func (w *lateWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// echoLike has the methods by which the middleware recognises the writer of echo.
type echoLike struct{ *lateWriter }

func (echoLike) Before(func()) {}
func (echoLike) After(func())  {}

// ginLike has the methods by which the middleware recognises the writer of gin.
type ginLike struct{ *lateWriter }

func (w ginLike) WriteHeaderNow() {}
func (w ginLike) Written() bool   { return w.isWritten }

// wrappedWriter is a wrapper that a middleware of a framework puts around the writer of the framework.
type wrappedWriter struct{ http.ResponseWriter }

func (w wrappedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// negroniLike has some of the methods of these writers, but its framework does not answer after its handlers.
type negroniLike struct{ http.ResponseWriter }

func (negroniLike) Before(func(http.ResponseWriter)) {}
func (negroniLike) Written() bool                    { return false }

// answerIfUnwritten returns middleware that acts as a framework: after a handler that wrote nothing, the framework
// answers 402. The handler gets the writer that wrapWriter returns.
func answerIfUnwritten(wrapWriter func(*lateWriter) http.ResponseWriter) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			late := &lateWriter{ResponseWriter: w}
			next.ServeHTTP(wrapWriter(late), r)
			if !late.isWritten {
				w.WriteHeader(http.StatusPaymentRequired)
				_, _ = w.Write([]byte("declined"))
			}
		})
	}
}

func wrapAsEcho(w *lateWriter) http.ResponseWriter { return echoLike{w} }

func wrapAsGin(w *lateWriter) http.ResponseWriter { return ginLike{w} }

func wrapEchoTwice(w *lateWriter) http.ResponseWriter {
	return wrappedWriter{wrappedWriter{echoLike{w}}}
}

// answerNothing sets a field and returns.
func answerNothing(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Reason", "poor") }

func TestFrameworkAnswersForAHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, wrapWriter := range map[string]func(*lateWriter) http.ResponseWriter{
		"echo": wrapAsEcho, "gin": wrapAsGin, "wrapped": wrapEchoTwice,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged bytes.Buffer
			svc := testservice.Setup{
				Outer: answerIfUnwritten(wrapWriter), Opts: idempotency.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))},
			}.Guard(t, answerNothing)
			bare := svc.Call("", "")
			require.Equal(t, http.StatusPaymentRequired, bare.Status)
			require.Equal(t, "poor", bare.Header.Get("X-Reason"))
			for range 2 {
				require.Equal(t, bare, svc.Call("k", ""))
				require.ErrorContains(t, svc.Journal.Last(t).Err, "adapter")
				require.Equal(t, idempotency.OutcomeReleased, svc.Journal.Last(t).Outcome)
				require.Zero(t, svc.Journal.Last(t).Status)
			}
			require.EqualValues(t, 3, svc.Runs.Load())
			require.Zero(t, svc.Store.Completes.Load())
			require.Equal(t, 2, bytes.Count(logged.Bytes(), []byte("level=WARN")), logged.String())
		})
	}
}

// A handler that writes to the writer of the framework bypasses the middleware, so the answer is not stored.
func TestAnswerPastTheMiddlewareIsNotStored(t *testing.T) {
	t.Parallel()
	for name, wrapWriter := range map[string]func(*lateWriter) http.ResponseWriter{"echo": wrapAsEcho, "gin": wrapAsGin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var outer http.ResponseWriter
			svc := testservice.Setup{Outer: answerIfUnwritten(func(w *lateWriter) http.ResponseWriter {
				outer = wrapWriter(w)
				return outer
			})}.Guard(t, func(_ http.ResponseWriter, r *http.Request) { testservice.Echo(outer, r) })
			for range 2 {
				got := svc.Call("k", "b")
				require.Equal(t, http.StatusCreated, got.Status)
				require.Equal(t, "b", got.Body)
			}
			require.EqualValues(t, 2, svc.Runs.Load())
			require.Zero(t, svc.Store.Completes.Load())
		})
	}
}

func TestMissingAnswerIsAnAnswerOutsideOfFrameworks(t *testing.T) {
	t.Parallel()
	explicit := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	asServer := func(w *lateWriter) http.ResponseWriter { return w.ResponseWriter }
	asServerWrapped := func(w *lateWriter) http.ResponseWriter { return wrappedWriter{w.ResponseWriter} }
	asNegroni := func(w *lateWriter) http.ResponseWriter { return negroniLike{w.ResponseWriter} }
	for name, row := range map[string]struct {
		wrapWriter func(*lateWriter) http.ResponseWriter
		handler    http.HandlerFunc
	}{
		"net/http":           {asServer, answerNothing},
		"wrapped":            {asServerWrapped, answerNothing},
		"another framework":  {asNegroni, answerNothing},
		"echo, a status":     {wrapAsEcho, explicit},
		"gin, a status":      {wrapAsGin, explicit},
		"gin, an empty body": {wrapAsGin, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(row.wrapWriter(&lateWriter{ResponseWriter: w}), r)
				})
			}}.Guard(t, row.handler)
			first := svc.Call("k", "")
			require.Equal(t, http.StatusOK, first.Status)
			testservice.RequireReplay(t, first, svc.Call("k", ""))
			require.EqualValues(t, 1, svc.Runs.Load())
		})
	}
}

// Echo's WrapMiddleware leaves the writer of the handler in the context, so echo writes its answer to this writer, even
// after a panic or a timeout.
func TestFrameworkAnswersByTheWriterOfTheHandler(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"silent": answerNothing,
		"panic":  func(http.ResponseWriter, *http.Request) { panic("crash") },
		"late":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var inner http.ResponseWriter
				svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						ctx, cancel := context.WithTimeout(r.Context(), time.Second)
						defer cancel()
						func() {
							defer func() { _ = recover() }()
							next.ServeHTTP(echoLike{&lateWriter{ResponseWriter: w}}, r.WithContext(ctx))
						}()
						inner.Header().Set("Content-Type", "text/plain")
						inner.WriteHeader(http.StatusPaymentRequired)
						_, _ = io.WriteString(inner, "decl")
						assert.NoError(t, http.NewResponseController(inner).Flush())
						_, _ = inner.Write([]byte("ined"))
					})
				}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
					inner = w
					handler(w, r)
				})
				for range 2 {
					got := svc.Post("k", "")
					require.Equal(t, http.StatusPaymentRequired, got.Status)
					require.Equal(t, "declined", got.Body)
					require.Equal(t, "text/plain", got.Header.Get("Content-Type"))
				}
				require.EqualValues(t, 2, svc.Runs.Load())
				require.Zero(t, svc.Store.Completes.Load())
			})
		})
	}
}

// The decision of a handler holds, even if the framework writes the answer and the answer is therefore unknown.
func TestVerdictOfAHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		verdict     idempotency.Verdict
		retryStatus int
		handlerRuns int64
	}{
		"keep":      {idempotency.Keep, http.StatusConflict, 1},
		"tombstone": {idempotency.Tombstone, http.StatusConflict, 1},
		"free":      {idempotency.Free, http.StatusPaymentRequired, 2},
		"unknown":   {idempotency.Unknown, http.StatusPaymentRequired, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: answerIfUnwritten(wrapAsEcho)}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
				idempotency.Decide(r.Context(), row.verdict)
			})
			require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
			retry := svc.Call("k", "")
			require.Equal(t, row.retryStatus, retry.Status)
			if row.handlerRuns == 1 {
				testservice.RequireProblem(t, retry, http.StatusConflict, "not-replayable")
			}
			require.Equal(t, row.handlerRuns, svc.Runs.Load())
		})
	}
}

func TestRefuseAfterAHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{
		Outer: answerIfUnwritten(wrapAsEcho), Opts: idempotency.Options{Abandoned: idempotency.Refuse, Lease: 2 * time.Second},
	}.Guard(t, answerNothing)
	require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
	require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.Last(t).Outcome)
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "outcome-unknown")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// With FailOpen, the handler may run without a claim. Then nothing is recorded, and the framework answers.
func TestUnguardedHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = testservice.Failing(testservice.Always, idempotency.ErrUnavailable)
	svc := testservice.Setup{
		Store: store, Outer: answerIfUnwritten(wrapAsEcho), Opts: idempotency.Options{FailOpen: true},
	}.Guard(t, answerNothing)
	require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
}
