package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// onlyResponse sends a request over a connection of its own, and returns all that comes back as one response.
func onlyResponse(t require.TestingT, address string) testservice.Answer {
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = fmt.Fprint(conn, "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	return readOnly(t, conn)
}

// readOnly reads one response, and requires that nothing comes after it.
func readOnly(t require.TestingT, conn io.Reader) testservice.Answer {
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Empty(t, string(rest), "a second response")
	resp.Header.Del("Date")
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: nil}
}

// A record that this package cannot have written is refused: it is never sent, in whole or in part.
func TestForgedResponseIsNotReplayed(t *testing.T) {
	t.Parallel()
	const smuggled = "0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nEVIL!"
	forged := map[string]idempotency.Response{}
	for _, code := range []int{-1, 0, 42, 99, 100, 101, 103, 199, 1000, 1 << 30} {
		forged[fmt.Sprint("status ", code)] = idempotency.Response{Status: code, Body: []byte("body")}
	}
	lengths := map[string]string{
		"sign": "+%d", "minus": "-%d", "space": "%d ", "underscore": "0_%d", "hexadecimal": "%#x", "octal": "%#o", "twice": "%[1]d, %[1]d",
	}
	headers := map[string]idempotency.Fields{
		"huge length":                 "Content-Length: 99999999999999999999\n",
		"coding of the transfer":      "Transfer-Encoding: chunked\n",
		"the same in lower case":      "transfer-encoding: chunked\n",
		"the same, escaped":           `\x74ransfer-encoding: chunked` + "\n",
		"connection":                  "Connection: close\n",
		"upgrade":                     "Upgrade: h2c\n",
		"date":                        "Date: now\n",
		"short length":                "Content-Length: 2\n",
		"long length":                 "Content-Length: 400\n",
		"no length":                   "Content-Length: x\n",
		"empty length":                "Content-Length: \n",
		"two lengths":                 "Content-Length: 2\nContent-Length: 50\n",
		"length in lower case":        "content-length: 2\n",
		"mark of a replay":            "Idempotent-Replayed: true\n",
		"mark of a replay, lowercase": "idempotent-replayed: true\n",
	}
	for name, format := range lengths {
		headers["length, "+name] = idempotency.Fields("Content-Length: " + fmt.Sprintf(format, len(smuggled)) + "\n")
	}
	for name, fields := range headers {
		forged[name] = idempotency.Response{Status: 200, Header: fields, Body: []byte(smuggled)}
		forged[name+", as trailer"] = idempotency.Response{Status: 200, Trailer: `Trailer\x3a` + fields, Body: []byte(smuggled)}
	}
	for name, resp := range forged {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Store: testservice.ForgedStore{Response: &resp}}.Serve(t, testservice.Echo)
			testservice.RequireProblem(t, onlyResponse(t, svc.Server.Listener.Addr().String()), http.StatusServiceUnavailable, "store-unavailable")
			require.Zero(t, svc.Runs.Load())
			event := svc.Journal.Last(t)
			require.Equal(t, idempotency.OutcomeUnavailable, event.Outcome)
			require.ErrorIs(t, event.Err, idempotency.ErrRecordInvalid)
		})
	}
}

func TestUnusualResponseIsReplayed(t *testing.T) {
	t.Parallel()
	for name, resp := range map[string]idempotency.Response{
		"length":                     {Status: 200, Header: "Content-Length: 4\n", Body: []byte("body")},
		"length with zeros":          {Status: 200, Header: "Content-Length: 004\n", Body: []byte("body")},
		"suppressed date":            {Status: 200, Header: "Date\n", Body: []byte("body")},
		"no body":                    {Status: 204},
		"length of what is not sent": {Status: 304, Header: "Content-Length: 4\n"},
		"unknown status":             {Status: 999, Body: []byte("body")},
		"field that nobody can send": {Status: 200, Header: `a b: \x0d\x0aX: y` + "\n", Body: []byte("body")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Store: testservice.ForgedStore{Response: &resp}}.Serve(t, testservice.Echo)
			got := onlyResponse(t, svc.Server.Listener.Addr().String())
			require.Equal(t, resp.Status, got.Status)
			require.Equal(t, string(resp.Body), got.Body)
			require.True(t, got.Replayed())
			require.Empty(t, got.Header["X"])
		})
	}
}

