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
	const again, final = 2, 1 // attempts
	tests := []struct {
		status       int
		header       string
		wantAttempts int
	}{
		{200, "", final}, {201, "", final}, {400, "", final}, {401, "", final}, {404, "", final}, {408, "", again},
		{409, "", final}, {409, "Retry-After: 1", again}, {409, "Idempotent-Replayed: true", final},
		{409, "Stripe-Should-Retry: true", again}, {409, "Stripe-Should-Retry: false", final}, {413, "", final},
		{422, "", final}, {422, "Retry-After: 1", final}, {425, "", again}, {429, "", again}, {500, "", again},
		{501, "", final}, {502, "", again}, {503, "", again}, {504, "", again}, {505, "", final},
		// Any handler can send the mark of a replay.
		{201, "Idempotent-Replayed: true", final}, {500, "Idempotent-Replayed: true", again},
		{503, "Idempotent-Replayed: true", again},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, " ", tt.header), func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, _ *http.Request, n int) {
				if n > 1 {
					w.WriteHeader(http.StatusAccepted)
				} else {
					name, value, _ := strings.Cut(tt.header, ": ")
					w.Header().Set(name, value)
					w.WriteHeader(tt.status)
				}
				fmt.Fprintf(w, "answer %d", n)
			}), false)
			a := sendRequest(newImpatientTransport(server), newPostRequest(t, server.URL, "order 1"))

			require.NoError(t, a.Err)
			want := testservice.Answer{Status: tt.status, Body: "answer 1"}
			if tt.wantAttempts == again {
				want = testservice.Answer{Status: http.StatusAccepted, Body: "answer 2"}
			}
			require.Equal(t, want, testservice.Answer{Status: a.Status, Body: a.Body})
			key := got.requireOneKey(t, tt.wantAttempts)
			require.Equal(t, uuid.Version(4), uuid.MustParse(key).Version())
			for _, got := range got.list() {
				require.Equal(t, "order 1", got.body)
			}
		})
	}
}

func TestTransportHandsBackTheLastAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ maxAttempts, wantAttempts int }{{0, 4}, {1, 1}, {3, 3}} {
		var got arrivals
		var seen attempts
		server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, _ *http.Request, n int) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "answer %d", n)
		}), false)
		transport := newImpatientTransport(server)
		transport.MaxAttempts, transport.Base = tt.maxAttempts, seen.recordAttempts(transport.Base)

		a := sendRequest(transport, newPostRequest(t, server.URL, "order 1"))
		require.NoError(t, a.Err)
		want := testservice.Answer{Status: 503, Body: fmt.Sprint("answer ", tt.wantAttempts)}
		require.Equal(t, want, testservice.Answer{Status: a.Status, Body: a.Body})
		key := got.requireOneKey(t, tt.wantAttempts)
		require.Len(t, seen.list(), tt.wantAttempts)
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
		contentLength int64 // 0 means unknown, as in http.NewRequest
		wantAttempts  int
	}{
		{name: "unknown length", size: 7, wantAttempts: 4},
		{name: "unknown length, empty", size: 0, wantAttempts: 4},
		{name: "known length", size: 7, contentLength: 7, wantAttempts: 4},
		{name: "unknown length, at the bound", size: bound, wantAttempts: 4},
		{name: "known length, at the bound", size: bound, contentLength: bound, wantAttempts: 4},
		{name: "unknown length, beyond the bound", size: bound + 1, wantAttempts: 1},
		{name: "unknown length, far beyond the bound", size: 3 * bound, wantAttempts: 1},
		{name: "known length, beyond the bound", size: bound + 1, contentLength: bound + 1, wantAttempts: 1},
		{name: "stream", size: 7, contentLength: -1, wantAttempts: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.recordRequests(func(http.ResponseWriter, *http.Request, int) {
				panic(http.ErrAbortHandler)
			}), false)
			content := strings.Repeat("0123456789abcde\n", tt.size/16+1)[:tt.size]
			b := &requestBody{Reader: strings.NewReader(content)}
			r := newPostRequest(t, server.URL, "")
			r.Body, r.GetBody, r.ContentLength = b, nil, tt.contentLength
			a := sendRequest(newImpatientTransport(server), r)

			failure, ok := errors.AsType[*client.Error](a.Err)
			require.True(t, ok)
			require.Equal(t, tt.wantAttempts, failure.Attempts)
			require.Equal(t, got.requireOneKey(t, tt.wantAttempts), failure.Key, "the caller may send it again")
			for _, arrived := range got.list() {
				require.True(t, content == arrived.body, "%d of %d bytes arrived", len(arrived.body), len(content))
			}
			require.EqualValues(t, 1, b.closeCalls.Load())
			require.Equal(t, io.ReadCloser(b), r.Body, "the caller's request was changed")
		})
	}
}

