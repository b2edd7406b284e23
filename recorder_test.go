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

// scenario is something a handler may do to its http.ResponseWriter. It is done three times: bare, as the first
// answer of a guarded handler, and in its replay.
type scenario struct {
	name    string
	handler http.HandlerFunc
	request func(*http.Request)
	opts    idempotency.Options
	outer   func(http.Handler) http.Handler

	unsized  bool // the bare server sends no length although the body is small
	reframed bool // the first answer has no length either; Stream implies it
	broken   bool // the bare server cuts the answer off, so that there is nothing to replay
	unkept   bool // the answer cannot be sent again: a retry is told so
}

var scenarios = []scenario{
	// Status and header.
	{name: "nothing written", handler: func(http.ResponseWriter, *http.Request) {}},
	{name: "status only", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }},
	{name: "body only", handler: writeChunks("hello")},
	{name: "empty write", handler: func(w http.ResponseWriter, r *http.Request) {
		noteResult(r)(w.Write(nil))
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
		noteResult(r)(w.Write([]byte("body")))
	}},
	{name: "205", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusResetContent) }},
	{name: "304", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "4")
		w.Header().Set("ETag", `"1"`)
		w.WriteHeader(http.StatusNotModified)
		noteResult(r)(w.Write([]byte("body")))
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
		noteResult(r)(w.Write([]byte("abc")))
	}, broken: true},
	{name: "Content-Length of no body", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
	}, broken: true},
	{name: "Content-Length too small", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("abc"))
		_, _ = w.Write([]byte("def"))
	}, broken: true},
	{name: "Content-Length reached, then exceeded", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		_, _ = w.Write([]byte("abcde"))
		w.(http.Flusher).Flush()
		_, _ = w.Write([]byte("f"))
	}},
	{name: "Content-Length is not a number", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "three")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length negative", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "-1")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length empty", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length empty, then a number", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"", "5"}
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length nil", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = nil
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length with zeros", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "003")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length with a sign", unkept: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "+3")
		writeChunks("abc")(w, r)
	}},
	{name: "Content-Length twice", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"3", "3"}
		writeChunks("abc")(w, r)
	}},
	{name: "two lengths", unkept: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"3", "5"}
		writeChunks("abc")(w, r)
	}},
	{name: "two lengths, streamed", unkept: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Length"] = []string{"3", "5"}
		writeChunks("abc")(w, r)
	}, opts: idempotency.Options{Stream: true}},
	{name: "flushed by http.Flusher", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.(http.Flusher).Flush()
		w.WriteHeader(http.StatusTeapot)
		writeChunks("abc", "def")(w, r)
	}},
	{name: "flushed by http.ResponseController", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		writeChunks("abc")(w, r)
		noteResult(r)(0, http.NewResponseController(w).Flush())
		w.Header().Set("X-After", "1")
		writeChunks("def")(w, r)
	}},
	{name: "flushed before it can be sniffed", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		writeChunks("<ht")(w, r)
		w.(http.Flusher).Flush()
		writeChunks("ml>")(w, r)
	}},
	{name: "flushed first", unsized: true, handler: func(w http.ResponseWriter, r *http.Request) {
		noteResult(r)(0, http.NewResponseController(w).Flush())
		w.WriteHeader(http.StatusTeapot)
	}},
	{name: "Transfer-Encoding chunked", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Transfer-Encoding", "chunked")
		writeChunks("<html>")(w, r)
	}, unsized: true, reframed: true},
	{name: "Transfer-Encoding identity", unsized: true, reframed: true, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Transfer-Encoding", "identity")
		writeChunks("<html>")(w, r)
	}},
	{name: "copied", handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		n, err := io.Copy(w, struct{ io.Reader }{strings.NewReader("copied")})
		noteResult(r)(int(n), err)
	}},
	{name: "HEAD", handler: writeChunks("hello"), request: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},
	{name: "HEAD, large", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 5000)) // what it returns depends on the protocol
	}, request: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},
	{name: "HEAD, nothing written", handler: writeChunks(), request: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},
	{name: "HEAD, length only", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
	}, request: withMethod(http.MethodHead), opts: guardMethods(http.MethodHead)},

	// Trailers.
	{name: "trailers", handler: writeDeclaredTrailer(3)},
	{name: "trailers, large", handler: writeDeclaredTrailer(10_000)},
	{name: "trailers without a body", handler: writeDeclaredTrailer(0)},
	{name: "trailer declared, not set", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Other")
		writeChunks("abc")(w, r)
		w.Header().Set("X-Other", "2")
	}},
	{name: "trailer declared, set before", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "early")
		writeChunks("abc")(w, r)
	}},
	{name: "trailers set before, and nothing changed behind", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Sum", "early")
		w.Header().Set(http.TrailerPrefix+"X-Late", "early too")
		writeChunks("abc")(w, r)
	}},
	{name: "trailers behind Content-Length", handler: func(w http.ResponseWriter, r *http.Request) {
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
	{name: "undeclared trailers, set before", handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "early")
		writeChunks("abc")(w, r)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "late")
	}},

	// Handlers of the standard library, and what is wrapped around a guarded one.
	{name: "ServeContent", handler: serveContent, opts: guardMethods(http.MethodGet), request: withMethod(http.MethodGet)},
	{name: "ServeContent, range", handler: serveContent,
		opts: guardMethods(http.MethodGet), request: withGetField("Range", "bytes=10-19")},
	{name: "ServeContent, bad range", handler: serveContent,
		opts: guardMethods(http.MethodGet), request: withGetField("Range", "bytes=9999999-")},
	{name: "ServeContent, not modified", handler: serveContent,
		opts: guardMethods(http.MethodGet), request: withGetField("If-None-Match", `"v1"`)},
	{name: "ServeContent, HEAD", handler: serveContent,
		opts: guardMethods(http.MethodHead), request: withMethod(http.MethodHead)},
	{name: "gzip inside", handler: func(w http.ResponseWriter, r *http.Request) {
		gzipAnswer(writeChunks(strings.Repeat("hello ", 1000))).ServeHTTP(w, r)
	}, unsized: true},
	{name: "gzip outside", handler: writeChunks(strings.Repeat("hello ", 1000)), outer: gzipAnswer, unsized: true},
	{name: "outer field deleted behind WriteHeader", handler: func(w http.ResponseWriter, r *http.Request) {
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
	{name: "request", handler: func(w http.ResponseWriter, r *http.Request) {
		dump, err := httputil.DumpRequest(r, true)
		noteResult(r)(len(dump), err)
		_, _ = fmt.Fprintf(w, "%s %v %v %s", dump, r.Trailer, r.ContentLength, r.Pattern)
	}, request: func(r *http.Request) {
		r.ContentLength = -1
		r.Header.Set("Expect", "100-continue")
		r.Trailer = http.Header{"X-Sum": {"1"}}
	}},
	{name: "deadlines and full duplex", handler: func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		noteResult(r)(0, rc.SetReadDeadline(time.Now().Add(time.Hour)))
		noteResult(r)(0, rc.SetWriteDeadline(time.Now().Add(time.Hour)))
		noteResult(r)(0, rc.EnableFullDuplex())
		writeChunks("done")(w, r)
	}},

	// The same, sent as it is written.
	{name: "streamed", handler: writeChunks("a", "b"), opts: idempotency.Options{Stream: true}},
	{name: "streamed, large",
		handler: writeChunks(strings.Repeat("x", 1500), "<html>", strings.Repeat("y", 9000)),
		opts:    idempotency.Options{Stream: true}},
	{name: "streamed, nothing", handler: writeChunks(), opts: idempotency.Options{Stream: true}},
	{name: "trailers set while all is held back", handler: trailersBeforeBody},
	{name: "trailers set before it goes live", handler: trailersBeforeBody, opts: idempotency.Options{Stream: true}},
	{name: "streamed trailers", handler: writeDeclaredTrailer(10_000), opts: idempotency.Options{Stream: true}},
	{name: "streamed, undeclared trailers", handler: writePrefixedTrailer(10_000), opts: idempotency.Options{Stream: true}},
	{name: "streamed, flushed", handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		noteResult(r)(0, http.NewResponseController(w).Flush())
		writeChunks("abc")(w, r)
		w.Header().Set("X-After", "1")
		noteResult(r)(0, http.NewResponseController(w).Flush())
	}, opts: idempotency.Options{Stream: true}, unsized: true},
	{name: "streamed 204", handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		noteResult(r)(0, http.NewResponseController(w).Flush())
		noteResult(r)(w.Write([]byte("body")))
	}, opts: idempotency.Options{Stream: true}},
}

