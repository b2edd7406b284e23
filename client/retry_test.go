package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestTransportSendsAgainWhatMayEndBetter(t *testing.T) {
	t.Parallel()
	const again, final = 2, 1
	tests := []struct {
		status int
		header string
		sent   int
	}{
		{200, "", final}, {201, "", final}, {400, "", final}, {401, "", final}, {404, "", final}, {408, "", again},
		{409, "", final}, {409, "Retry-After: 1", again}, {409, "Idempotent-Replayed: true", final},
		{409, "Stripe-Should-Retry: true", again}, {409, "Stripe-Should-Retry: false", final}, {413, "", final},
		{422, "", final}, {422, "Retry-After: 1", final}, {425, "", again}, {429, "", again}, {500, "", again},
		{501, "", final}, {502, "", again}, {503, "", again}, {504, "", again}, {505, "", final},
		// Any handler can claim to be a replay.
		{201, "Idempotent-Replayed: true", final}, {500, "Idempotent-Replayed: true", again},
		{503, "Idempotent-Replayed: true", again},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, " ", tt.header), func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
				if n > 1 {
					w.WriteHeader(http.StatusAccepted)
				} else {
					name, value, _ := strings.Cut(tt.header, ": ")
					w.Header().Set(name, value)
					w.WriteHeader(tt.status)
				}
				fmt.Fprintf(w, "answer %d", n)
			}), false)
			a := do(impatient(server), newPost(t, server.URL, "order 1"))

			require.NoError(t, a.Err)
			want := testservice.Answer{Status: tt.status, Body: "answer 1"}
			if tt.sent == again {
				want = testservice.Answer{Status: http.StatusAccepted, Body: "answer 2"}
			}
			require.Equal(t, want, testservice.Answer{Status: a.Status, Body: a.Body})
			key := got.requireOneKey(t, tt.sent)
			require.Equal(t, uuid.Version(4), uuid.MustParse(key).Version())
			for _, got := range got.list() {
				require.Equal(t, "order 1", got.body)
			}
		})
	}
}

func TestTransportHandsBackTheLastAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ max, sent int }{{0, 4}, {1, 1}, {3, 3}} {
		var got arrivals
		var seen attempts
		server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "answer %d", n)
		}), false)
		transport := impatient(server)
		transport.MaxAttempts, transport.Base = tt.max, seen.of(transport.Base)

		a := do(transport, newPost(t, server.URL, "order 1"))
		require.NoError(t, a.Err)
		require.Equal(t, testservice.Answer{Status: 503, Body: fmt.Sprint("answer ", tt.sent)}, testservice.Answer{Status: a.Status, Body: a.Body})
		key := got.requireOneKey(t, tt.sent)
		require.Len(t, seen.list(), tt.sent)
		for _, attempt := range seen.list() {
			require.Equal(t, key, attempt.key)
		}
	}
}

func TestTransportBodyWithoutGetBody(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	tests := []struct {
		name          string
		size          int
		contentLength int64 // as http.NewRequest has it, 0 is unknown
		sent          int
	}{
		{name: "unknown length", size: 7, sent: 4},
		{name: "unknown length, empty", size: 0, sent: 4},
		{name: "known length", size: 7, contentLength: 7, sent: 4},
		{name: "unknown length, at the bound", size: bound, sent: 4},
		{name: "known length, at the bound", size: bound, contentLength: bound, sent: 4},
		{name: "unknown length, beyond the bound", size: bound + 1, sent: 1},
		{name: "unknown length, far beyond the bound", size: 3 * bound, sent: 1},
		{name: "known length, beyond the bound", size: bound + 1, contentLength: bound + 1, sent: 1},
		{name: "stream", size: 7, contentLength: -1, sent: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.record(func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) }), false)
			content := strings.Repeat("0123456789abcde\n", tt.size/16+1)[:tt.size]
			b := &requestBody{Reader: strings.NewReader(content)}
			r := newPost(t, server.URL, "")
			r.Body, r.GetBody, r.ContentLength = b, nil, tt.contentLength
			a := do(impatient(server), r)

			failure, ok := errors.AsType[*client.Error](a.Err)
			require.True(t, ok)
			require.Equal(t, tt.sent, failure.Attempts)
			require.Equal(t, got.requireOneKey(t, tt.sent), failure.Key, "the caller may send it again")
			for _, arrived := range got.list() {
				require.True(t, content == arrived.body, "%d of %d bytes arrived", len(arrived.body), len(content))
			}
			require.EqualValues(t, 1, b.closed.Load())
			require.Equal(t, io.ReadCloser(b), r.Body, "the caller's request was changed")
		})
	}
}