// A fingerprint of nothing but zeros is that of a running attempt which the store cannot see. It opens no answer.
func TestForgedFingerprintMatchesNoRequest(t *testing.T) {
	t.Parallel()
	lost := func(record *idempotency.Record) { record.Fingerprint = idempotency.Fingerprint{} }
	svc := testservice.Setup{Store: testservice.AlteredStore{Store: testservice.NewSpyStore(), Alter: lost}}.Guard(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Call("k", "body").Status)
	testservice.RequireProblem(t, svc.Call("k", "another body"), http.StatusConflict, "key-reused")
}

func TestReplayIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reason error
		want   func(*testing.T, testservice.Answer)
	}{
		"reason": {errors.New("rights were withdrawn"), func(t *testing.T, got testservice.Answer) {
			testservice.RequireProblem(t, got, http.StatusForbidden, "replay-refused")
			require.NotContains(t, got.Body, "withdrawn")
		}},
		"answer of its own": {
			fmt.Errorf("wrapped: %w", &idempotency.Error{Status: http.StatusNotFound, Code: "gone"}),
			func(t *testing.T, got testservice.Answer) {
				require.Equal(t, http.StatusNotFound, got.Status)
				require.Contains(t, got.Body, "#gone")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refuses atomic.Bool
			asked := 0
			svc := testservice.Setup{Opts: idempotency.Options{Replay: func(r *http.Request, resp *idempotency.Response) error {
				asked++
				require.Equal(t, "/payments", r.URL.Path)
				require.Equal(t, "secret", string(resp.Body))
				if refuses.Load() {
					return test.reason
				}
				return nil
			}}}.Guard(t, testservice.Echo)
			first := svc.Call("k", "secret")
			require.Zero(t, asked, "about the first answer")
			testservice.RequireReplay(t, first, svc.Call("k", "secret"))
			refuses.Store(true)
			got := svc.Call("k", "secret")
			test.want(t, got)
			require.NotContains(t, got.Body, "secret")
			require.Equal(t, idempotency.OutcomeReplayRefused, svc.Journal.Last(t).Outcome)
			require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrReplayRefused)
			require.ErrorIs(t, svc.Journal.Last(t).Err, test.reason)
			refuses.Store(false)
			testservice.RequireReplay(t, first, svc.Call("k", "secret"))
			require.EqualValues(t, 1, svc.Runs.Load())
			require.Equal(t, 3, asked)
		})
	}
}

// Options.Replay sees what is replayed: without the fields that were stored before OmitHeaders had them.
func TestReplayIsAskedAboutWhatIsSent(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "secret")
		w.Header().Set("X", "y")
		w.Header().Set("Trailer", "Set-Cookie2")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Set-Cookie2", "secret")
	}
	first := testservice.Setup{Store: store}.Guard(t, answer).Call("k", "b")
	require.Equal(t, "secret", first.Header.Get("Set-Cookie"))
	var asked *idempotency.Response
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{
		OmitHeaders: []string{"set-cookie", "Set-Cookie2"},
		Replay: func(_ *http.Request, resp *idempotency.Response) error {
			asked = resp
			return nil
		},
	}}.Guard(t, answer)
	got := svc.Call("k", "b")
	require.True(t, got.Replayed())
	require.NotContains(t, got.Header, "Set-Cookie")
	require.Equal(t, idempotency.Fields("Trailer: Set-Cookie2\nX: y\n"), asked.Header)
	require.Empty(t, asked.Trailer)
}