func writeChunks(chunks ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, chunk := range chunks {
			noteResult(r)(io.WriteString(w, chunk))
		}
	}
}

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
		z := gzip.NewWriter(w)
		next.ServeHTTP(&gzipWriter{w, z}, r)
		_ = z.Close()
	})
}

type gzipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
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
	return w.z.Write(p)
}

// notes are what a handler sees of its http.ResponseWriter.
type notes struct {
	handlers sync.WaitGroup
	mu       sync.Mutex
	taken    []string
}

// collectNotes returns the notes after all handlers have returned.
func (n *notes) collectNotes() []string {
	n.handlers.Wait()
	return n.taken
}

type notesKey struct{}

func (n *notes) recordNotes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.handlers.Add(1)
		defer n.handlers.Done()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), notesKey{}, n)))
	})
}

// noteResult returns a function that notes the results of a call.
func noteResult(r *http.Request) func(n int, err error) {
	notes := r.Context().Value(notesKey{}).(*notes)
	return func(n int, err error) {
		notes.mu.Lock()
		defer notes.mu.Unlock()
		notes.taken = append(notes.taken, fmt.Sprint(n, err))
	}
}

// exchange is everything that a client can see of an answer.
type exchange struct {
	Informational []testservice.Answer // 1xx
	Status        int
	Header        http.Header // but Date and the replay marker
	Dated         bool
	Body          string
	Trailer       http.Header
	Length        int64
	Encoding      []string
	Close         bool
	Broken        bool
	Replayed      bool
	raw           string // the bytes on the wire in HTTP/1.1, but the lines of Date and the replay marker
}

