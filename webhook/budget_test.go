package webhook_test

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/webhook"
)

// patience bounds the wait for events that happen at once in correct code.
const patience = time.Minute

// All deliveries of a Receiver have the same user, so this user may take all of MaxBodies.
func TestOneSenderTakesAllOfMaxBodies(t *testing.T) {
	t.Parallel()
	const together, size = 4, 512
	arrived, finish := make(chan struct{}, together), make(chan struct{})
	release := sync.OnceFunc(func() { close(finish) })
	defer release()
	e := newEndpoint(t, "GitHub", idempotency.Options{MaxBody: size, MaxBodies: together * size},
		func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-finish
		})
	body := strings.Repeat("x", size)
	var group sync.WaitGroup
	for i := range together {
		group.Go(func() {
			answer := e.deliver(t, fmt.Sprint(i), body)
			if !assert.Equal(t, http.StatusOK, answer.Status, answer.Body) {
				arrived <- struct{}{} // in place of the handler
			}
		})
	}
	for range together {
		<-arrived
	}
	if !t.Failed() {
		refused := e.deliver(t, "5", body)
		require.Equal(t, http.StatusServiceUnavailable, refused.Status)
		require.NotEmpty(t, refused.Header.Get("Retry-After"))
		require.ErrorIs(t, e.journal.Last(t).Err, idempotency.ErrOverloaded)

		// The verified bodies have left the budget for unverified ones.
		require.Equal(t, http.StatusUnauthorized, e.send(t, "POST", signed(e.name, other, "1", body), body).Status)
	}
	release()
	group.Wait()
}

// silentDelivery opens a connection on which an unsigned delivery arrives, except for its last byte.
func (e *endpoint) silentDelivery(t *testing.T, announced, sent int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: hooks\r\nContent-Length: %d\r\n\r\n%s", announced, strings.Repeat("x", sent))
	require.NoError(t, err)
	return conn
}

func answerOn(t *testing.T, conn net.Conn) *http.Response {
	t.Helper()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer
}

// Attackers who send unsigned deliveries and fall silent occupy no more memory than MaxBodies.
func TestUnverifiedBodiesAreBounded(t *testing.T) { // not in parallel: it measures the memory of the process
	const size, fit, strangers = 4 << 20, 4, 12
	e := newEndpoint(t, "GitHub", idempotency.Options{MaxBody: size, MaxBodies: fit * size}, testservice.Status(200))
	before := testservice.HeapInUse()
	for round := range 2 {
		var held []net.Conn
		for range fit {
			held = append(held, e.silentDelivery(t, size, size-1))
		}
		require.Eventually(t, func() bool { return e.read.Load() == fit*(size-1) }, patience, time.Millisecond)
		for range strangers - fit {
			refused := answerOn(t, e.silentDelivery(t, size, 1))
			require.Equal(t, http.StatusServiceUnavailable, refused.StatusCode)
			require.Equal(t, "1", refused.Header.Get("Retry-After"))
			require.ErrorIs(t, e.journal.Last(t).Err, idempotency.ErrOverloaded)
			require.Equal(t, idempotency.OutcomeRejected, e.journal.Last(t).Outcome)
		}
		require.Less(t, testservice.HeapInUse()-before, int64((fit+2)*size), "12 bodies are in memory")
		for _, conn := range held {
			_, err := io.WriteString(conn, "x")
			require.NoError(t, err)
			require.Equal(t, http.StatusUnauthorized, answerOn(t, conn).StatusCode)
		}
		large := strings.Repeat("x", size)
		require.Equal(t, http.StatusOK, e.deliver(t, fmt.Sprintf("large-%d", round), large).Status)
		e.read.Store(0)
	}
}

// The budget for unverified bodies follows from the options, and has room for each body that MaxBody allows.
func TestUnverifiedLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ maxBody, maxBodies, want int64 }{
		{0, 0, 128 << 20},
		{1, 0, 128 << 20},
		{1 << 30, 0, 1 << 30},
		{math.MaxInt64, 0, math.MaxInt64},
		{0, 32 << 20, 32 << 20},
		{512, 512, 512},
	} {
		rc, err := webhook.New(testservice.NewSpyStore(), webhook.GitHub("secret"),
			idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.maxBodies})
		require.NoError(t, err)
		require.Equal(t, test.want, rc.UnverifiedLimit(), test)
	}
}

