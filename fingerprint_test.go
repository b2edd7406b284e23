package idempotency_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

const mediaTypeJSON = "application/json"

// requestContent holds the parts of a request that make its fingerprint.
type requestContent struct{ query, mediaType, body string }

func (c requestContent) computeFingerprint(f idempotency.FingerprintFunc) (idempotency.Fingerprint, error) {
	r := httptest.NewRequest(http.MethodPost, "/payments?"+c.query, nil)
	r.Header.Set("Content-Type", c.mediaType)
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	return f(r, []byte(c.body))
}

func TestFingerprints(t *testing.T) {
	t.Parallel()
	raw := idempotency.FingerprintRaw
	for _, row := range []struct {
		name          string
		function      idempotency.FingerprintFunc
		first, second requestContent
		wantSame      bool
	}{
		{"equal", raw, requestContent{"q=1", "text/plain", "b"}, requestContent{"q=1", "text/plain", "b"}, true},
		{"other body", raw, requestContent{"", "", "b"}, requestContent{"", "", "c"}, false},
		{"other query", raw, requestContent{"amount=1", "", ""}, requestContent{"amount=100", "", ""}, false},
		{"other media type", raw, requestContent{"", "text/plain", "b"}, requestContent{"", "text/html", "b"}, false},
		{"other parameters", raw, requestContent{"", "text/plain; charset=utf-8", "b"},
			requestContent{"", "Text/Plain ;charset=UTF-8", "b"}, true},
		{"bytes moved from query to body", raw, requestContent{"ab", "", "c"}, requestContent{"a", "", "bc"}, false},
		{"bytes moved from type to body", raw, requestContent{"", "a/b", "c"}, requestContent{"", "a/", "bc"}, false},
		{"white space, raw", raw, requestContent{"", mediaTypeJSON, `{"a":1}`}, requestContent{"", mediaTypeJSON, `{"a": 1}`}, false},
		{"start, raw", raw,
			requestContent{"", "multipart/related; boundary=x; start=a", "--x--"},
			requestContent{"", "multipart/related; boundary=x; start=b", "--x--"}, false},
		{"boundary, raw", raw,
			requestContent{"", "multipart/mixed; boundary=x", "--x--y--"},
			requestContent{"", "multipart/mixed; boundary=y", "--x--y--"}, false},
	} {
		first, err := row.first.computeFingerprint(row.function)
		require.NoError(t, err, row.name)
		second, err := row.second.computeFingerprint(row.function)
		require.NoError(t, err, row.name)
		require.Equal(t, row.wantSame, first == second, row.name)
		require.NotZero(t, first)
	}
}

// FingerprintRaw must always return the same fingerprints, because a store has fingerprints of other releases of this package.
func TestFingerprintsAreFrozen(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		want     string
		function idempotency.FingerprintFunc
		request  requestContent
	}{
		{"16779a4f55a369c0880d6d27ce59e9040be1843b6ced90c3950279fe4aa431ec",
			idempotency.FingerprintRaw, requestContent{"q=1", "text/plain; charset=utf-8", "hello"}},
	} {
		got, err := row.request.computeFingerprint(row.function)
		require.NoError(t, err)
		require.Equal(t, row.want, got.String())
	}
}