// performScenario sends the request of a scenario on a separate connection.
func (sc scenario) performScenario(t *testing.T, server *httptest.Server) (x exchange) {
	t.Helper()
	var tape tapedConn
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.ExpectContinueTimeout = time.Minute
	if !server.EnableHTTP2 {
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			tape.Conn = conn
			return &tape, err
		}
	}
	defer transport.CloseIdleConnections()

	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			x.Informational = append(x.Informational, testservice.Answer{Status: code, Header: http.Header(header)})
			return nil
		},
	}), http.MethodPost, server.URL+"/page?q=1", strings.NewReader("input"))
	require.NoError(t, err)
	r.Host = "service.test"
	r.Header.Set("Idempotency-Key", "k")
	if sc.request != nil {
		sc.request(r)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		x.Broken, x.raw = true, tape.tapedText()
		return x
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	x.Broken = err != nil
	x.Status, x.Header, x.Trailer = resp.StatusCode, resp.Header, resp.Trailer
	x.Body, x.Length, x.Encoding, x.Close = string(body), resp.ContentLength, resp.TransferEncoding, resp.Close
	x.Dated = len(resp.Header["Date"]) == 1
	x.Replayed = resp.Header.Get("Idempotent-Replayed") == "true"
	resp.Header.Del("Date")
	resp.Header.Del("Idempotent-Replayed")
	x.raw = tape.tapedText()
	return x
}

// tapedConn keeps what is read from a connection.
type tapedConn struct {
	net.Conn
	mu   sync.Mutex
	tape bytes.Buffer
}

func (c *tapedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tape.Write(p[:n])
	return n, err
}

