package benchmark

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// Work is the size of a request and of its answer, in bytes of body.
type Work struct{ Request, Response int }

// The measured sizes.
var (
	Small         = Work{256, 200}
	Medium        = Work{256, 64 << 10}
	Large         = Work{256, 1 << 20}
	LargeRequest  = Work{1 << 20, 200}
	answerContent = bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
)

func (w Work) String() string {
	return fmt.Sprintf("%s in, %s out", formatSize(w.Request), formatSize(w.Response))
}

// isSmall reports whether many requests of this size fit in a batch.
func (w Work) isSmall() bool { return w.Request < 1<<10 && w.Response < 1<<10 }

func formatSize(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	default:
		return fmt.Sprintf("%d B", n)
	}
}

func (w Work) makeBody() []byte {
	const content = `{"amount":1,"cur":"EUR"}`
	return bytes.Repeat([]byte(content), w.Request/len(content)+1)[:w.Request]
}

func (w Work) answerBody() []byte { return answerContent[:w.Response] }

// App is the handler behind every subject. It reads the body of the request and answers with four fields and a body.
type App struct {
	Work   Work
	Status int    // of the answer
	During func() // called by each execution; may be nil

	executionCount atomic.Int64
}

// NewApp returns a handler for the work.
func NewApp(work Work) *App { return &App{Work: work, Status: http.StatusCreated} }

// The header fields of the answer. All answers share the slices, because the handler should allocate nothing.
var (
	contentType  = []string{"application/json"}
	location     = []string{"/v1/payments/pay_0123456789"}
	requestID    = []string{"req_0123456789abcdef"}
	cacheControl = []string{"no-store"}
)

// ServeHTTP implements [http.Handler].
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.startExecution()
	_, _ = io.Copy(io.Discard, r.Body) // the answer of the middleware shows a read error
	h := w.Header()
	h["Content-Type"] = contentType
	h["Location"] = location
	h["X-Request-Id"] = requestID
	h["Cache-Control"] = cacheControl
	w.WriteHeader(a.Status)
	const chunk = 32 << 10 // the buffer size of io.Copy
	for p := a.Work.answerBody(); len(p) > 0; p = p[min(chunk, len(p)):] {
		_, _ = w.Write(p[:min(chunk, len(p))])
	}
}

func (a *App) startExecution() {
	a.executionCount.Add(1)
	if a.During != nil {
		a.During()
	}
}

const keyLength = 36 // of a UUID

var keySets atomic.Uint64

// NewKeys returns n keys in the form of a UUID, different from the keys of all earlier calls. All keys are parts of a
// single string, because the garbage collector would have to scan separate strings.
func NewKeys(n int) []string {
	set := keySets.Add(1)
	var b strings.Builder
	b.Grow(n * keyLength)
	for i := range n {
		fmt.Fprintf(&b, "%08x-%04x-4000-8000-%012x", uint32(i)*2654435761, uint16(set>>16), set&0xffff<<32|uint64(i))
	}
	all := b.String()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = all[i*keyLength : (i+1)*keyLength]
	}
	return keys
}