// Whatever ends a delivery, the room of its body returns to the budget.
func TestUnverifiedBodyIsGivenBack(t *testing.T) {
	t.Parallel()
	const size = 512
	body := strings.Repeat("x", size)
	e := newEndpoint(t, "GitHub", idempotency.Options{MaxBody: size, MaxBodies: size}, func(w http.ResponseWriter, r *http.Request) {
		switch got, _ := io.ReadAll(r.Body); {
		case strings.HasSuffix(r.URL.Path, "panic"):
			panic(http.ErrAbortHandler)
		case len(got) < size:
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	right := func(id string) http.Header { return signed(e.name, e.secret, id, body) }
	for i := range 3 {
		id := fmt.Sprint(i)
		require.Equal(t, http.StatusUnauthorized, e.send(t, "POST", signed(e.name, other, id, body), body).Status)
		require.Equal(t, http.StatusBadRequest, e.send(t, "POST", right("no key"), body).Status)
		require.Equal(t, http.StatusRequestEntityTooLarge, e.send(t, "POST", right(id), body+"x").Status)
		require.Equal(t, http.StatusMethodNotAllowed, e.send(t, "PUT", right(id), body).Status)
		half := e.silentDelivery(t, size, size-1)
		require.NoError(t, half.(*net.TCPConn).CloseWrite())
		require.Equal(t, http.StatusBadRequest, answerOn(t, half).StatusCode)

		r, err := http.NewRequestWithContext(t.Context(), "POST", e.url+"/panic", strings.NewReader(body))
		require.NoError(t, err)
		r.Header = right("panic-" + id)
		_, err = http.DefaultClient.Do(r) //nolint:bodyclose // there is no answer
		require.Error(t, err)
		for _, again := range []bool{false, true} {
			answer := e.send(t, "POST", right(id), body)
			require.Equal(t, http.StatusOK, answer.Status, answer.Body)
			require.Equal(t, again, answer.Replayed())
		}
	}
}

// A body leaves the budget before the answer is sent, so an attacker who does not read the answer occupies no room.
func TestUnverifiedBodyIsGivenBackBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	const size = 512
	body := strings.Repeat("x", size)
	for name, h := range map[string]http.Header{
		"wrong signature": signed("GitHub", other, "1", body),
		"no key":          signed("GitHub", "secret", "a b", body),
	} {
		synctest.Test(t, func(t *testing.T) {
			hooks, err := webhook.New(testservice.NewSpyStore(), webhook.GitHub("secret"),
				idempotency.Options{MaxBody: size, MaxBodies: size})
			require.NoError(t, err)
			endpoint := hooks.Handler(testservice.Status(200))
			deliver := func(w http.ResponseWriter, h http.Header) {
				r := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(body))
				r.Header = h
				endpoint.ServeHTTP(w, r)
			}
			slow := slowReader{ResponseRecorder: httptest.NewRecorder(), reads: make(chan struct{})}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				deliver(slow, h)
			}()
			synctest.Wait()
			meanwhile := httptest.NewRecorder()
			deliver(meanwhile, signed("GitHub", "secret", "2", body))
			close(slow.reads)
			<-ended
			require.Equal(t, http.StatusOK, meanwhile.Code, "%s: %s", name, meanwhile.Body)
			require.GreaterOrEqual(t, slow.Code, 400, name)
		})
	}
}

// slowReader reads nothing of an answer before reads is closed.
type slowReader struct {
	*httptest.ResponseRecorder
	reads chan struct{}
}

func (r slowReader) Write(p []byte) (int, error) {
	<-r.reads
	return r.ResponseRecorder.Write(p)
}

// If Verify panics, the room of the body returns to the budget.
func TestVerifyPanics(t *testing.T) {
	t.Parallel()
	verify := func(header http.Header, _ []byte) (string, error) {
		if header.Get("Id") == "panic" {
			panic(http.ErrAbortHandler)
		}
		return header.Get("Id"), nil
	}
	hooks, err := webhook.New(testservice.NewSpyStore(), webhook.Sender{Name: "acme", Verify: verify},
		idempotency.Options{MaxBody: 512, MaxBodies: 512})
	require.NoError(t, err)
	deliver := func(id string) int {
		r, w := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat("x", 512))), httptest.NewRecorder()
		r.Header.Set("Id", id)
		hooks.Handler(testservice.Status(200)).ServeHTTP(w, r)
		return w.Code
	}
	require.Panics(t, func() { deliver("panic") })
	require.Equal(t, http.StatusOK, deliver("1"))
}

// The server removes the temporary files of a form that a handler parses.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	t.Parallel()
	files := make(chan string, 1)
	e := newEndpoint(t, "GitHub", idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
		if assert.NoError(t, r.ParseMultipartForm(1)) {
			file, err := r.MultipartForm.File["attachment"][0].Open()
			assert.NoError(t, err)
			defer file.Close()
			files <- file.(*os.File).Name()
		}
	})
	var form strings.Builder
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("attachment", "a")
	require.NoError(t, err)
	_, _ = io.WriteString(part, strings.Repeat("x", 1<<10))
	require.NoError(t, w.Close())
	h := signed(e.name, e.secret, "1", form.String())
	h.Set("Content-Type", w.FormDataContentType())
	require.Equal(t, http.StatusOK, e.send(t, "POST", h, form.String()).Status)
	name := <-files
	require.Eventually(t, func() bool {
		_, err := os.Stat(name)
		return os.IsNotExist(err)
	}, patience, time.Millisecond)
}