// The writer of a stream may wait for the answer, so Transport must not read the stream before the request is sent.
func TestTransportSendsAStreamWhileItIsWritten(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	defer server.Close()
	body, writer := io.Pipe()
	r := newPostRequest(t, server.URL, "")
	r.Body, r.GetBody, r.ContentLength = body, nil, -1
	resp, err := newImpatientTransport(server).RoundTrip(r)
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
		readableBytes int
	}{{-1, 0}, {bound + 1, 0}, {0, bound + 1}} {
		content := strings.NewReader(strings.Repeat("x", tt.readableBytes))
		r := newPostRequest(t, "http://service.test", "")
		r.Body = io.NopCloser(io.MultiReader(content, iotest.ErrReader(io.ErrUnexpectedEOF)))
		r.GetBody, r.ContentLength = nil, tt.contentLength
		transport := client.Transport{Hosts: []string{"service.test"}, Base: replyWith(200, nil)}
		_, err := transport.RoundTrip(r)
		require.NoError(t, err, "ContentLength: %d", tt.contentLength)
	}
}

func TestTransportReportsABodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	gone := errors.New("file is gone")
	b := &requestBody{Reader: io.MultiReader(strings.NewReader("order"), iotest.ErrReader(gone))}
	r := newPostRequest(t, "http://service.test", "")
	r.Body, r.GetBody, r.ContentLength = b, nil, 7
	_, err := (&client.Transport{Hosts: []string{"service.test"}, Base: replyWith(200, nil)}).RoundTrip(r)
	failure, ok := errors.AsType[*client.Error](err)
	require.True(t, ok)
	require.Zero(t, failure.Attempts)
	require.ErrorIs(t, err, gone)
	require.EqualValues(t, 1, b.closeCalls.Load())
}

// The end of the context interrupts Transport while it reads a body that stalls.
func TestContextEndsTheReadingOfABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		body, _ := io.Pipe()
		r := newPostRequest(t, "http://service.test", "").WithContext(ctx)
		r.Body, r.GetBody, r.ContentLength = body, nil, 7
		began := time.Now()
		_, err := (&client.Transport{Hosts: []string{"service.test"}, Base: replyWith(200, nil)}).RoundTrip(r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

func TestTransportTriesOnceWhatCanNeverBeSent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		editRequest func(*http.Request)
		wantError   string
	}{
		{name: "unknown scheme", editRequest: func(r *http.Request) { r.URL.Scheme = "foo" }, wantError: "unsupported protocol scheme"},
		{name: "no URL", editRequest: func(r *http.Request) { r.URL = nil }, wantError: "nil Request.URL"},
		{name: "no host", editRequest: func(r *http.Request) { r.URL.Host = "" }, wantError: "no Host"},
		{name: "invalid method", editRequest: func(r *http.Request) { r.Method = "PO ST" }, wantError: "invalid method"},
		{name: "invalid field name", editRequest: func(r *http.Request) { r.Header["X A"] = []string{"a"} },
			wantError: "invalid header"},
		{name: "empty field name", editRequest: func(r *http.Request) { r.Header[""] = []string{"a"} }, wantError: "invalid header"},
		{name: "line break in a field", editRequest: func(r *http.Request) { r.Header.Set("X-A", "a\nb") },
			wantError: "invalid header"},
		{name: "DEL in a field", editRequest: func(r *http.Request) { r.Header.Set("X-A", "a\x7Fb") }, wantError: "invalid header"},
		{name: "invalid trailer", editRequest: func(r *http.Request) { r.Trailer = http.Header{"X A": nil} },
			wantError: "invalid trailer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := testservice.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				panic(http.ErrAbortHandler)
			}), false)
			r := newPostRequest(t, server.URL, "order 1")
			r.Header.Set("Idempotency-Key", "k-1")
			tt.editRequest(r)
			_, err := newImpatientTransport(server).RoundTrip(r)
			failure, ok := errors.AsType[*client.Error](err)
			require.True(t, ok)
			require.Equal(t, 1, failure.Attempts, "%v", err)
			require.ErrorContains(t, err, tt.wantError)
		})
	}
}