func (c *tapedConn) tapedText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var kept strings.Builder
	for line := range strings.Lines(c.tape.String()) {
		if !strings.HasPrefix(line, "Date: ") && !strings.HasPrefix(line, "Idempotent-Replayed: ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// withoutChunking returns x as if the body had been sent with its length.
func (x exchange) withoutChunking() exchange {
	x.Header = x.Header.Clone()
	x.Header.Set("Content-Length", strconv.Itoa(len(x.Body)))
	x.Length, x.Encoding, x.raw = int64(len(x.Body)), nil, ""
	return x
}

// withoutClose returns x as if the connection stayed open.
func (x exchange) withoutClose() exchange {
	x.Header = x.Header.Clone()
	x.Header.Del("Connection")
	x.Close, x.raw = false, strings.Replace(x.raw, "Connection: close\r\n", "", 1)
	return x
}

// trailersBeforeBody sets its trailers between the header and the body.
func trailersBeforeBody(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	w.WriteHeader(http.StatusCreated)
	w.Header().Set("X-Sum", "1")
	w.Header().Set(http.TrailerPrefix+"X-Undeclared", "2")
	writeChunks(strings.Repeat("x", 10_000))(w, r)
}

// A body that outgrows the limit with its second piece is what its beginning says, and keeps the trailers set before.
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
				bare := sc.performScenario(t, testservice.Listen(t, sc.handler, http2))
				guarded := sc.performScenario(t, testservice.Listen(t, svc.Handler, http2))
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
		for _, sc := range append(scenarios, serveFile(t), reverseProxy(t)) {
			t.Run(fmt.Sprintf("HTTP2=%t/%s", http2, sc.name), func(t *testing.T) { sc.runScenario(t, http2) })
		}
	}
}

func (sc scenario) runScenario(t *testing.T, http2 bool) {
	if sc.outer == nil {
		sc.outer = func(next http.Handler) http.Handler { return next }
	}
	var bareNotes, guardedNotes notes
	svc := testservice.Setup{Opts: sc.opts}.Guard(t, sc.handler)
	server := testservice.Listen(t, bareNotes.recordNotes(sc.outer(sc.handler)), http2)
	guarded := testservice.Listen(t, guardedNotes.recordNotes(sc.outer(svc.Handler)), http2)

	bare := sc.performScenario(t, server)
	first := sc.performScenario(t, guarded)
	require.False(t, first.Replayed)
	if sc.broken {
		require.True(t, bare.Broken)
		require.True(t, first.Broken)
		require.True(t, sc.performScenario(t, guarded).Broken)
		require.EqualValues(t, 2, svc.Runs.Load(), "an answer that was cut off is not stored")
		return
	}
	require.Equal(t, bareNotes.collectNotes(), guardedNotes.collectNotes())
	replay := sc.performScenario(t, guarded)
	if sc.unkept {
		bare.raw, first.raw = sortedHead(bare.raw), sortedHead(first.raw)
		require.Equal(t, bare, first, "bare handler and first answer")
		require.Equal(t, http.StatusConflict, replay.Status, replay.Body)
		require.Contains(t, replay.Body, "#not-replayable")
		require.EqualValues(t, 1, svc.Runs.Load())
		return
	}
	require.Equal(t, bare.Status != 0, replay.Replayed, "%+v", replay) // a client may refuse what it gets
	require.Equal(t, idempotency.OutcomeReplayed, svc.Journal.Last(t).Outcome)
	require.EqualValues(t, 1, svc.Runs.Load())

	// A replay has no need of the informational responses, and hop-by-hop fields are those of its own connection.
	replay.Replayed, replay.Informational = false, first.Informational
	if first.Close || sc.unsized && bare.Close {
		first, bare = first.withoutClose(), bare.withoutClose()
	}
	replay.raw, first.raw = finalPart(replay.raw), finalPart(first.raw)
	if (sc.reframed || sc.opts.Stream) && first.Length < 0 && replay.Length >= 0 {
		require.Equal(t, first.withoutChunking(), replay.withoutChunking())
	} else {
		require.Equal(t, first, replay, "first answer and replay")
	}

	threshold := 2048
	if http2 {
		threshold = 4096
	}
	if bare.Length < 0 && (sc.unsized || len(bare.Body) > threshold) {
		bare, first = bare.withoutChunking(), first.withoutChunking()
	}
	bare.raw, first.raw = sortedHead(finalPart(bare.raw)), sortedHead(first.raw)
	require.Equal(t, bare, first, "bare handler and first answer")
}