// If outer middleware has read the body, the Middleware cannot compare the request with an earlier request, and refuses the
// request. A guess could answer a payment of 900 with the answer to a payment of 100.
func TestBodyReadByOuterMiddleware(t *testing.T) {
	t.Parallel()
	form := url.Values{"csrf": {"ok"}, "amount": {"900"}}.Encode()
	multipart := "--x\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n900\r\n--x--\r\n"
	for name, test := range map[string]struct {
		mediaType, body string
		readOutside     func(*http.Request)
		wantRefusal     bool
	}{
		"form": {"application/x-www-form-urlencoded", form, func(r *http.Request) { r.PostFormValue("csrf") }, true},
		"form of unknown length": {"application/x-www-form-urlencoded", form, func(r *http.Request) {
			r.ContentLength = -1
			r.PostFormValue("csrf")
		}, true},
		"multipart form": {"multipart/form-data; boundary=x", multipart, func(r *http.Request) {
			r.ContentLength = -1
			r.PostFormValue("csrf")
		}, true},
		"multipart form of files only": {"multipart/form-data; boundary=x",
			strings.Replace(multipart, `"amount"`, `"amount"; filename="amount"`, 1), func(r *http.Request) {
				r.ContentLength = -1
				r.PostFormValue("csrf")
			}, true},
		"whole body": {"text/plain", "900", func(r *http.Request) { _, _ = io.ReadAll(r.Body) }, true},
		"whole body, put back": {"text/plain", "900", func(r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}, false},
		"form value of a body that is no form":  {"application/json", "900", func(r *http.Request) { r.PostFormValue("csrf") }, false},
		"form value of a query, without a body": {"", "", func(r *http.Request) { r.FormValue("csrf") }, false},
		"unread body":                           {"text/plain", "900", func(*http.Request) {}, false},
	} {
		svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				test.readOutside(r)
				next.ServeHTTP(w, r)
			})
		}}.Serve(t, testservice.Echo)
		got := svc.Post("k", test.body, testservice.WithHeader("Content-Type", test.mediaType))
		if !test.wantRefusal {
			require.Equal(t, http.StatusCreated, got.Status, name)
			require.Equal(t, test.body, got.Body, name)
			continue
		}
		testservice.RequireProblem(t, got, http.StatusInternalServerError, "body-consumed")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrBodyConsumed)
		require.Zero(t, svc.Runs.Load())
	}
}

// A large Content-Length costs the client nothing, so the server must not allocate memory for a body that has not arrived.
func TestAnnouncedBodyTakesNoMemory(t *testing.T) {
	const requests, announced = 64, 1 << 20
	firstReads := make(chan struct{}, requests)
	svc := testservice.Setup{}.Guard(t, testservice.Echo)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var group sync.WaitGroup
	end := make(chan struct{})
	for range requests {
		r := httptest.NewRequest(http.MethodPost, "/payments", &slowBody{firstReads, end})
		r.ContentLength = announced
		r.Header.Set("Idempotency-Key", "k")
		group.Go(func() { svc.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	}
	for range requests {
		<-firstReads
	}
	runtime.ReadMemStats(&after)
	close(end)
	group.Wait()
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(requests*announced/8))
}

// slowBody sends one byte, after a signal to firstRead. The next Read waits for end, and fails. Without firstRead, already the
// first Read waits and fails.
type slowBody struct {
	firstRead chan<- struct{}
	end       <-chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.firstRead != nil {
		b.firstRead <- struct{}{}
		b.firstRead = nil
		return copy(p, "x"), nil
	}
	<-b.end
	return 0, io.ErrUnexpectedEOF
}

func TestBodyThatArrivesInPieces(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789abcdef", 50_000)
	for _, length := range []int64{int64(len(body)), -1} {
		svc := testservice.Setup{}.Guard(t, testservice.Echo)
		r := httptest.NewRequest(http.MethodPost, "/payments", io.MultiReader(
			strings.NewReader(body[:1]), strings.NewReader(body[1:40_000]), strings.NewReader(body[40_000:])))
		r.ContentLength = length
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		svc.Handler.ServeHTTP(w, r)
		require.Equal(t, body, w.Body.String())
	}
}

// The buffers of all bodies in memory stay within the budget, even if a buffer has served a larger body before, and if only
// a small part of a body has arrived.
func TestBudgetOfBodies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		announcedLength int64 // -1: unknown
		sentBytes       int   // the client sends no more
		wantInMemory    int   // how many such bodies the budget admits
	}{
		"announced":                   {100, 1, 520},
		"not announced":               {-1, 1, 520},
		"a full buffer":               {512, 512, 520},
		"one byte more than a buffer": {-1, 513, 260},
		"large, not announced":        {-1, 40_000, 4},
		"large":                       {50_000, 40_000, 4},
		"large, one byte has arrived": {200_000, 1, 8},
		"the largest":                 {256 << 10, 256 << 10, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			const largest, budget = 256 << 10, 260 << 10 // some bodies fit only until their buffers grow
			opts := idempotency.Options{MaxBody: largest, MaxBodies: budget, MaxUserBodies: budget}
			svc := testservice.Setup{Opts: opts}.Guard(t, testservice.Echo)
			end := make(chan struct{})
			var group sync.WaitGroup
			send := func(announced int64, size int) *silentBody {
				body := &silentBody{text: strings.Repeat("x", size), end: end}
				group.Go(func() {
					r := httptest.NewRequest(http.MethodPost, "/payments", body)
					r.ContentLength = announced
					r.Header.Set("Idempotency-Key", rand.Text())
					w := httptest.NewRecorder()
					svc.Handler.ServeHTTP(w, r)
					body.status = w.Code
				})
				synctest.Wait()
				return body
			}
			for range 3 { // so that there are buffers that have served large bodies
				send(-1, largest)
				close(end)
				group.Wait()
				end = make(chan struct{})
			}
			var inMemory []*silentBody
			capacity := 0
			for len(inMemory) <= test.wantInMemory {
				body := send(test.announcedLength, test.sentBytes)
				if body.status != 0 {
					require.Equal(t, http.StatusServiceUnavailable, body.status, name)
					break
				}
				inMemory = append(inMemory, body)
				capacity += body.bufferCapacity
			}
			close(end)
			group.Wait()
			require.Len(t, inMemory, test.wantInMemory, name)
			require.LessOrEqual(t, capacity, budget, name)
			require.Zero(t, svc.Middleware.UsersCounted(), name)
		})
	}
}