// These requests look invalid, but net/http can send them, so Transport retries them.
func TestTransportRepeatsWhatCanBeSent(t *testing.T) {
	t.Parallel()
	for name, editRequest := range map[string]func(*http.Request){
		"no method, which is GET":           func(r *http.Request) { r.Method = "" },
		"tab and other bytes in a field":    func(r *http.Request) { r.Header.Set("X-A", "a\tb\xFF\xE9") },
		"no body":                           func(r *http.Request) { r.Body, r.GetBody, r.ContentLength = nil, nil, 0 },
		"no body, although a length is set": func(r *http.Request) { r.Body, r.GetBody = http.NoBody, nil },
		"body of unknown length":            func(r *http.Request) { r.ContentLength = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testservice.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				panic(http.ErrAbortHandler)
			}), false)
			r := newPostRequest(t, server.URL, "order 1")
			r.Header.Set("Idempotency-Key", "k-1")
			editRequest(r)
			_, err := newImpatientTransport(server).RoundTrip(r)
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
	r := newPostRequest(t, server.URL, "order 1")
	_, err := newImpatientTransport(server).RoundTrip(r.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
	failure, ok := errors.AsType[*client.Error](err)
	require.True(t, ok)
	require.Equal(t, 4, failure.Attempts)
	require.EqualValues(t, 4, connections.Load())
}

func TestTransportReportsABodyThatCannotBeReplayed(t *testing.T) {
	t.Parallel()
	gone := errors.New("file is gone")
	r := newPostRequest(t, "http://service.test", "order 1")
	r.GetBody = func() (io.ReadCloser, error) { return nil, gone }
	transport := client.Transport{Hosts: []string{"service.test"}, MinDelay: 1, Base: replyWith(503, nil)}
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
	transport := newImpatientTransport(server)
	transport.Base = base
	failure, ok := errors.AsType[*client.Error](sendRequest(transport, newPostRequest(t, server.URL, "order 1")).Err)
	require.True(t, ok)
	require.Equal(t, 1, failure.Attempts)
}

func TestSlowAnswerIsWaitedForInFurtherAttempts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	releaseHandler := sync.OnceFunc(func() { close(release) })
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		testservice.Echo(w, r)
	})
	base := svc.Server.Client().Transport.(*http.Transport)
	base.ResponseHeaderTimeout = 100 * time.Millisecond
	transport := newImpatientTransport(svc.Server)
	transport.MaxAttempts = 1000
	var timeouts atomic.Int64
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(r)
		if err != nil {
			timeouts.Add(1)
		} else if resp.StatusCode == http.StatusConflict {
			releaseHandler()
		}
		return resp, err
	})
	a := sendRequest(transport, newPostRequest(t, svc.Server.URL+"/payments", "order 1"))

	require.NoError(t, a.Err)
	require.True(t, a.Replayed())
	require.Equal(t, "order 1", a.Body)
	require.Positive(t, timeouts.Load())
	require.Contains(t, svc.Journal.Outcomes(), idempotency.OutcomeInProgress)
	require.EqualValues(t, 1, svc.Runs.Load())
}