// The writer of a stream may wait for the answer, so Transport reads nothing of a stream in advance.
func TestTransportSendsAStreamWhileItIsWritten(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	defer server.Close()
	body, writer := io.Pipe()
	r := newPost(t, server.URL, "")
	r.Body, r.GetBody, r.ContentLength = body, nil, -1
	resp, err := impatient(server).RoundTrip(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.WriteString(writer, "after the answer began")
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	echoed, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "after the answer began", string(echoed))
}

func TestTransportReadsNoMoreThanItCanKeep(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	for _, tt := range []struct {
		contentLength int64
		readable      int
	}{{-1, 0}, {bound + 1, 0}, {0, bound + 1}} {
		content := strings.NewReader(strings.Repeat("x", tt.readable))
		r := newPost(t, "http://service.test", "")
		r.Body = io.NopCloser(io.MultiReader(content, iotest.ErrReader(io.ErrUnexpectedEOF)))
		r.GetBody, r.ContentLength = nil, tt.contentLength
		transport := client.Transport{Hosts: []string{"service.test"}, Base: replying(200, nil)}
		_, err := transport.RoundTrip(r)
		require.NoError(t, err, "ContentLength: %d", tt.contentLength)
	}
}

func TestTransportReportsABodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	gone := errors.New("file is gone")
	b := &requestBody{Reader: io.MultiReader(strings.NewReader("order"), iotest.ErrReader(gone))}
	r := newPost(t, "http://service.test", "")
	r.Body, r.GetBody, r.ContentLength = b, nil, 7
	_, err := (&client.Transport{Hosts: []string{"service.test"}, Base: replying(200, nil)}).RoundTrip(r)
	failure, ok := errors.AsType[*client.Error](err)
	require.True(t, ok)
	require.Zero(t, failure.Attempts)
	require.ErrorIs(t, err, gone)
	require.EqualValues(t, 1, b.closed.Load())
}

// The end of the context ends the read of a body that stalls.
func TestContextEndsTheReadingOfABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		body, _ := io.Pipe()
		r := newPost(t, "http://service.test", "").WithContext(ctx)
		r.Body, r.GetBody, r.ContentLength = body, nil, 7
		began := time.Now()
		_, err := (&client.Transport{Hosts: []string{"service.test"}, Base: replying(200, nil)}).RoundTrip(r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

func TestTransportTriesOnceWhatCanNeverBeSent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edit func(*http.Request)
		text string // of the error
	}{
		{name: "unknown scheme", edit: func(r *http.Request) { r.URL.Scheme = "foo" }, text: "unsupported protocol scheme"},
		{name: "no URL", edit: func(r *http.Request) { r.URL = nil }, text: "nil Request.URL"},
		{name: "no host", edit: func(r *http.Request) { r.URL.Host = "" }, text: "no Host"},
		{name: "invalid method", edit: func(r *http.Request) { r.Method = "PO ST" }, text: "invalid method"},
		{name: "invalid field name", edit: func(r *http.Request) { r.Header["X A"] = []string{"a"} }, text: "invalid header"},
		{name: "empty field name", edit: func(r *http.Request) { r.Header[""] = []string{"a"} }, text: "invalid header"},
		{name: "line break in a field", edit: func(r *http.Request) { r.Header.Set("X-A", "a\nb") }, text: "invalid header"},
		{name: "DEL in a field", edit: func(r *http.Request) { r.Header.Set("X-A", "a\x7Fb") }, text: "invalid header"},
		{name: "invalid trailer", edit: func(r *http.Request) { r.Trailer = http.Header{"X A": nil} }, text: "invalid trailer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := testservice.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				panic(http.ErrAbortHandler)
			}), false)
			r := newPost(t, server.URL, "order 1")
			r.Header.Set("Idempotency-Key", "k-1")
			tt.edit(r)
			_, err := impatient(server).RoundTrip(r)
			failure, ok := errors.AsType[*client.Error](err)
			require.True(t, ok)
			require.Equal(t, 1, failure.Attempts, "%v", err)
			require.ErrorContains(t, err, tt.text)
		})
	}
}