// silentBody is the body of a client that sends text, and then nothing until end is closed.
type silentBody struct {
	text           string
	readBytes      int
	end            <-chan struct{}
	bufferCapacity int // of the buffer that the Middleware reads into
	status         int // of the answer
}

func (b *silentBody) Read(p []byte) (int, error) {
	if b.readBytes < len(b.text) || b.readBytes == 0 || cap(p) > 1 { // otherwise p is the byte behind a full buffer
		b.bufferCapacity = b.readBytes + cap(p)
	}
	if b.readBytes == len(b.text) {
		<-b.end
		return 0, io.EOF
	}
	n := copy(p, b.text[b.readBytes:])
	b.readBytes += n
	return n, nil
}

// The buffer of a huge body has the size of the body instead of a power of two, because no other request reuses the buffer.
func TestHugeBodyHasABufferOfItsSize(t *testing.T) {
	t.Parallel()
	const size = 3_000_000
	end := make(chan struct{})
	close(end)
	body := &silentBody{text: strings.Repeat("x", size), end: end}
	r := httptest.NewRequest(http.MethodPost, "/payments", body)
	r.ContentLength = size
	r.Header.Set("Idempotency-Key", "k")
	svc := testservice.Setup{Opts: idempotency.Options{MaxBody: 2 * size}}.Guard(t, testservice.Echo)
	svc.Handler.ServeHTTP(httptest.NewRecorder(), r)
	require.Equal(t, size, body.bufferCapacity)
}

// Each end of a request gives the room of the body back to the budget: an answer, a refusal, and a body that breaks off.
func TestEachEndOfARequestFreesItsBody(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{MaxBody: 512, MaxBodies: 512}}.Guard(t, testservice.Echo)
	for range 5 {
		require.Equal(t, http.StatusCreated, svc.Call("k", strings.Repeat("x", 512)).Status)
		testservice.RequireProblem(t, svc.Call("l", strings.Repeat("x", 513)), http.StatusRequestEntityTooLarge, "body-too-large")
		testservice.RequireProblem(t, svc.Call("l", "", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 513))), -1
		}), http.StatusRequestEntityTooLarge, "body-too-large")
		testservice.RequireProblem(t, svc.Call("k", strings.Repeat("y", 512)), http.StatusConflict, "key-reused")
		testservice.RequireProblem(t, svc.Call("m", "", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("xxx"), failingReader{})), -1
		}), http.StatusBadRequest, "body-invalid")
		require.Zero(t, svc.Middleware.UsersCounted())
	}
}