// replyInProgress returns a Base that answers like a server on which an earlier attempt is still running.
func replyInProgress(retryAfter string) baseFunc {
	return replyWith(http.StatusConflict, http.Header{"Retry-After": {retryAfter}})
}

// replyInTurn returns a Base that calls before until end has passed, and after from then on.
func replyInTurn(end time.Duration, before, after baseFunc) baseFunc {
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
	stripe := replyWith(http.StatusConflict, http.Header{"Stripe-Should-Retry": {"true"}})
	slow := baseFunc(func(*http.Request) (*http.Response, error) {
		time.Sleep(20 * time.Second)
		return nil, io.ErrUnexpectedEOF
	})
	created := replyWith(201, nil)
	tests := []struct {
		name             string
		newBase          func() baseFunc
		contextTimeout   time.Duration // 0 for none
		transport        client.Transport
		wantStatus       int
		wantMin, wantMax time.Duration // until the answer
	}{
		{name: "more than four attempts",
			newBase:    func() baseFunc { return replyInTurn(45*time.Second, replyInProgress("1"), created) },
			wantStatus: 201, wantMin: 45 * time.Second, wantMax: 46 * time.Second},
		{name: "pauses that do not grow",
			newBase:    func() baseFunc { return replyInTurn(299*time.Second, replyInProgress("1"), created) },
			wantStatus: 201, wantMin: 299 * time.Second, wantMax: 300 * time.Second},
		{name: "no Retry-After", newBase: func() baseFunc { return replyInTurn(45*time.Second, stripe, created) },
			wantStatus: 201, wantMin: 45 * time.Second, wantMax: 57 * time.Second},
		{name: "Retry-After of 0 seconds",
			newBase:    func() baseFunc { return replyInTurn(45*time.Second, replyInProgress("0"), created) },
			wantStatus: 201, wantMin: 45 * time.Second, wantMax: 57 * time.Second},
		{name: "until the context would end", newBase: func() baseFunc { return replyInProgress("1") },
			contextTimeout: 20 * time.Second, wantStatus: 409, wantMin: 19 * time.Second, wantMax: 20 * time.Second},
		{name: "as long as the context permits",
			newBase:        func() baseFunc { return replyInTurn(time.Hour, replyInProgress("1"), created) },
			contextTimeout: 2 * time.Hour, wantStatus: 201, wantMin: time.Hour, wantMax: time.Hour + time.Second},
		{name: "the context counts, not MaxWait",
			newBase:        func() baseFunc { return replyInTurn(time.Minute, replyInProgress("1"), created) },
			contextTimeout: 2 * time.Hour, transport: client.Transport{MaxWait: time.Second},
			wantStatus: 201, wantMin: time.Minute, wantMax: time.Minute + time.Second},
		{name: "5 minutes without a deadline", newBase: func() baseFunc { return replyInProgress("1") },
			wantStatus: 409, wantMin: 299 * time.Second, wantMax: 300 * time.Second},
		{name: "MaxWait without a deadline", newBase: func() baseFunc { return replyInProgress("1") },
			transport: client.Transport{MaxWait: 10 * time.Second}, wantStatus: 409, wantMin: 9 * time.Second, wantMax: 10 * time.Second},
		{name: "MaxWait from the first answer in-progress", newBase: func() baseFunc {
			return replyInTurn(time.Second, slow, replyInTurn(29*time.Second, replyInProgress("1"), created))
		}, transport: client.Transport{MaxWait: 10 * time.Second}, wantStatus: 201, wantMin: 29 * time.Second, wantMax: 30 * time.Second},
		{name: "no wait if MaxAttempts is 1", newBase: func() baseFunc { return replyInProgress("1") },
			transport: client.Transport{MaxAttempts: 1}, wantStatus: 409},
		{name: "no wait at a host that is not named", newBase: func() baseFunc { return replyInProgress("1") },
			transport: client.Transport{Hosts: []string{"other.test"}}, wantStatus: 409},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := client.WithKey(t.Context(), "k-1")
				if tt.contextTimeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.contextTimeout)
					defer cancel()
				}
				transport := tt.transport
				transport.Base = tt.newBase()
				if transport.Hosts == nil {
					transport.Hosts = []string{"service.test"}
				}
				began := time.Now()
				resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1").WithContext(ctx))
				require.NoError(t, err)
				require.Equal(t, tt.wantStatus, resp.StatusCode)
				require.GreaterOrEqual(t, time.Since(began), tt.wantMin)
				require.LessOrEqual(t, time.Since(began), tt.wantMax)
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
		transport.Base = seen.recordAttempts(baseFunc(func(r *http.Request) (*http.Response, error) {
			return replyWith(statuses[len(seen.list())], http.Header{"Retry-After": {"1"}})(r)
		}))
		resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1"))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Len(t, seen.list(), 10)
		for i, attempt := range seen.list() {
			require.Equal(t, statuses[i], attempt.status)
		}
	})
}