// Options.Replay reads the body of its request from the start, as a handler does, and keeps no hold of it.
func TestReplayIsAskedWithTheBody(t *testing.T) {
	t.Parallel()
	var read []string
	var kept io.Reader
	svc := testservice.Setup{Opts: idempotency.Options{Replay: func(r *http.Request, _ *idempotency.Response) error {
		body, err := io.ReadAll(r.Body)
		read, kept = append(read, string(body)), r.Body
		return err
	}}}.Serve(t, testservice.Echo)
	first := svc.Post("k", "some body")
	for range 2 {
		testservice.RequireReplay(t, first, svc.Post("k", "some body"))
		_, err := kept.Read(make([]byte, 1))
		require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
	}
	require.Equal(t, []string{"some body", "some body"}, read)

	none := svc.Post("empty", "")
	testservice.RequireReplay(t, none, svc.Post("empty", ""))
	require.Empty(t, read[2])
}

// A form that Options.Replay parses leaves no files behind.
func TestReplayParsesAForm(t *testing.T) {
	t.Parallel()
	body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n" +
		strings.Repeat("x", 33<<20) + "\r\n--b--\r\n" // more than FormFile holds in memory
	var name string
	svc := testservice.Setup{Opts: idempotency.Options{MaxBody: 64 << 20, Replay: func(r *http.Request, _ *idempotency.Response) error {
		f, _, err := r.FormFile("f")
		if err != nil {
			return err
		}
		defer f.Close()
		name = f.(*os.File).Name()
		return nil
	}}}.Serve(t, testservice.Status(http.StatusCreated))
	form := testservice.WithHeader("Content-Type", "multipart/form-data; boundary=b")
	first := svc.Post("k", body, form)
	testservice.RequireReplay(t, first, svc.Post("k", body, form))
	require.NotEmpty(t, name)
	require.Eventually(t, func() bool {
		_, err := os.Stat(name)
		return errors.Is(err, os.ErrNotExist)
	}, 10*time.Second, time.Millisecond)
}

// An answer that nobody gets is not shown to Options.Replay.
func TestReplayIsAskedOnlyAboutWhatCanBeReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 4, Replay: func(*http.Request, *idempotency.Response) error {
		t.Error("asked")
		return nil
	}}}.Guard(t, testservice.Echo)
	svc.Call("k", "too large")
	testservice.RequireProblem(t, svc.Call("k", "too large"), http.StatusConflict, "not-replayable")
	testservice.RequireProblem(t, svc.Call("k", "another"), http.StatusConflict, "key-reused")
}

// Fields that are omitted since a change of the options are not replayed from older records, either.
func TestOmittedFieldOfAnOlderRecord(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "session=1")
		w.Header().Set("X-Kept", "1")
		w.Header().Set("Trailer", "X-Sum, X-Late")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "1")
		w.Header().Set("X-Late", "1")
		w.Header().Set(http.TrailerPrefix+"X-Undeclared", "1")
	}
	require.Equal(t, http.StatusOK, testservice.Setup{Store: store}.Guard(t, handler).Call("k", "").Status)
	sent := []string{"Set-Cookie", "X-Kept", "X-Late", "X-Sum", "X-Undeclared"}
	for name, omitted := range map[string][]string{
		"nothing": nil, "what is not there": {"Set-Cookie2", "X-Other"}, "in the header": {"set-cookie"},
		"in the trailer": {"x-late"}, "undeclared": {"X-Undeclared"}, "most": {"Set-Cookie", "X-Late", "X-Sum", "X-Undeclared"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{OmitHeaders: omitted}}.Guard(t, handler)
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/payments", nil)
			r.Header.Set("Idempotency-Key", "k")
			svc.Handler.ServeHTTP(w, r)
			got := w.Result()
			require.Equal(t, "true", got.Header.Get("Idempotent-Replayed"))
			require.Equal(t, "body", w.Body.String())
			for _, field := range sent {
				gone := slices.ContainsFunc(omitted, func(o string) bool { return strings.EqualFold(o, field) })
				require.Equal(t, gone, got.Header.Get(field) == "" && got.Trailer.Get(field) == "", field)
			}
		})
	}
}