func TestBudgetHasRoomForOneBody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ maxBody, leastBudget int64 }{
		{1, 512}, {512, 512}, {513, 1024}, {1 << 20, 1 << 20}, {3_000_000, 3_000_000},
	} {
		_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser,
			idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.leastBudget - 1})
		require.ErrorContains(t, err, "MaxBodies")
		_, err = idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser,
			idempotency.Options{MaxBody: test.maxBody, MaxUserBodies: test.leastBudget - 1})
		require.ErrorContains(t, err, "MaxUserBodies")
		opts := idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.leastBudget}
		for _, announced := range []int64{-1, test.maxBody} {
			svc := testservice.Setup{Opts: opts}.Guard(t, func(http.ResponseWriter, *http.Request) {})
			got := svc.Call("k", strings.Repeat("x", int(test.maxBody)), func(r *http.Request) { r.ContentLength = announced })
			require.Equal(t, http.StatusOK, got.Status, "%+v: %s", test, got.Body)
		}
	}
}

// A body leaves the budget before the answer is sent, so a client that reads the answer slowly takes no room from the bodies
// of other clients.
func TestBodyLeavesTheBudgetBeforeTheAnswerGoesOut(t *testing.T) {
	t.Parallel()
	const size = 512
	body, other := strings.Repeat("x", size), strings.Repeat("y", size)
	for name, test := range map[string]struct {
		key, body  string // of the request whose answer the client reads slowly
		wantStatus int
	}{
		"first answer":              {"first", body, http.StatusCreated},
		"answer that is not stored": {"busy", body, http.StatusServiceUnavailable},
		"replay":                    {"known", body, http.StatusCreated},
		"refused replay":            {"denied", body, http.StatusForbidden},
		"key of another request":    {"known", other, http.StatusConflict},
		"body that breaks off":      {"torn", "", http.StatusBadRequest},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := idempotency.Options{MaxBody: size, MaxBodies: size}
			opts.Replay = func(r *http.Request, _ *idempotency.Response) error {
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, body, string(got))
				if r.Header.Get("Idempotency-Key") == "denied" {
					return &idempotency.Error{Status: http.StatusForbidden}
				}
				return nil
			}
			svc := testservice.Setup{Opts: opts}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") == "busy" {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				testservice.Echo(w, r)
			})
			svc.Call("known", body)
			svc.Call("denied", body)
			w := &slowClient{ResponseRecorder: httptest.NewRecorder(), startReading: make(chan struct{})}
			done := make(chan struct{})
			go func() {
				defer close(done)
				r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(test.body))
				r.Header.Set("Idempotency-Key", test.key)
				if test.body == "" {
					r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("x"), failingReader{})), -1
				}
				svc.Handler.ServeHTTP(w, r)
			}()
			synctest.Wait()
			meanwhile := svc.Call("other", other)
			close(w.startReading)
			<-done
			require.Equal(t, test.wantStatus, w.Code, name)
			require.Equal(t, http.StatusCreated, meanwhile.Status, "%s: %s", name, meanwhile.Body)
			require.Zero(t, svc.Middleware.UsersCounted(), name)
		})
	}
}

// slowClient reads the body of its answer after startReading is closed.
type slowClient struct {
	*httptest.ResponseRecorder
	startReading chan struct{}
}

func (c *slowClient) Write(p []byte) (int, error) {
	<-c.startReading
	return c.ResponseRecorder.Write(p)
}

// withLateBody returns an Edit that gives a request a body of size bytes. The last byte never arrives, because the body
// breaks off when end is closed.
func withLateBody(size int, end <-chan struct{}) testservice.Edit {
	return func(r *http.Request) {
		r.ContentLength = int64(size)
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", size-1)), &slowBody{end: end}))
	}
}