// A crashed process blocks its key until the end of its lease. Transport waits longer than the lease.
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
		r := newPostRequest(t, "http://service.test/payments", "order 1")
		a := sendRequest(&transport, r.WithContext(client.WithKey(t.Context(), "k-1")))
		require.NoError(t, a.Err)
		require.Equal(t, 201, a.Status)
		require.InDelta(t, lease, time.Since(began), float64(2*time.Second))
	})
}

// measurePauses sends a request that never gets a final answer, and returns the pauses between the attempts.
func measurePauses(t *testing.T, transport client.Transport) []time.Duration {
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
	_, _ = transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1"))
	return pauses
}

func TestPausesGrowAndVary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		varied := make(map[time.Duration]bool)
		for range 20 {
			got := measurePauses(t, client.Transport{Base: replyWith(503, nil)})
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
		for _, pause := range measurePauses(t, client.Transport{Base: replyWith(503, nil), MaxAttempts: 100}) {
			require.LessOrEqual(t, pause, 12*time.Second)
			longest = max(longest, pause)
		}
		require.Greater(t, longest, 8*time.Second)
		for _, pause := range measurePauses(t, client.Transport{Base: replyWith(503, nil), MaxDelay: 2}) {
			require.LessOrEqual(t, pause, 3*time.Nanosecond)
		}
		require.Len(t, measurePauses(t, client.Transport{Base: replyWith(503, nil), MinDelay: -1, MaxDelay: -1}), 3)
	})
}

func TestRetryAfterIsHeeded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value            string
		dateFromNow      time.Duration // instead of value
		maxRetryAfter    time.Duration
		wantMin, wantMax time.Duration
	}{
		{value: "7", wantMin: 7 * time.Second, wantMax: 7 * time.Second},
		{dateFromNow: 9 * time.Second, wantMin: 9 * time.Second, wantMax: 9 * time.Second},
		{value: "7", maxRetryAfter: 3 * time.Second, wantMin: 3 * time.Second, wantMax: 3 * time.Second},
		{dateFromNow: time.Hour, maxRetryAfter: 3 * time.Second, wantMin: 3 * time.Second, wantMax: 3 * time.Second},
		{value: "3600", wantMin: time.Minute, wantMax: time.Minute},
		{value: "99999999999999999999999", wantMin: time.Minute, wantMax: time.Minute},
		// Below, the varied pause is longer than the Retry-After, so Transport uses the varied pause.
		{value: "7", maxRetryAfter: 100 * time.Millisecond, wantMin: 250 * time.Millisecond, wantMax: 751 * time.Millisecond},
		{value: "0", wantMin: 250 * time.Millisecond, wantMax: 751 * time.Millisecond},
		{value: "-5", wantMin: 250 * time.Millisecond, wantMax: 751 * time.Millisecond},
		{value: "soon", wantMin: 250 * time.Millisecond, wantMax: 751 * time.Millisecond},
		{dateFromNow: -time.Hour, wantMin: 250 * time.Millisecond, wantMax: 751 * time.Millisecond},
	}
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range tests {
			if tt.dateFromNow != 0 {
				tt.value = time.Now().Truncate(time.Second).Add(tt.dateFromNow).UTC().Format(http.TimeFormat)
				tt.wantMin -= time.Since(time.Now().Truncate(time.Second))
			}
			got := measurePauses(t, client.Transport{MaxAttempts: 2, MaxRetryAfter: tt.maxRetryAfter,
				Base: replyWith(503, http.Header{"Retry-After": {tt.value}})})
			require.Len(t, got, 1)
			require.GreaterOrEqual(t, got[0], tt.wantMin, "Retry-After: %s", tt.value)
			require.LessOrEqual(t, got[0], tt.wantMax, "Retry-After: %s", tt.value)
		}
	})
}