// Whatever a handler writes, its answer is kept as one that this package sends again, or is known not to be kept. A
// retry never finds a record that cannot be used.
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

// finalPart returns raw without its informational responses.
func finalPart(raw string) string {
	for strings.HasPrefix(raw, "HTTP/1.1 1") {
		_, raw, _ = strings.Cut(raw, "\r\n\r\n")
	}
	return raw
}

// sortedHead returns raw with its fields in the order of their names: net/http puts those that it adds by itself last.
func sortedHead(raw string) string {
	head, body, _ := strings.Cut(raw, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	slices.SortStableFunc(lines[1:], func(a, b string) int {
		return strings.Compare(a[:strings.Index(a, ":")], b[:strings.Index(b, ":")])
	})
	return strings.Join(lines, "\r\n") + "\r\n\r\n" + body
}

// serveFile serves a part of a file.
func serveFile(t *testing.T) scenario {
	path := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("<p>hello", 10_000)), 0o600))
	return scenario{
		name:    "ServeFile, range",
		handler: func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) },
		opts:    guardMethods(http.MethodGet),
		request: withGetField("Range", "bytes=100-70000"),
	}
}

// reverseProxy passes on the answer of another server, with everything that one can have.
func reverseProxy(t *testing.T) scenario {
	backend := testservice.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		body, err := io.ReadAll(r.Body) // now: the proxy may close a connection that has answered before it has sent all
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

// They belong to one connection or one moment: the first client gets them, and they are not stored.
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
	svc := testservice.Setup{Outer: compressAnswer}.Serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("hello ", 1000)) })
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
			text  string
			flush bool
		}{"flushed": {"data: 1\n\n", true}, "buffer full": {strings.Repeat("x", 5000), false}} {
			t.Run(fmt.Sprintf("HTTP2=%t/%s", http2, name), func(t *testing.T) {
				received := make(chan struct{})
				svc := testservice.Setup{Opts: idempotency.Options{Stream: true}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, part.text)
					if part.flush {
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
				close(received) // the handler was waiting for this
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

// newHookedStore returns a store that calls f before its first Complete.
func newHookedStore(f func()) *testservice.SpyStore {
	store := testservice.NewSpyStore()
	store.OnComplete = func(_ context.Context, n int64, step func() error) error {
		if n == 1 {
			f()
		}
		return step()
	}
	return store
}

// A goroutine that the handler leaves behind sets and reads fields while the answer is stored and sent. That harms
// nobody, as on a bare server, and reaches nobody.
func TestHeaderIsTheHandlersOwn(t *testing.T) {
	t.Parallel()
	for name, outer := range map[string]http.Header{"bare": nil, "with fields of outer middleware": {"X-Outer": {"1"}, "Vary": {"Origin"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			completing, stop := make(chan struct{}), make(chan struct{})
			var left sync.WaitGroup
			var rounds atomic.Int64 // of the goroutine that is left behind
			store := newHookedStore(func() {
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

// What outer middleware has set is there for the handler, and stays as it is if the handler fails.
func TestHeaderOfOuterMiddlewareIsSafeFromAPanic(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return recovering(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// Fields that are not stored are sent as they were when the handler called WriteHeader, as unguarded.
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

// Trailers in both forms of net/http, set before and after the body, with and without a flush: first answer and replay
// have those that a bare server sends.
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
		"undeclared, known before": func(w http.ResponseWriter, _ *http.Request) {
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
		"declaration taken back too late": func(w http.ResponseWriter, _ *http.Request) {
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
				bare := trailersOf(t, testservice.Listen(t, handler, http2))
				for _, stream := range []bool{false, true} {
					svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Guard(t, handler)
					server := testservice.Listen(t, svc.Handler, http2)
					require.Equal(t, bare, trailersOf(t, server), "first, stream=%t", stream)
					require.Equal(t, bare, trailersOf(t, server), "replay, stream=%t", stream)
					require.EqualValues(t, 1, svc.Runs.Load())
				}
			})
		}
	}
}

// trailersOf returns the trailers that a client gets, by their names.
func trailersOf(t *testing.T, server *httptest.Server) map[string][]string {
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
		if len(values) > 0 { // else it was only announced
			trailers[name] = values
		}
	}
	return trailers
}

// The Content-Type of an answer that outgrows its limit is found in what is held back and what follows it, without
// writing the one into the other.
func TestOutgrownAnswerIsSentAsItWasWritten(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 900), strings.Repeat("b", 900)
	for _, stream := range []bool{false, true} {
		svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 1000, Stream: stream}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, a)
			_, _ = io.WriteString(w, b)
		})
		got := svc.Post("k", "b")
		require.Equal(t, a+b, got.Body)
		require.Equal(t, "text/plain; charset=utf-8", got.Header.Get("Content-Type"))
	}
}

// A goroutine that a panicked handler leaves behind may go on to write more than can be kept. That must neither settle
// the claim a second time, nor send an answer.
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

// compressAnswer is middleware that leaves a Content-Length alone, as many compressing middlewares do, because handlers
// seldom set the field.
func compressAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(plainGzipWriter{w, z}, r)
	})
}

type plainGzipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w plainGzipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

// Outer middleware may set fields while the handler runs. They are neither the handler's nor deleted by it.
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

// The mark of a replay is in nothing that a handler sends: neither in an informational response nor in a trailer.
func TestHandlerCannotMarkAPartOfItsAnswerAsAReplay(t *testing.T) {
	t.Parallel()
	const mark = "Idempotent-Replayed"
	for name, sc := range map[string]struct {
		early, late http.Header // set before an informational response, and after the body
	}{
		"informational":             {early: http.Header{mark: {"true"}}},
		"informational, lower case": {early: http.Header{"idempotent-replayed": {"true"}}},
		"declared trailer":          {http.Header{"Trailer": {mark}}, http.Header{mark: {"true"}}},
		"declared, set before":      {early: http.Header{"Trailer": {"idempotent-replayed"}, mark: {"true"}}},
		"undeclared trailer":        {late: http.Header{http.TrailerPrefix + mark: {"true"}}},
		"the same in lower case":    {late: http.Header{http.TrailerPrefix + "idempotent-replayed": {"true"}}},
		"undeclared, set before":    {early: http.Header{http.TrailerPrefix + mark: {"true"}}},
		"undeclared, in two spellings": {late: http.Header{
			http.TrailerPrefix + mark: {"true"}, http.TrailerPrefix + "IDEMPOTENT-REPLAYED": {"true"},
		}},
	} {
		for _, http2 := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, HTTP2=%t, stream=%t", name, http2, stream), func(t *testing.T) {
					t.Parallel()
					svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
						maps.Copy(w.Header(), sc.early)
						w.Header().Set("Link", "</a>; rel=preload")
						w.WriteHeader(http.StatusEarlyHints)
						_, _ = io.WriteString(w, strings.Repeat("x", 5000))
						maps.Copy(w.Header(), sc.late)
						w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
					})
					got := scenario{}.performScenario(t, testservice.Listen(t, svc.Handler, http2))
					require.Len(t, got.Informational, 1)
					require.Equal(t, http.Header{"Link": {"</a>; rel=preload"}}, withoutField(got.Informational[0].Header, "Trailer"))
					require.False(t, got.Replayed)
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

// lateWriter is a writer of a framework that answers after its handlers have returned.
type lateWriter struct {
	http.ResponseWriter
	written bool
}

func (w *lateWriter) Write(p []byte) (int, error) {
	w.written = true
	return w.ResponseWriter.Write(p)
}

func (w *lateWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type echoLike struct{ *lateWriter }

func (echoLike) Before(func()) {}
func (echoLike) After(func())  {}

type ginLike struct{ *lateWriter }

func (w ginLike) WriteHeaderNow() {}
func (w ginLike) Written() bool   { return w.written }

// wrappedWriter is what a middleware of a framework puts around its writer.
type wrappedWriter struct{ http.ResponseWriter }

func (w wrappedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// negroniLike has some of the methods of such writers, but its framework does not answer late.
type negroniLike struct{ http.ResponseWriter }

func (negroniLike) Before(func(http.ResponseWriter)) {}
func (negroniLike) Written() bool                    { return false }

// answeringLate is a framework that answers 402 after a handler that wrote nothing.
func answeringLate(writer func(*lateWriter) http.ResponseWriter) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			late := &lateWriter{ResponseWriter: w}
			next.ServeHTTP(writer(late), r)
			if !late.written {
				w.WriteHeader(http.StatusPaymentRequired)
				_, _ = w.Write([]byte("declined"))
			}
		})
	}
}