// A user who sends bodies slowly fills only a share of the budget, and leaves the rest for other users.
func TestBodiesOfOneUserLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		maxBody, maxBodies, maxUserBodies int64
		wantInMemory                      int  // small bodies of a single user, in buffers of 512 bytes
		isBudgetFull                      bool // other users have no room then
	}{
		"half of the budget, by default":         {512, 2048, 0, 2, false},
		"one body, more than half of the budget": {1024, 1536, 0, 2, false},
		"less than half of the budget":           {512, 2048, 512, 1, false},
		"more than half of the budget":           {512, 2048, 1536, 3, false},
		"the whole budget":                       {512, 2048, 2048, 4, true},
		"more than the budget":                   {512, 2048, 1 << 40, 4, true},
		"without a limit for all users together": {512, 0, 1024, 2, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.maxBodies, MaxUserBodies: test.maxUserBodies}
			svc := testservice.Setup{User: readUserField, Opts: opts}.Guard(t, testservice.Echo)
			for range 2 { // the second round needs the room of the first
				end := make(chan struct{})
				var group sync.WaitGroup
				for i := range test.wantInMemory {
					group.Go(func() {
						got := svc.Call(testservice.NumberedKey(i).ID, "", asMallory, withLateBody(100, end))
						assert.Equal(t, http.StatusBadRequest, got.Status, name)
					})
				}
				synctest.Wait()
				late := svc.Call("too-many", strings.Repeat("x", 99), asMallory)
				testservice.RequireProblem(t, late, http.StatusServiceUnavailable, "overloaded")
				if !test.isBudgetFull {
					require.Equal(t, http.StatusCreated, svc.Call(rand.Text(), strings.Repeat("x", 99), asAlice).Status, name)
				}
				close(end)
				group.Wait()
				require.Zero(t, svc.Middleware.UsersCounted(), name)
			}
		})
	}
}

// failingReader is a body that breaks off.
type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// The temporary files of a form are removed even if the handler panics and outer middleware recovers.
func TestFilesOfFormsAreRemovedAfterAPanic(t *testing.T) {
	t.Parallel()
	file := make(chan string, 1)
	svc := testservice.Setup{Outer: recoverPanics}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			panic(err)
		}
		f, err := r.MultipartForm.File["upload"][0].Open()
		if err != nil {
			panic(err)
		}
		file <- f.(*os.File).Name()
		_ = f.Close()
		panic("boom")
	})
	body := "--x\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"a\"\r\n\r\n" +
		strings.Repeat("x", 100) + "\r\n--x--\r\n"
	svc.Post("k", body, testservice.WithHeader("Content-Type", "multipart/form-data; boundary=x"))
	name := <-file
	require.Eventually(t, func() bool {
		_, err := os.Stat(name)
		return os.IsNotExist(err)
	}, 5*time.Second, time.Millisecond)
}

// recoverPanics is middleware that answers 500 if the handler panics.
func recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// withHeaders returns an Edit that sets the fields of h, whose names are in canonical form.
func withHeaders(h http.Header) testservice.Edit {
	return func(r *http.Request) { maps.Copy(r.Header, h) }
}

// constantFingerprint is a FingerprintFunc that returns the same fingerprint for all requests.
func constantFingerprint(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return idempotency.Fingerprint{1}, nil
}