func TestContextEndsAPause(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	for name, base := range map[string]baseFunc{
		"after an answer":       replyWith(503, http.Header{"Retry-After": {"30"}}),
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
				_, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1").WithContext(ctx))

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
			Base: replyWith(503, http.Header{"Retry-After": {"11"}})}
		began := time.Now()
		resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1").WithContext(ctx))
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
	server := testservice.Listen(t, got.recordRequests(func(_ http.ResponseWriter, r *http.Request, _ int) {
		cancel()
		<-r.Context().Done()
	}), false)
	transport := newImpatientTransport(server)
	transport.Base = seen.recordAttempts(transport.Base)
	a := sendRequest(transport, newPostRequest(t, server.URL, "order 1").WithContext(ctx))
	require.ErrorIs(t, a.Err, context.Canceled)
	require.Len(t, seen.list(), 1)
}

// A caller that has given up is told so, even if the connection was lost first.
func TestLostAnswerOfAnEndedContextHasItsCause(t *testing.T) {
	t.Parallel()
	gaveUp := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	transport := client.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
		cancel(gaveUp)
		return nil, io.EOF
	})
	_, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1").WithContext(ctx))
	require.ErrorIs(t, err, gaveUp)
	require.ErrorIs(t, err, io.EOF)
}

func TestAnswerOfAnEndedContextIsHandedBack(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	transport := client.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		cancel()
		return replyWith(503, nil)(r)
	})
	resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1").WithContext(ctx))
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
}

func TestClientTimeoutBoundsAllAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen attempts
		httpClient := http.Client{Timeout: 20 * time.Second, Transport: &client.Transport{
			Hosts: []string{"service.test"}, MaxAttempts: 1000, Base: seen.recordAttempts(replyWith(503, nil)),
		}}
		began := time.Now()
		resp, err := httpClient.Do(newPostRequest(t, "http://service.test", "order 1"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 503, resp.StatusCode)
		require.LessOrEqual(t, time.Since(began), 20*time.Second)
		require.Greater(t, len(seen.list()), 3)
	})
}

// endlessBody is a body without an end.
type endlessBody struct {
	requestBody
	bytesRead int
}

func (b *endlessBody) Read(p []byte) (int, error) {
	b.bytesRead += len(p)
	return len(p), nil
}

func TestAnswerOfARepeatedAttemptIsReadToABoundAndClosed(t *testing.T) {
	t.Parallel()
	unwanted := new(endlessBody)
	transport := client.Transport{Hosts: []string{"service.test"}, MaxAttempts: 2, MinDelay: 1}
	transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
		if unwanted.bytesRead > 0 {
			return replyWith(200, nil)(r)
		}
		return &http.Response{StatusCode: 503, Body: unwanted}, nil
	})
	resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1"))
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	require.Positive(t, unwanted.closeCalls.Load())
	require.Less(t, unwanted.bytesRead, 1<<20)
}

