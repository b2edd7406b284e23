package keyfrom_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// patience bounds the wait for events that happen at once in correct code.
const (
	patience = time.Minute
	tick     = time.Millisecond
	minute   = time.Minute
)

// jsonOf returns a JSON body of size bytes, with a key unless key is empty.
func jsonOf(key string, size int) string {
	body := `{"text":"`
	if key != "" {
		body = fmt.Sprintf(`{"key":%q,"text":"`, key)
	}
	return body + strings.Repeat("x", size-len(body)-2) + `"}`
}

// A body that must be searched is read within MaxBody, whether or not it has a key.
func TestMaxBody(t *testing.T) {
	t.Parallel()
	const limit = 4 << 10
	svc := newService(t, setup{opts: idempotency.Options{MaxBody: limit}}).serve(t, false)
	inChunks := func(r *http.Request) { r.ContentLength, r.Body = -1, io.NopCloser(io.LimitReader(r.Body, 1<<20)) }
	for _, key := range []string{"", "k"} {
		for _, edit := range []testservice.Edit{func(*http.Request) {}, inChunks} {
			require.Equal(t, key, decode(t, message{"", js, jsonOf(key, limit)}.sendTo(svc, "", edit)).Key)
			refused := message{"", js, jsonOf(key, limit+1)}.sendTo(svc, "", edit)
			testservice.RequireProblem(t, refused, http.StatusRequestEntityTooLarge, "body-too-large")
			require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrBodyTooLarge)
		}
	}
	large := message{"", "text/plain", strings.Repeat("x", limit+1)}
	require.Empty(t, decode(t, large.sendTo(svc, "")).Key, "nothing to search, and no key")

	outer := func(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 100) }
	svc = newService(t, setup{outer: outer}).serve(t, false)
	refused := message{"", js, jsonOf("k", 101)}.sendTo(svc, "")
	testservice.RequireProblem(t, refused, http.StatusRequestEntityTooLarge, "body-too-large")
}

// unreadable is a body that must not be read.
type unreadable struct{ t *testing.T }

func (b unreadable) Read([]byte) (int, error) {
	b.t.Error("the body was read")
	return 0, io.EOF
}

// What can be refused without the body is refused without it.
func TestRefusedBeforeTheBodyIsRead(t *testing.T) {
	t.Parallel()
	unknown := func(r *http.Request) (string, error) { return r.Header.Get("User"), nil }
	down := func(*http.Request) (string, error) {
		return "", &idempotency.Error{Status: http.StatusServiceUnavailable, Title: "No login at the moment"}
	}
	for name, row := range map[string]struct {
		user   idempotency.UserFunc
		target string
		header http.Header
		length int64
		status int
	}{
		"unknown user":        {unknown, "/", nil, 9, http.StatusUnauthorized},
		"authentication down": {down, "/", nil, 9, http.StatusServiceUnavailable},
		"two headers":         {nil, "/", http.Header{"Idempotency-Key": {"a", "b"}}, 9, http.StatusBadRequest},
		"header and query":    {nil, "/?key=a", http.Header{"Idempotency-Key": {"b"}}, 9, http.StatusBadRequest},
		"malformed query":     {nil, "/?key=%zz", nil, 9, http.StatusBadRequest},
		"announced size":      {nil, "/", nil, 1 << 30, http.StatusRequestEntityTooLarge},
	} {
		svc := newService(t, setup{user: row.user})
		r := httptest.NewRequest("POST", row.target, io.NopCloser(unreadable{t}))
		r.ContentLength = row.length
		r.Header.Set("Content-Type", js)
		for field, values := range row.header {
			r.Header[field] = values
		}
		w := httptest.NewRecorder()
		svc.Handler.ServeHTTP(w, r)
		require.Equal(t, row.status, w.Code, "%s: %s", name, w.Body)
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		require.Equal(t, idempotency.OutcomeRejected, svc.Journal.Last(t).Outcome, name)
		require.Zero(t, svc.Runs.Load())
	}
}

// The user is asked once for each request, also if its body was searched.
func TestUserIsAskedOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	user := func(*http.Request) (string, error) {
		asked++
		return "alice", nil
	}
	svc := newService(t, setup{user: user})
	for i, sent := range []message{{"", js, `{"key":"k"}`}, {"key=q", js, "{}"}, {"", encoded, "key=m"}} {
		require.Equal(t, http.StatusBadRequest, message{"", js, `{`}.sendTo(svc, "").Status)
		require.Equal(t, 2*i+1, asked)
		decode(t, sent.sendTo(svc, ""))
		require.Equal(t, 2*(i+1), asked)
	}
}

// A body that other code has read before is a fault of the server, because its key is lost.
func TestConsumedBody(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(*http.Request){
		"all":  func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"form": func(r *http.Request) { _ = r.ParseForm() },
	} {
		outer := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(r)
				next.ServeHTTP(w, r)
			})
		}
		svc := newService(t, setup{outer: outer}).serve(t, false)
		refused := message{"", encoded, "key=k"}.sendTo(svc, "")
		testservice.RequireProblem(t, refused, http.StatusInternalServerError, "body-consumed")
		require.Zero(t, svc.Runs.Load(), name)
	}
}

// The answers of keyfrom look like the answers of the middleware.
func TestRefusalsFollowTheOptions(t *testing.T) {
	t.Parallel()
	var codes []string
	svc := newService(t, setup{opts: idempotency.Options{
		ProblemBase: "https://problems.example/",
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			codes = append(codes, e.Type)
			idempotency.WriteProblem(w, r, e)
		},
	}})
	for _, sent := range []message{{"", js, `{`}, {"", js, `{"key":1}`}, {"", js, `{"key":" "}`}} {
		require.Equal(t, http.StatusBadRequest, sent.sendTo(svc, "").Status)
	}
	require.Equal(t, []string{"https://problems.example/body-invalid", "https://problems.example/key-invalid",
		"https://problems.example/key-invalid"}, codes)
}