// These requests look invalid, but net/http can send them, so Transport retries them.
func TestTransportRepeatsWhatCanBeSent(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*http.Request){
		"no method, which is GET":         func(r *http.Request) { r.Method = "" },
		"tab and other bytes in a field":  func(r *http.Request) { r.Header.Set("X-A", "a\tb\xFF\xE9") },
		"no body":                         func(r *http.Request) { r.Body, r.GetBody, r.ContentLength = nil, nil, 0 },
		"no body, though a length is set": func(r *http.Request) { r.Body, r.GetBody = http.NoBody, nil },
		"body whose length is not told":   func(r *http.Request) { r.ContentLength = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testservice.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), false)
			r := newPost(t, server.URL, "order 1")
			r.Header.Set("Idempotency-Key", "k-1")
			edit(r)
			_, err := impatient(server).RoundTrip(r)
			failure, ok := errors.AsType[*client.Error](err)
			require.True(t, ok)
			require.Equal(t, 4, failure.Attempts, "%v", err)
		})
	}
}

func TestTraceIsToldOfAttemptsOnly(t *testing.T) {
	t.Parallel()
	server := testservice.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), true)
	var connections atomic.Int64
	trace := &httptrace.ClientTrace{GetConn: func(string) { connections.Add(1) }}
	r := newPost(t, server.URL, "order 1")
	_, err := impatient(server).RoundTrip(r.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
	failure, ok := errors.AsType[*client.Error](err)
	require.True(t, ok)
	require.Equal(t, 4, failure.Attempts)
	require.EqualValues(t, 4, connections.Load())
}

func TestTransportReportsABodyThatCannotBeReplayed(t *testing.T) {
	t.Parallel()
	gone := errors.New("file is gone")
	r := newPost(t, "http://service.test", "order 1")
	r.GetBody = func() (io.ReadCloser, error) { return nil, gone }
	transport := client.Transport{Hosts: []string{"service.test"}, MinDelay: 1, Base: replying(503, nil)}
	_, err := transport.RoundTrip(r)
	failure, ok := errors.AsType[*client.Error](err)
	require.True(t, ok)
	require.Equal(t, 1, failure.Attempts)
	require.ErrorIs(t, err, gone)
}

func TestTransportTrustsNoUnknownCertificate(t *testing.T) {
	t.Parallel()
	server := testservice.Listen(t, http.NotFoundHandler(), true)
	base := server.Client().Transport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	transport := impatient(server)
	transport.Base = base
	failure, ok := errors.AsType[*client.Error](do(transport, newPost(t, server.URL, "order 1")).Err)
	require.True(t, ok)
	require.Equal(t, 1, failure.Attempts)
}

func TestSlowAnswerIsWaitedForInFurtherAttempts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	conflict := sync.OnceFunc(func() { close(release) })
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		testservice.Echo(w, r)
	})
	base := svc.Server.Client().Transport.(*http.Transport)
	base.ResponseHeaderTimeout = 100 * time.Millisecond
	transport := impatient(svc.Server)
	transport.MaxAttempts = 1000
	var timeouts atomic.Int64
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(r)
		if err != nil {
			timeouts.Add(1)
		} else if resp.StatusCode == http.StatusConflict {
			conflict()
		}
		return resp, err
	})
	a := do(transport, newPost(t, svc.Server.URL+"/payments", "order 1"))

	require.NoError(t, a.Err)
	require.True(t, a.Replayed())
	require.Equal(t, "order 1", a.Body)
	require.Positive(t, timeouts.Load())
	require.Contains(t, svc.Journal.Outcomes(), idempotency.OutcomeInProgress)
	require.EqualValues(t, 1, svc.Runs.Load())
}

