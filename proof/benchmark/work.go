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

// The works that are measured.
var (
	Small         = Work{256, 200}
	Medium        = Work{256, 64 << 10}
	Large         = Work{256, 1 << 20}
	LargeRequest  = Work{1 << 20, 200}
	answerContent = bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
)

func (w Work) String() string { return fmt.Sprintf("%s in, %s out", size(w.Request), size(w.Response)) }

// small reports whether many requests with this work fit in a batch.
func (w Work) small() bool { return w.Request < 1<<10 && w.Response < 1<<10 }

func size(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	default:
		return fmt.Sprintf("%d B", n)
	}
}

func (w Work) body() []byte {
	const content = `{"amount":1,"cur":"EUR"}`
	return bytes.Repeat([]byte(content), w.Request/len(content)+1)[:w.Request]
}

func (w Work) answer() []byte { return answerContent[:w.Response] }

// App is the handler behind every subject. It reads the body of the request and answers with four fields and a body.
type App struct {
	Work   Work
	Status int    // of the answer
	During func() // is called by each execution, unless it is nil

	executions atomic.Int64
}

// NewApp returns a handler for the work.
func NewApp(work Work) *App { return &App{Work: work, Status: http.StatusCreated} }

// The fields of the answer. The slices are shared, so that the handler itself allocates nothing.
var (
	contentType  = []string{"application/json"}
	location     = []string{"/v1/payments/pay_0123456789"}
	requestID    = []string{"req_0123456789abcdef"}
	cacheControl = []string{"no-store"}
)

// ServeHTTP implements [http.Handler].
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.enter()
	_, _ = io.Copy(io.Discard, r.Body) // a body that cannot be read shows in the answer of the middleware
	h := w.Header()
	h["Content-Type"] = contentType
	h["Location"] = location
	h["X-Request-Id"] = requestID
	h["Cache-Control"] = cacheControl
	w.WriteHeader(a.Status)
	const chunk = 32 << 10 // as io.Copy writes
	for p := a.Work.answer(); len(p) > 0; p = p[min(chunk, len(p)):] {
		_, _ = w.Write(p[:min(chunk, len(p))])
	}
}

func (a *App) enter() {
	a.executions.Add(1)
	if a.During != nil {
		a.During()
	}
}

const keyLength = 36 // of a UUID

var keySets atomic.Uint64

// NewKeys returns n keys in the form of a UUID, different from all keys of earlier calls. All keys share one string, so the
// garbage collector has nothing to scan.
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