func asEcho(w *lateWriter) http.ResponseWriter { return echoLike{w} }

func asGin(w *lateWriter) http.ResponseWriter { return ginLike{w} }

func asWrapped(w *lateWriter) http.ResponseWriter { return wrappedWriter{wrappedWriter{echoLike{w}}} }

// answerNothing sets a field and returns.
func answerNothing(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Reason", "poor") }

func TestFrameworkAnswersForAHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, writer := range map[string]func(*lateWriter) http.ResponseWriter{
		"echo": asEcho, "gin": asGin, "wrapped": asWrapped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged bytes.Buffer
			svc := testservice.Setup{
				Outer: answeringLate(writer), Opts: idempotency.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))},
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

// A handler that writes to the writer of the framework writes past the middleware.
func TestAnswerPastTheMiddlewareIsNotStored(t *testing.T) {
	t.Parallel()
	for name, writer := range map[string]func(*lateWriter) http.ResponseWriter{"echo": asEcho, "gin": asGin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var outer http.ResponseWriter
			svc := testservice.Setup{Outer: answeringLate(func(w *lateWriter) http.ResponseWriter {
				outer = writer(w)
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
		writer  func(*lateWriter) http.ResponseWriter
		handler http.HandlerFunc
	}{
		"net/http":           {asServer, answerNothing},
		"wrapped":            {asServerWrapped, answerNothing},
		"another framework":  {asNegroni, answerNothing},
		"echo, a status":     {asEcho, explicit},
		"gin, a status":      {asGin, explicit},
		"gin, an empty body": {asGin, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(row.writer(&lateWriter{ResponseWriter: w}), r)
				})
			}}.Guard(t, row.handler)
			first := svc.Call("k", "")
			require.Equal(t, http.StatusOK, first.Status)
			testservice.RequireReplay(t, first, svc.Call("k", ""))
			require.EqualValues(t, 1, svc.Runs.Load())
		})
	}
}

// Echo's WrapMiddleware leaves the writer of the handler in the context, so echo answers by way of it: also after a
// panic, and after a timeout.
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

// What a handler has decided holds, although nobody knows its answer.
func TestVerdictOfAHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		verdict idempotency.Verdict
		retry   int
		runs    int64
	}{
		"keep":      {idempotency.Keep, http.StatusConflict, 1},
		"tombstone": {idempotency.Tombstone, http.StatusConflict, 1},
		"free":      {idempotency.Free, http.StatusPaymentRequired, 2},
		"unknown":   {idempotency.Unknown, http.StatusPaymentRequired, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: answeringLate(asEcho)}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
				idempotency.Decide(r.Context(), row.verdict)
			})
			require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
			retry := svc.Call("k", "")
			require.Equal(t, row.retry, retry.Status)
			if row.runs == 1 {
				testservice.RequireProblem(t, retry, http.StatusConflict, "not-replayable")
			}
			require.Equal(t, row.runs, svc.Runs.Load())
		})
	}
}

func TestRefuseAfterAHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{
		Outer: answeringLate(asEcho), Opts: idempotency.Options{Abandoned: idempotency.Refuse, Lease: 2 * time.Second},
	}.Guard(t, answerNothing)
	require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
	require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.Last(t).Outcome)
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "in-progress")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// Without a claim, nothing is recorded, and the framework answers.
func TestUnguardedHandlerWithoutAnswer(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = testservice.Failing(testservice.Always, idempotency.ErrUnavailable)
	svc := testservice.Setup{
		Store: store, Outer: answeringLate(asEcho), Opts: idempotency.Options{FailOpen: true},
	}.Guard(t, answerNothing)
	require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
}