// inProgress returns a Base that answers like a server that still executes an earlier attempt.
func inProgress(retryAfter string) baseFunc {
	return replying(http.StatusConflict, http.Header{"Retry-After": {retryAfter}})
}

// changing returns a Base that answers like before until end, and like after from then on.
func changing(end time.Duration, before, after baseFunc) baseFunc {
	began := time.Now()
	return func(r *http.Request) (*http.Response, error) {
		if time.Since(began) < end {
			return before(r)
		}
		return after(r)
	}
}

func TestOperationInProgressIsWaitedFor(t *testing.T) {
	t.Parallel()
	stripe := replying(http.StatusConflict, http.Header{"Stripe-Should-Retry": {"true"}})
	slow := baseFunc(func(*http.Request) (*http.Response, error) {
		time.Sleep(20 * time.Second)
		return nil, io.ErrUnexpectedEOF
	})
	created := replying(201, nil)
	tests := []struct {
		name      string
		base      func() baseFunc
		deadline  time.Duration // of the context
		transport client.Transport
		status    int
		low, high time.Duration // how long it takes
	}{
		{name: "for more than four attempts", base: func() baseFunc { return changing(45*time.Second, inProgress("1"), created) },
			status: 201, low: 45 * time.Second, high: 46 * time.Second},
		{name: "with pauses that do not grow", base: func() baseFunc { return changing(299*time.Second, inProgress("1"), created) },
			status: 201, low: 299 * time.Second, high: 300 * time.Second},
		{name: "without Retry-After", base: func() baseFunc { return changing(45*time.Second, stripe, created) },
			status: 201, low: 45 * time.Second, high: 57 * time.Second},
		{name: "Retry-After that says nothing", base: func() baseFunc { return changing(45*time.Second, inProgress("0"), created) },
			status: 201, low: 45 * time.Second, high: 57 * time.Second},
		{name: "until the context would end", base: func() baseFunc { return inProgress("1") },
			deadline: 20 * time.Second, status: 409, low: 19 * time.Second, high: 20 * time.Second},
		{name: "as long as the context permits", base: func() baseFunc { return changing(time.Hour, inProgress("1"), created) },
			deadline: 2 * time.Hour, status: 201, low: time.Hour, high: time.Hour + time.Second},
		{name: "the context counts, not MaxWait", base: func() baseFunc { return changing(time.Minute, inProgress("1"), created) },
			deadline: 2 * time.Hour, transport: client.Transport{MaxWait: time.Second},
			status: 201, low: time.Minute, high: time.Minute + time.Second},
		{name: "5 minutes without a deadline", base: func() baseFunc { return inProgress("1") },
			status: 409, low: 299 * time.Second, high: 300 * time.Second},
		{name: "MaxWait without a deadline", base: func() baseFunc { return inProgress("1") },
			transport: client.Transport{MaxWait: 10 * time.Second}, status: 409, low: 9 * time.Second, high: 10 * time.Second},
		{name: "MaxWait as of the first such answer", base: func() baseFunc {
			return changing(time.Second, slow, changing(29*time.Second, inProgress("1"), created))
		}, transport: client.Transport{MaxWait: 10 * time.Second}, status: 201, low: 29 * time.Second, high: 30 * time.Second},
		{name: "not with one attempt", base: func() baseFunc { return inProgress("1") },
			transport: client.Transport{MaxAttempts: 1}, status: 409},
		{name: "not at a host that is not named", base: func() baseFunc { return inProgress("1") },
			transport: client.Transport{Hosts: []string{"other.test"}}, status: 409},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := client.WithKey(t.Context(), "k-1")
				if tt.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.deadline)
					defer cancel()
				}
				transport := tt.transport
				transport.Base = tt.base()
				if transport.Hosts == nil {
					transport.Hosts = []string{"service.test"}
				}
				began := time.Now()
				resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
				require.NoError(t, err)
				require.Equal(t, tt.status, resp.StatusCode)
				require.GreaterOrEqual(t, time.Since(began), tt.low)
				require.LessOrEqual(t, time.Since(began), tt.high)
			})
		})
	}
}

func TestWaitingIsNoAttemptThatCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		statuses := []int{503, 409, 409, 503, 409, 409, 409, 409, 503, 503, 201}
		var seen attempts
		transport := client.Transport{Hosts: []string{"service.test"}}
		transport.Base = seen.of(baseFunc(func(r *http.Request) (*http.Response, error) {
			return replying(statuses[len(seen.list())], http.Header{"Retry-After": {"1"}})(r)
		}))
		resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Len(t, seen.list(), 10)
		for i, attempt := range seen.list() {
			require.Equal(t, statuses[i], attempt.status)
		}
	})
}

// A crashed process blocks its key until its lease lapses. Transport waits longer.
func TestTransportOutlastsTheLeaseOfACrashedProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		svc := testservice.Setup{}.Guard(t, testservice.Echo)
		testservice.Crash(t, svc, "k-1", "order 1", lease)

		transport := client.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			recorder := httptest.NewRecorder()
			svc.Handler.ServeHTTP(recorder, r)
			return recorder.Result(), nil
		})
		began := time.Now()
		r := newPost(t, "http://service.test/payments", "order 1")
		a := do(&transport, r.WithContext(client.WithKey(t.Context(), "k-1")))
		require.NoError(t, a.Err)
		require.Equal(t, 201, a.Status)
		require.InDelta(t, lease, time.Since(began), float64(2*time.Second))
	})
}

// pauses sends a request that never gets a final answer, and returns the pauses between its attempts.
func pauses(t *testing.T, transport client.Transport) []time.Duration {
	t.Helper()
	var pauses []time.Duration
	began := time.Now()
	sent := 0
	base := transport.Base
	transport.Hosts = []string{"service.test"}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		if sent++; sent > 1 {
			pauses = append(pauses, time.Since(began))
		}
		began = time.Now()
		return base.RoundTrip(r)
	})
	_, _ = transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
	return pauses
}

func TestPausesGrowAndVary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		varied := make(map[time.Duration]bool)
		for range 20 {
			got := pauses(t, client.Transport{Base: replying(503, nil)})
			require.Len(t, got, 3)
			for i, middle := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
				require.InDelta(t, middle, got[i], float64(middle/2+1))
			}
			varied[got[0]] = true
		}
		require.Greater(t, len(varied), 10)
	})
}

func TestPausesHaveALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		longest := time.Duration(0)
		for _, pause := range pauses(t, client.Transport{Base: replying(503, nil), MaxAttempts: 100}) {
			require.LessOrEqual(t, pause, 12*time.Second)
			longest = max(longest, pause)
		}
		require.Greater(t, longest, 8*time.Second)
		for _, pause := range pauses(t, client.Transport{Base: replying(503, nil), MaxDelay: 2}) {
			require.LessOrEqual(t, pause, 3*time.Nanosecond)
		}
		require.Len(t, pauses(t, client.Transport{Base: replying(503, nil), MinDelay: -1, MaxDelay: -1}), 3)
	})
}