// A field that selects what a request does is a part of the fingerprint, no matter which FingerprintFunc computes the rest.
// The option adds fields of the service to the default fields.
func TestOptionFingerprintHeaders(t *testing.T) {
	t.Parallel()
	accountField := func(lines ...string) http.Header { return http.Header{"Stripe-Account": lines} }
	headerField := func(name string, lines ...string) http.Header { return http.Header{name: lines} }
	const override = "X-Http-Method-Override"
	long := strings.Repeat("a", 1000)
	rows := []struct {
		name          string
		first, second http.Header
		wantSame      bool
	}{
		{"no such field", nil, nil, true},
		{"same account", accountField("a"), accountField("a"), true},
		{"other account", accountField("a"), accountField("b"), false},
		{"account added", nil, accountField("a"), false},
		{"account dropped", accountField("a"), nil, false},
		{"account in capitals", accountField("a"), accountField("A"), false},
		{"empty account added", nil, accountField(""), false},
		{"long, same", accountField(long), accountField(long), true},
		{"long, other end", accountField(long + "a"), accountField(long + "b"), false},
		{"two lines, same", accountField("a", "b"), accountField("a", "b"), true},
		{"another line", accountField("a"), accountField("a", "b"), false},
		{"other second line", accountField("a", "b"), accountField("a", "c"), false},
		{"lines in another order", accountField("a", "b"), accountField("b", "a"), false},
		{"lines joined", accountField("a", "b"), accountField("a, b"), false},
		{"bytes moved from line to line", accountField("ab", "c"), accountField("a", "bc"), false},
		{"value moved from field to field", accountField("a"), headerField("X-Tenant", "a"), false},
		{"other field of the option", headerField("X-Tenant", "a"), headerField("X-Tenant", "b"), false},

		{"same coding", headerField("Content-Encoding", "own"), headerField("Content-Encoding", "own"), true},
		{"other coding", headerField("Content-Encoding", "own"), headerField("Content-Encoding", "gzip"), false},
		{"coding dropped", headerField("Content-Encoding", "own"), nil, false},
		{"same override", headerField(override, "PUT"), headerField(override, "PUT"), true},
		{"other override", headerField(override, "PUT"), headerField(override, "DELETE"), false},
		{"override added", nil, headerField(override, "DELETE"), false},
		{"override of another name", nil, headerField("X-Http-Method", "DELETE"), false},
		{"override of a third name", nil, headerField("X-Method-Override", "DELETE"), false},
		{"field that selects nothing", headerField("X-Other", "a"), headerField("X-Other", "b"), true},
	}
	for name, function := range map[string]struct {
		compute idempotency.FingerprintFunc
		request requestContent
	}{
		"default":   {nil, requestContent{"", "text/plain", "b"}},
		"raw":       {idempotency.FingerprintRaw, requestContent{"", "text/plain", "b"}},
		"JSON":      {fingerprint.JSON, requestContent{"", mediaTypeJSON, `{"a":1}`}},
		"multipart": {fingerprint.Multipart, requestContent{"", "multipart/form-data; boundary=x", "--x\r\n\r\n1\r\n--x--\r\n"}},
		"own":       {constantFingerprint, requestContent{"", "text/plain", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Opts: idempotency.Options{
				Fingerprint: function.compute, FingerprintHeaders: []string{"stripe-account", "X-TENANT", "Stripe-Account"},
			}}.Serve(t, testservice.Echo)
			media := testservice.WithHeader("Content-Type", function.request.mediaType)
			for i, row := range rows {
				key := fmt.Sprint("k", i)
				first := svc.Post(key, function.request.body, media, withHeaders(row.first))
				require.Equal(t, http.StatusCreated, first.Status, row.name)
				second := svc.Post(key, function.request.body, media, withHeaders(row.second))
				if row.wantSame {
					testservice.RequireReplay(t, first, second)
				} else {
					require.Equal(t, http.StatusConflict, second.Status, row.name)
					testservice.RequireProblem(t, second, http.StatusConflict, "key-reused")
				}
				require.EqualValues(t, i+1, svc.Runs.Load(), row.name)
			}
		})
	}
}

func TestFieldsThatSelectByDefault(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, testservice.Echo)
	first := svc.Post("k", "b", testservice.WithHeader("Stripe-Account", "a"))
	testservice.RequireReplay(t, first, svc.Post("k", "b", testservice.WithHeader("Stripe-Account", "b")))
	coded := testservice.WithHeader("Content-Encoding", "own")
	testservice.RequireProblem(t, svc.Post("k", "b", coded), http.StatusConflict, "key-reused")
	testservice.RequireReplay(t, svc.Post("l", "b", coded), svc.Post("l", "b", coded))
	testservice.RequireProblem(t, svc.Post("l", "c", coded), http.StatusConflict, "key-reused")
}