// silentRequest opens a connection on which a request arrives, except for its last byte.
func (s *service) silentRequest(t *testing.T, user, body string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = fmt.Fprintf(conn, "POST /payments HTTP/1.1\r\nHost: a\r\nUser: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		user, js, len(body), body[:len(body)-1])
	require.NoError(t, err)
	return conn
}

// Bodies that arrive slowly occupy the share of their user, and no claim, and leave the others alone.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	const size = 2 << 10
	store := testservice.NewSpyStore()
	svc := newService(t, setup{store: store, opts: idempotency.Options{MaxBody: size, MaxBodies: 2 * size, MaxUserBodies: size}})
	arriving := make(chan struct{}, 1)
	inner := svc.Handler
	svc.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = notifying{r.Body, arriving}
		inner.ServeHTTP(w, r)
	})
	svc.Server = httptest.NewServer(svc.Handler) // a connection of its own for each request
	t.Cleanup(svc.Server.Close)
	body := jsonOf("slow", size)
	conn := svc.silentRequest(t, "mallory", body)
	for range 2 { // the first read, and the one that waits for the last byte
		<-arriving
	}
	refused := message{"", js, jsonOf("m", size)}.sendTo(svc, "", as("mallory"))
	testservice.RequireProblem(t, refused, http.StatusServiceUnavailable, "overloaded")
	require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrOverloaded)
	require.Equal(t, "b", decode(t, message{"", js, jsonOf("b", size)}.sendTo(svc, "", as("bob"))).Key)
	require.EqualValues(t, 1, store.Begins.Load(), "the store was asked for bob only")

	_, err := io.WriteString(conn, body[len(body)-1:])
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusCreated, answer.StatusCode)
}

// notifying is a body that tells when it is read.
type notifying struct {
	io.ReadCloser
	reading chan<- struct{}
}

func (b notifying) Read(p []byte) (int, error) {
	select {
	case b.reading <- struct{}{}:
	default:
	}
	return b.ReadCloser.Read(p)
}

// Whatever ends a request, the room of its body returns to the budget.
func TestRoomIsGivenBack(t *testing.T) {
	t.Parallel()
	const size = 512
	handler := func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "panic") {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated) // without reading the body
	}
	for _, content := range []bool{false, true} {
		sources := []keyfrom.Source{keyfrom.JSON("/key")}
		if content {
			sources = append(sources, keyfrom.Content(minute, idempotency.FingerprintRaw))
		}
		svc := newService(t, setup{
			sources: sources, handler: handler, opts: idempotency.Options{MaxBody: size, MaxBodies: size, MaxUserBodies: size},
		}).serve(t, false)
		for i := range 3 {
			for name, row := range map[string]struct {
				sent   message
				status int
			}{
				"key":         {message{"", js, jsonOf(fmt.Sprint(i), size)}, http.StatusCreated},
				"no key":      {message{fmt.Sprint(i), js, jsonOf("", size)}, http.StatusCreated},
				"invalid key": {message{"", js, jsonOf(" ", size)}, http.StatusBadRequest},
				"no string":   {message{"", js, strings.Replace(jsonOf("", size), "text", "key", 1)}, http.StatusCreated},
				"malformed":   {message{"", js, strings.Repeat("{", size)}, http.StatusBadRequest},
				"too large":   {message{"", js, jsonOf("", size+1)}, http.StatusRequestEntityTooLarge},
				"panic":       {message{fmt.Sprint("panic", i), js, jsonOf("", size)}, 0},
				"key, panic":  {message{"panic", js, jsonOf(fmt.Sprint("p", i), size)}, 0},
			} {
				if name == "no string" { // a key that is too long, which the middleware refuses
					row.status = http.StatusBadRequest
				}
				got := row.sent.sendTo(svc, "")
				require.Equal(t, row.status, got.Status, "%s: %s", name, got.Body)
				require.Equal(t, row.status == 0, got.Err != nil, name)
			}
		}
	}
}

// A refused body leaves the budget before its answer is sent, so a client that reads slowly occupies no room.
func TestRoomIsGivenBackBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	const size = 512
	svc := newService(t, setup{opts: idempotency.Options{Required: true, MaxBody: size, MaxBodies: size, MaxUserBodies: size}})
	for name, body := range map[string]string{
		"no key": jsonOf("", size), "invalid key": jsonOf(" ", size), "malformed": strings.Repeat("{", size),
	} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		r.Header.Set("Content-Type", js)
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), meanwhile: func() {
			decode(t, message{"", js, jsonOf(name[:2], size)}.sendTo(svc, ""))
		}}
		svc.Handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, name)
		require.Nil(t, w.meanwhile, name)
	}
}

// slowWriter calls meanwhile when its client is to read.
type slowWriter struct {
	*httptest.ResponseRecorder
	meanwhile func()
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if meanwhile := w.meanwhile; meanwhile != nil {
		w.meanwhile = nil
		meanwhile()
	}
	return w.ResponseRecorder.Write(p)
}

// A body that breaks off is refused.
func TestBrokenBody(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{})
	broken := io.MultiReader(bytes.NewReader([]byte(`{"key":"k"`)), failingReader{})
	r := httptest.NewRequest("POST", "/payments", broken)
	r.Header.Set("Content-Type", js)
	w := httptest.NewRecorder()
	svc.Handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.ErrorIs(t, svc.Journal.Last(t).Err, io.ErrUnexpectedEOF)
	require.True(t, errors.Is(svc.Journal.Last(t).Err, idempotency.ErrBodyInvalid))
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