func TestRetryAfterIsHeeded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value     string
		date      time.Duration // from now, instead of value
		limit     time.Duration
		low, high time.Duration
	}{
		{value: "7", low: 7 * time.Second, high: 7 * time.Second},
		{date: 9 * time.Second, low: 9 * time.Second, high: 9 * time.Second},
		{value: "7", limit: 3 * time.Second, low: 3 * time.Second, high: 3 * time.Second},
		{date: time.Hour, limit: 3 * time.Second, low: 3 * time.Second, high: 3 * time.Second},
		{value: "3600", low: time.Minute, high: time.Minute},
		{value: "99999999999999999999999", low: time.Minute, high: time.Minute},
		// In these the pause that grows and varies is the longer one.
		{value: "7", limit: 100 * time.Millisecond, low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{value: "0", low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{value: "-5", low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{value: "soon", low: 250 * time.Millisecond, high: 751 * time.Millisecond},
		{date: -time.Hour, low: 250 * time.Millisecond, high: 751 * time.Millisecond},
	}
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range tests {
			if tt.date != 0 {
				tt.value = time.Now().Truncate(time.Second).Add(tt.date).UTC().Format(http.TimeFormat)
				tt.low -= time.Since(time.Now().Truncate(time.Second))
			}
			got := pauses(t, client.Transport{MaxAttempts: 2, MaxRetryAfter: tt.limit,
				Base: replying(503, http.Header{"Retry-After": {tt.value}})})
			require.Len(t, got, 1)
			require.GreaterOrEqual(t, got[0], tt.low, "Retry-After: %s", tt.value)
			require.LessOrEqual(t, got[0], tt.high, "Retry-After: %s", tt.value)
		}
	})
}

func TestContextEndsAPause(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	for name, base := range map[string]baseFunc{
		"after an answer":       replying(503, http.Header{"Retry-After": {"30"}}),
		"after a network error": func(*http.Request) (*http.Response, error) { return nil, lost },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shutdown := errors.New("shutting down")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(10*time.Second, func() { cancel(shutdown) })
				began := time.Now()
				transport := client.Transport{Hosts: []string{"service.test"}, Base: base,
					MinDelay: 30 * time.Second, MaxDelay: 30 * time.Second}
				_, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))

				require.Equal(t, 10*time.Second, time.Since(began))
				require.ErrorIs(t, err, shutdown)
				failure, ok := errors.AsType[*client.Error](err)
				require.True(t, ok)
				require.Equal(t, 1, failure.Attempts)
				if name == "after a network error" {
					require.ErrorIs(t, err, lost)
				}
			})
		})
	}
}

func TestDeadlineWithinAPauseEndsItBeforeItBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		transport := client.Transport{Hosts: []string{"service.test"},
			Base: replying(503, http.Header{"Retry-After": {"11"}})}
		began := time.Now()
		resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Zero(t, time.Since(began))
	})
}

func TestAttemptThatTheCallerEndedIsNotRepeated(t *testing.T) {
	t.Parallel()
	var seen attempts
	ctx, cancel := context.WithCancel(t.Context())
	var got arrivals
	server := testservice.Listen(t, got.record(func(_ http.ResponseWriter, r *http.Request, _ int) {
		cancel()
		<-r.Context().Done()
	}), false)
	transport := impatient(server)
	transport.Base = seen.of(transport.Base)
	a := do(transport, newPost(t, server.URL, "order 1").WithContext(ctx))
	require.ErrorIs(t, a.Err, context.Canceled)
	require.Len(t, seen.list(), 1)
}

func TestAnswerOfAnEndedContextIsHandedBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	transport := client.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		cancel()
		return replying(503, nil)(r)
	})
	resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
}

func TestClientTimeoutBoundsAllAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen attempts
		httpClient := http.Client{Timeout: 20 * time.Second, Transport: &client.Transport{
			Hosts: []string{"service.test"}, MaxAttempts: 1000, Base: seen.of(replying(503, nil)),
		}}
		began := time.Now()
		resp, err := httpClient.Do(newPost(t, "http://service.test", "order 1"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 503, resp.StatusCode)
		require.LessOrEqual(t, time.Since(began), 20*time.Second)
		require.Greater(t, len(seen.list()), 3)
	})
}

// endless is a body without an end.
type endless struct {
	requestBody
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func TestAnswerOfARepeatedAttemptIsReadToABoundAndClosed(t *testing.T) {
	t.Parallel()
	unwanted := new(endless)
	transport := client.Transport{Hosts: []string{"service.test"}, MaxAttempts: 2, MinDelay: 1}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		if unwanted.read > 0 {
			return replying(200, nil)(r)
		}
		return &http.Response{StatusCode: 503, Body: unwanted}, nil
	})
	resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.Positive(t, unwanted.closed.Load())
	require.Less(t, unwanted.read, 1<<20)
}