// BenchmarkOmitHeaders compares replays that have, or do not have, fields that are to be omitted.
func BenchmarkOmitHeaders(b *testing.B) {
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/payments/1")
		w.Header().Set("X-Request-Id", "1")
		w.WriteHeader(http.StatusCreated)
	}
	for _, row := range []struct {
		name    string
		omitted []string
	}{{"no option", nil}, {"not there", []string{"Set-Cookie"}}, {"there", []string{"X-Request-Id"}}} {
		b.Run(row.name, func(b *testing.B) {
			store, client := testservice.NewSpyStore(), newBenchClient(0)
			client.send(testservice.Setup{Store: store}.Guard(b, handler).Handler, benchKey(0))
			unseen := func(context.Context, idempotency.Event) {}
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{OmitHeaders: row.omitted, Observer: unseen}}.Guard(b, handler)
			b.ReportAllocs()
			for b.Loop() {
				client.send(svc.Handler, benchKey(0))
				if client.header["Idempotent-Replayed"] == nil {
					b.Fatal("no replay: ", client.status, client.header)
				}
			}
			require.Zero(b, svc.Runs.Load())
		})
	}
}

// The mark of a replay comes from the middleware, never from a handler or what is behind it.
func TestHandlerCannotMarkItsAnswerAsAReplay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Idempotent-Replayed", "idempotent-replayed", http.TrailerPrefix + "Idempotent-Replayed"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				t.Parallel()
				svc := testservice.Setup{Opts: idempotency.Options{Stream: stream}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header()[name] = []string{"true"}
					_, _ = io.Copy(w, strings.NewReader(strings.Repeat("x", 5000)))
				})
				first := svc.Post("k", "")
				require.False(t, first.Replayed())
				testservice.RequireReplay(t, first, svc.Post("k", ""))
			})
		}
	}
}

func TestLargeHeaderIsNotStored(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size   int
		where  string
		stored bool
	}{
		"header of 60 KiB":  {60 << 10, "", true},
		"header of 65 KiB":  {65 << 10, "", false},
		"trailer of 65 KiB": {65 << 10, http.TrailerPrefix, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			svc := testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(test.where+"X-Large", strings.Repeat("x", test.size))
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, "body")
			})
			first := svc.Call("k", "")
			require.Equal(t, "body", first.Body)
			if test.stored {
				testservice.RequireReplay(t, first, svc.Call("k", ""))
				return
			}
			problem := testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "not-replayable")
			require.Equal(t, http.StatusOK, problem.OriginalStatus)
			require.EqualValues(t, 1, svc.Runs.Load())
			require.Less(t, store.Counted().Total, int64(1000))
		})
	}
}

// A 101 goes on in another protocol: there is nothing that could be replayed.
func TestSwitchOfProtocolsIsNotReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, testservice.Status(http.StatusSwitchingProtocols))
	require.Equal(t, http.StatusSwitchingProtocols, svc.Call("k", "").Status)
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "not-replayable")
}

// An answer with many fields that its Connection field names is filtered in time that grows with their number, not with
// its square: each name is looked up.
func TestManyConnectionFields(t *testing.T) {
	t.Parallel()
	const n = 3000
	var listed bytes.Buffer
	for i := range n {
		fmt.Fprintf(&listed, "x-%d, ", i)
	}
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", listed.String())
		for i := range 2 * n {
			w.Header().Set(fmt.Sprint("X-", i), "1")
		}
	})
	first := svc.Call("k", "")
	require.Len(t, first.Header, 2*n+1)
	require.Len(t, svc.Call("k", "").Header, n+1, "those that are not listed, and the mark")
}
