package idempotency_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// lateForgery is a forgedStore whose response changes.
type lateForgery struct {
	response *atomic.Pointer[idempotency.Response]
}

func (s lateForgery) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return testservice.ForgedStore{Response: s.response.Load()}.Begin(ctx, key, request)
}

// refusable are the fields for which a stored response may be refused.
var refusable = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date", "Content-Length",
	"Idempotent-Replayed",
}

// ofNetHTTP are the fields that net/http adds to a response by itself.
var ofNetHTTP = []string{"Connection", "Content-Length", "Content-Type", "Trailer", "Transfer-Encoding"}

// canonical returns the names of fields as a client reads them.
func canonical(fields ...idempotency.Fields) (names []string) {
	for _, f := range fields {
		for name := range f.Header() {
			names = append(names, textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix)))
		}
	}
	return names
}

// illegible are bytes that net/http sends in the value of a field, and no client reads.
var illegible = regexp.MustCompile(`[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]`)

func anyOf(names, of []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(of, name) })
}

// FuzzForgedResponse replays whatever response is stored, over a real server. It is answered as a plain handler would
// answer it, byte for byte; or it is refused, for one of few reasons. A client never takes it for two, and never reads a
// field that is not stored. The server does not panic.
func FuzzForgedResponse(f *testing.F) {
	f.Add(200, "Content-Type: text/plain\n", "", []byte("body"))
	f.Add(200, "transfer-encoding: chunked\n", "", []byte("0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	f.Add(204, "Content-Length: 3\n", `Trailer\x3aX: y`+"\n", []byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Add(304, "Trailer: A\n", "A: b\n", []byte(nil))
	f.Add(-1, `a\x0d\x0ab: c`+"\n", "", []byte("x"))
	f.Add(201, `A: b\x0d\x0aX: y`+"\nDate\nSet-Cookie: a\nSet-Cookie: b\n", "", []byte("<html>"))
	f.Add(200, "Content-Length: 4\nTrailer: A, B\n", "A: 1\nB: 2\n", []byte("body"))
	f.Add(200, "Content-Encoding: gzip\nContent-Type\n", `Trailer\x3aA: 1`+"\n", make([]byte, 3000))
	var resp atomic.Pointer[idempotency.Response]
	m, err := idempotency.New(lateForgery{&resp}, idempotency.SingleUser, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(f, err)
	var panics atomic.Int64
	watched := func(next http.Handler) *memoryNetwork {
		return serveInMemory(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			next.ServeHTTP(w, r)
		}))
	}
	guarded := watched(m.Handler(http.NotFoundHandler()))
	plain := watched(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answerAs(w, resp.Load()) }))
	f.Fuzz(func(t *testing.T, status int, header, trailer string, body []byte) {
		stored := idempotency.Response{
			Status: status, Header: idempotency.Fields(header), Trailer: idempotency.Fields(trailer), Body: body,
		}
		data, err := stored.MarshalBinary()
		require.NoError(t, err)
		var read idempotency.Response
		if err := read.UnmarshalBinary(data); err != nil {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			return
		}
		resp.Store(&read)
		const request = "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
		reply := guarded.send(t, request)
		require.Zero(t, panics.Load())
		names := canonical(read.Header, read.Trailer)
		if strings.HasPrefix(reply, "HTTP/1.1 503 ") && strings.Contains(reply, "#store-unavailable") {
			require.True(t, status < 200 || status > 999 || anyOf(names, refusable), "refused: %d %q %q", status, header, trailer)
			require.NotContains(t, reply, "Idempotent-Replayed")
			return
		}
		require.Equal(t, withoutMark(plain.send(t, request)), withoutMark(reply))
		if illegible.MatchString(unescaped(header + trailer)) {
			return // clients refuse such a value, whoever sends it
		}
		got := readWhole(t, reply, http.MethodPost)
		require.True(t, got.Replayed())
		require.Equal(t, status, got.Status)
		if status != http.StatusNoContent && status != http.StatusNotModified {
			require.Equal(t, string(body), got.Body)
		}
		for name := range maps.Keys(got.Header) {
			require.True(t, name == "Idempotent-Replayed" || anyOf([]string{name}, append(names, ofNetHTTP...)), "%q", name)
		}
	})
}

// answerAs answers as a handler does that knows nothing of this package.
func answerAs(w http.ResponseWriter, resp *idempotency.Response) {
	trailer := resp.Trailer.Header()
	maps.Copy(w.Header(), resp.Header.Header())
	for name, values := range trailer {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(resp.Status)
	_, _ = w.Write(resp.Body)
	maps.Copy(w.Header(), trailer)
}