func TestOptionFingerprintHeadersRefusesInvalidNames(t *testing.T) {
	t.Parallel()
	keys := []string{"Idempotency-Key", "X-Key"}
	for name, fault := range map[string]string{
		"":                  "is not a field name",
		"X Tenant":          "is not a field name",
		"X-Tenant:":         "is not a field name",
		"idempotency-key":   "has the key",
		"x-key":             "has the key",
		"host":              "net/http",
		"Transfer-Encoding": "net/http",
		"trailer":           "net/http",
	} {
		opts := idempotency.Options{Headers: keys, FingerprintHeaders: []string{"X-Tenant", name}}
		_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, opts)
		require.ErrorContains(t, err, "FingerprintHeaders", name)
		require.ErrorContains(t, err, fault, name)
	}
}

// overrideMethod is middleware that replaces the method with the value of X-Http-Method-Override.
func overrideMethod(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if method := r.Header.Get("X-Http-Method-Override"); method != "" {
			r.Method = method
		}
		next.ServeHTTP(w, r)
	})
}

// A GET that outer middleware turns into a POST is guarded. A GET that becomes a POST inside of the Middleware passes unguarded.
func TestMethodOverriddenInside(t *testing.T) {
	t.Parallel()
	pay := func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Method", r.Method) }
	become := testservice.WithHeader("X-Http-Method-Override", http.MethodPost)
	get, required := testservice.WithMethod(http.MethodGet), idempotency.Options{Required: true}
	outside := testservice.Setup{Outer: overrideMethod, Opts: required}.Serve(t, pay)
	testservice.RequireProblem(t, outside.Call("", "", get, become), http.StatusBadRequest, "key-missing")
	inside := testservice.Setup{Opts: required}.Serve(t, overrideMethod(http.HandlerFunc(pay)).ServeHTTP)
	require.Equal(t, http.MethodPost, inside.Call("", "", get, become).Header.Get("X-Method"))
}

// The Middleware uses the method that the request has on arrival, even if outer middleware has replaced the method.
func TestMethodOverriddenByOuterMiddleware(t *testing.T) {
	t.Parallel()
	remove := testservice.WithHeader("X-Http-Method-Override", http.MethodDelete)
	for name, row := range map[string]struct {
		methods   []string
		isGuarded bool
	}{
		"guarded":     {[]string{http.MethodPost, http.MethodDelete}, true},
		"not guarded": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: overrideMethod, Opts: idempotency.Options{Methods: row.methods}}.Serve(t,
				func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Method", r.Method) })
			created, removed := svc.Post("k", "b"), svc.Post("k", "b", remove)
			require.Equal(t, http.MethodPost, created.Header.Get("X-Method"))
			require.Equal(t, http.MethodDelete, removed.Header.Get("X-Method"), "another method is another endpoint")
			require.EqualValues(t, 2, svc.Runs.Load())

			testservice.RequireReplay(t, created, svc.Post("k", "b"))
			again := svc.Post("k", "b", remove)
			if !row.isGuarded {
				require.Equal(t, removed, again)
				require.EqualValues(t, 3, svc.Runs.Load())
				require.EqualValues(t, 2, svc.Store.Begins.Load(), "of the POST")
				return
			}
			testservice.RequireReplay(t, removed, again)
			require.EqualValues(t, 2, svc.Runs.Load())
			require.Equal(t, "DELETE /payments", svc.Journal.Last(t).Key.Endpoint)
		})
	}
}

// Fingerprints with selecting fields must always stay the same, because a store has fingerprints of other releases of this
// package.
func TestFingerprintsWithFieldsAreFrozen(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		header http.Header
		want   string
	}{
		"no field": {nil, idempotency.Fingerprint{1}.String()},
		"three fields": {http.Header{"X-Tenant": {"a", "b"}, "Content-Encoding": {"gzip"}, "Account": {"c"}},
			"af41f5f9a89da37cc9f46bac4918fe204497199b8ca93cb9ef1a9929a88d8c08"},
	} {
		svc := testservice.Setup{Opts: idempotency.Options{
			Fingerprint: constantFingerprint, FingerprintHeaders: []string{"X-Tenant", "Account"},
		}}.Guard(t, testservice.Echo)
		svc.Call("k", "b", withHeaders(row.header))
		rec, _, err := svc.Store.Begin(t.Context(), svc.Journal.Last(t).Key, idempotency.ClaimRequest{Lease: time.Second})
		require.NoError(t, err)
		require.Equal(t, row.want, rec.Fingerprint.String(), name)
	}
}