// stalling is a body that never arrives. Close ends a blocked Read.
type stalling struct {
	requestBody
	end   chan struct{}
	after func()
}

func (s *stalling) Read([]byte) (int, error) {
	<-s.end
	return 0, http.ErrBodyReadAfterClose
}

func (s *stalling) Close() error {
	if s.closed.Add(1) == 1 {
		s.after()
		close(s.end)
	}
	return nil
}

// However long the pause is, an answer that stalls holds its connection for at most a second. A problem always gets this
// second, because it may forbid the retry.
func TestAnswerThatStallsIsClosedAfterASecond(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		media         string
		pause, latest time.Duration // of the end of the answer
	}{
		{"", 100 * time.Millisecond, 150 * time.Millisecond}, {"", time.Minute, time.Second},
		{"application/problem+json", 100 * time.Millisecond, time.Second}, {"application/problem+json", time.Minute, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var answered, closed time.Time
			body := &stalling{end: make(chan struct{}), after: func() { closed = time.Now() }}
			transport := client.Transport{Hosts: []string{"service.test"}, MinDelay: tt.pause, MaxDelay: tt.pause}
			transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
				if !answered.IsZero() {
					return replying(200, nil)(r)
				}
				answered = time.Now()
				return &http.Response{StatusCode: 503, Header: http.Header{"Content-Type": {tt.media}}, Body: body}, nil
			})
			resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1"))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.LessOrEqual(t, closed.Sub(answered), tt.latest)
			require.LessOrEqual(t, time.Since(answered), max(tt.latest+time.Millisecond, tt.pause*3/2), "the pause includes the wait for the answer")
		})
	}
}

// The caller gets the last answer at once, and decides how long to wait for the rest of its body.
func TestLastAnswerThatStallsIsHandedBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body := &stalling{end: make(chan struct{}), after: func() {}}
		transport := client.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
			header := http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"60"}}
			return &http.Response{StatusCode: 503, Header: header, Body: body}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		resp, err := transport.RoundTrip(newPost(t, "http://service.test", "order 1").WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Zero(t, time.Since(began))
		require.Zero(t, body.closed.Load())
	})
}

func TestAttemptsShareAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got arrivals
		server := testservice.Listen(t, got.record(func(w http.ResponseWriter, r *http.Request, n int) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, strings.Repeat("x", 8<<10))
		}), false)
		var connections atomic.Int64
		server.Client().Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			connections.Add(1)
			return servertest.Dial(ctx, network, address)
		}
		require.Equal(t, 503, do(impatient(server), newPost(t, server.URL, "order 1")).Status)
		require.Len(t, got.list(), 4)
		require.EqualValues(t, 1, connections.Load())
	})
}

// Transport does not wait for the body of an answer that it discards, whatever the length of the pause.
func TestTransportLeavesAnAnswerThatStalls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, media, retryAfter string
		status                  int
	}{
		{"text", "text/plain", "", 503},
		{"problem", "application/problem+json", "", 503},
		{"problem of an operation in progress", "application/problem+json", "1", 409},
		{"problem with a malformed Retry-After", "application/problem+json", "soon", 503},
		{"problem with a negative Retry-After", "application/problem+json", "-1", 409},
		{"problem with a long Retry-After", "application/problem+json", "99999999999999999999", 429},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			stalled := make(chan struct{})
			server := httptest.NewServer(got.record(func(w http.ResponseWriter, _ *http.Request, n int) {
				if n == 1 {
					w.Header().Set("Content-Length", "100")
					w.Header().Set("Content-Type", tt.media)
					w.Header().Set("Retry-After", tt.retryAfter)
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, `{"retry":`)
					_ = http.NewResponseController(w).Flush()
					<-stalled
				}
			}))
			defer server.Close()
			defer close(stalled)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // which a Transport that waits for the answer needs
			defer cancel()
			a := do(impatient(server), newPost(t, server.URL, "").WithContext(ctx))
			require.NoError(t, a.Err)
			require.Equal(t, http.StatusOK, a.Status)
			got.requireOneKey(t, 2)
		})
	}
}