// stallingBody is a body that never arrives. Close ends a blocked Read.
type stallingBody struct {
	requestBody
	closed  chan struct{}
	onClose func()
}

func (b *stallingBody) Read([]byte) (int, error) {
	<-b.closed
	return 0, http.ErrBodyReadAfterClose
}

func (b *stallingBody) Close() error {
	if b.closeCalls.Add(1) == 1 {
		b.onClose()
		close(b.closed)
	}
	return nil
}

// Transport closes an answer that stalls after at most a second, even if the pause is longer. For a problem, Transport
// always waits this second, because the problem may forbid the retry.
func TestAnswerThatStallsIsClosedAfterASecond(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mediaType    string
		pause        time.Duration
		wantCloseMax time.Duration // from the answer until its end
	}{
		{"", 100 * time.Millisecond, 150 * time.Millisecond}, {"", time.Minute, time.Second},
		{"application/problem+json", 100 * time.Millisecond, time.Second}, {"application/problem+json", time.Minute, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var answered, closed time.Time
			body := &stallingBody{closed: make(chan struct{}), onClose: func() { closed = time.Now() }}
			transport := client.Transport{Hosts: []string{"service.test"}, MinDelay: tt.pause, MaxDelay: tt.pause}
			transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
				if !answered.IsZero() {
					return replyWith(200, nil)(r)
				}
				answered = time.Now()
				return &http.Response{StatusCode: 503, Header: http.Header{"Content-Type": {tt.mediaType}}, Body: body}, nil
			})
			resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1"))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			require.LessOrEqual(t, closed.Sub(answered), tt.wantCloseMax)
			wantMax := max(tt.wantCloseMax+time.Millisecond, tt.pause*3/2)
			require.LessOrEqual(t, time.Since(answered), wantMax, "the pause includes the wait for the answer")
		})
	}
}

// The caller gets the last answer at once, and decides how long to wait for the rest of its body.
func TestLastAnswerThatStallsIsHandedBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body := &stallingBody{closed: make(chan struct{}), onClose: func() {}}
		transport := client.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
			header := http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"60"}}
			return &http.Response{StatusCode: 503, Header: header, Body: body}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		resp, err := transport.RoundTrip(newPostRequest(t, "http://service.test", "order 1").WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.Zero(t, time.Since(began))
		require.Zero(t, body.closeCalls.Load())
	})
}

func TestAttemptsShareAConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got arrivals
		server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, r *http.Request, n int) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, strings.Repeat("x", 8<<10))
		}), false)
		var connections atomic.Int64
		server.Client().Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			connections.Add(1)
			return servertest.Dial(ctx, network, address)
		}
		require.Equal(t, 503, sendRequest(newImpatientTransport(server), newPostRequest(t, server.URL, "order 1")).Status)
		require.Len(t, got.list(), 4)
		require.EqualValues(t, 1, connections.Load())
	})
}

// Transport does not wait for the body of a discarded answer, however long the pause is.
func TestTransportLeavesAnAnswerThatStalls(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, mediaType, retryAfter string
		status                      int
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
			server := httptest.NewServer(got.recordRequests(func(w http.ResponseWriter, _ *http.Request, n int) {
				if n == 1 {
					w.Header().Set("Content-Length", "100")
					w.Header().Set("Content-Type", tt.mediaType)
					w.Header().Set("Retry-After", tt.retryAfter)
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, `{"retry":`)
					_ = http.NewResponseController(w).Flush()
					<-stalled
				}
			}))
			defer server.Close()
			defer close(stalled)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a Transport that waits for the body runs into this timeout
			defer cancel()
			a := sendRequest(newImpatientTransport(server), newPostRequest(t, server.URL, "").WithContext(ctx))
			require.NoError(t, a.Err)
			require.Equal(t, http.StatusOK, a.Status)
			got.requireOneKey(t, 2)
		})
	}
}