// fingerprintParts returns the fingerprint of a request with parts as its query, media type and body. The query may contain
// any bytes.
func fingerprintParts(t testing.TB, f idempotency.FingerprintFunc, parts [3]string) idempotency.Fingerprint {
	t.Helper()
	r := &http.Request{URL: &url.URL{RawQuery: parts[0]}, Header: http.Header{"Content-Type": {parts[1]}}}
	fp, err := f(r, []byte(parts[2]))
	require.NoError(t, err)
	return fp
}

// FuzzFingerprint searches for two different requests with the same fingerprint. Nearly equal requests are the likeliest, so
// query, media type and body are cut out of one text at different places. The values of the selecting fields are cut out of
// the text in the same way.
func FuzzFingerprint(f *testing.F) {
	f.Add("amount=1 application/json {}", uint16(8), uint16(25), uint16(8), uint16(26), uint16(3), byte(0))
	f.Add("\x00\x00\x00\x00\x00\x00\x00\x01aa", uint16(1), uint16(2), uint16(0), uint16(2), uint16(3), byte(1))
	f.Add("a,b;c", uint16(1), uint16(2), uint16(1), uint16(3), uint16(0), byte(32))
	f.Fuzz(func(t *testing.T, text string, i, j, k, l, at uint16, flip byte) {
		other := []byte(text)
		if len(other) > 0 {
			other[int(at)%len(other)] ^= flip
		}
		a, b := splitInThree(text, i, j), splitInThree(string(other), k, l)
		x, y := fingerprintParts(t, idempotency.FingerprintRaw, a), fingerprintParts(t, idempotency.FingerprintRaw, b)
		same := a[0] == b[0] && comparableMediaType(a[1]) == comparableMediaType(b[1]) && a[2] == b[2]
		require.Equal(t, same, x == y, "%q, %q", a, b)
		const zeros = "\x00\x00\x00\x00\x00\x00\x00"
		x = fingerprintParts(t, idempotency.FingerprintRaw, [3]string{a[0], zeros + "\x00", a[2]})
		y = fingerprintParts(t, idempotency.FingerprintRaw, [3]string{a[0] + zeros + "\x08", "", a[2]})
		require.NotEqual(t, x, y, "%q: the length of the media type is taken for the end of the query", a)

		for _, h := range [][2]http.Header{
			{{"X-Tenant": {a[0], a[1]}, "X-Account": {a[2]}}, {"X-Tenant": {b[0], b[1]}, "X-Account": {b[2]}}},
			{{"X-Tenant": {a[0], a[1]}, "X-Account": {a[2]}}, {"X-Tenant": {b[0]}, "X-Account": {b[1], b[2]}}},
			{{"X-Tenant": {a[0] + a[1]}}, {"X-Tenant": {b[0], b[1]}}},
			{{"X-Tenant": {a[0]}}, {"X-Account": {b[0]}}},
			{{"X-Account": {a[0], "X-Tenant", a[1]}}, {"X-Account": {b[0]}, "X-Tenant": {b[1]}}},
			{{}, {"Content-Encoding": {b[0]}}},
			{{"X-Tenant": {a[0]}, "X-Other": {a[1]}}, {"X-Tenant": {b[0]}, "X-Other": {b[1]}}},
		} {
			names := []string{"x-tenant", "X-Account"}
			p, q := idempotency.Fingerprint{}.WithSelectors(h[0], names), idempotency.Fingerprint{}.WithSelectors(h[1], names)
			delete(h[0], "X-Other")
			delete(h[1], "X-Other")
			require.Equal(t, fmt.Sprintf("%q", h[0]) == fmt.Sprintf("%q", h[1]), p == q, "%q", h)
		}
	})
}

// comparableMediaType returns the part of a Content-Type that FingerprintRaw includes.
func comparableMediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	if strings.HasPrefix(media, "multipart/") {
		return contentType
	}
	return media
}
