package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"strconv"
	"time"
)

// maxBuffered is the size of the largest body that is kept in memory to be sent again.
const maxBuffered = 1 << 20

// send sends a request until it gets a final answer. It returns how many attempts there were.
func (t *Transport) send(req *http.Request, key string) (*http.Response, int, error) {
	allowed := t.named(req) && t.MaxAttempts != 1
	if allowed && !replayable(req) {
		buffered, err := bufferBody(req)
		if err != nil {
			return nil, 0, err
		}
		req = buffered
	}
	until, _ := req.Context().Deadline()
	retry := retry{transport: t, allowed: allowed && replayable(req), until: until, usual: t.MinDelay}
	for n := 1; ; n++ {
		attempt := t.withKey(req, key)
		if n > 1 && req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, n - 1, err
			}
			attempt.Body = body
		}
		resp, err := t.base().RoundTrip(attempt)
		pause := retry.pause(attempt, resp, err)
		if pause == 0 {
			return resp, n, err
		}
		if err := rest(req.Context(), pause, resp, err); err != nil {
			return nil, n, err
		}
	}
}

// replayable reports whether the body of the request can be sent once more.
func replayable(req *http.Request) bool {
	return !hasBody(req) || req.GetBody != nil
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// bufferBody returns the request with a body that can be replayed, if it is small. Otherwise the body remains a stream.
// The request itself is not changed, but its body is used up.
func bufferBody(req *http.Request) (*http.Request, error) {
	if req.ContentLength < 0 || req.ContentLength > maxBuffered {
		return req, nil
	}
	stop := context.AfterFunc(req.Context(), func() { closeBody(req) }) // which ends a read that stalls
	start, err := io.ReadAll(io.LimitReader(req.Body, maxBuffered+1))
	if !stop() {
		err = context.Cause(req.Context())
	}
	if err != nil {
		closeBody(req)
		return nil, err
	}
	buffered := req.WithContext(req.Context())
	buffered.Body = unread(start, req.Body)
	if len(start) <= maxBuffered {
		buffered.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(start)), nil }
	}
	return buffered, nil
}

// unread returns a body whose start was read, so that it can be read as a whole.
func unread(start []byte, body io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), body), body}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // its reader is gone; there is nobody to tell
	}
}

// retry decides whether and when one request is sent again.
type retry struct {
	transport *Transport
	allowed   bool          // to send it more than once
	attempts  int           // without those that found the operation in progress
	until     time.Time     // the last attempt begins before; zero if there is no limit
	usual     time.Duration // the next pause, before it is limited and varied
}

// pause returns how long to wait before the next attempt. Zero: the one that ended with resp or err was the last.
func (r *retry) pause(attempt *http.Request, resp *http.Response, err error) time.Duration {
	if !r.allowed || attempt.Context().Err() != nil || !transient(attempt, resp, err) {
		return 0
	}
	if !inProgress(resp) {
		r.attempts++
	} else if r.until.IsZero() {
		r.until = time.Now().Add(cmp.Or(r.transport.MaxWait, 5*time.Minute))
	}
	pause := r.delay(resp)
	if r.attempts >= cmp.Or(r.transport.MaxAttempts, 4) || !r.until.IsZero() && time.Until(r.until) <= pause {
		return 0
	}
	began := time.Now()
	if resp != nil && refused(resp) {
		return 0
	}
	return max(1, pause-time.Since(began))
}

// delay returns the usual pause, or that of Retry-After if it is longer. For an operation in progress, Retry-After
// replaces the usual pause: it does not grow.
func (r *retry) delay(resp *http.Response) time.Duration {
	asked := min(retryAfter(resp), cmp.Or(r.transport.MaxRetryAfter, time.Minute))
	if inProgress(resp) && asked > 0 {
		return asked
	}
	usual := max(1, min(cmp.Or(r.usual, 500*time.Millisecond), cmp.Or(r.transport.MaxDelay, 8*time.Second)))
	r.usual = 2 * usual
	return max(asked, 1+usual/2+rand.N(usual))
}

// retryAfter returns what Retry-After (RFC 9110, section 10.2.3) asks for.
func retryAfter(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	value := resp.Header.Get("Retry-After")
	if date, err := http.ParseTime(value); err == nil {
		return time.Until(date)
	}
	seconds, _ := strconv.ParseUint(value, 10, 32) // 0 if it is no number, 136 years if it is too large
	return time.Duration(seconds) * time.Second
}

// transient reports whether another attempt may end better than one with this status or error.
func transient(attempt *http.Request, resp *http.Response, err error) bool {
	if err != nil {
		_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return !untrusted && sendable(attempt)
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return inProgress(resp)
}

const (
	maxProblem      = 64 << 10    // the size of the largest problem that is read
	problemPatience = time.Second // how long a problem may take to arrive
)

// refused reports whether an answer is a problem (RFC 9457) whose member "retry" says that the same request must not be
// sent again with its key. The answer can be read as before, unless it has stalled: then it is closed, and refuses nothing.
func refused(resp *http.Response) bool {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media != "application/problem+json" {
		return false
	}
	body := resp.Body
	impatient := time.AfterFunc(problemPatience, func() { _ = body.Close() })
	start, _ := io.ReadAll(io.LimitReader(body, maxProblem)) // a body that breaks off does so again for the caller
	if !impatient.Stop() {
		return false
	}
	resp.Body = unread(start, body)
	var problem struct{ Retry string }
	return json.Unmarshal(start, &problem) == nil && (problem.Retry == "never" || problem.Retry == "new-key")
}

// sendable reports whether net/http can send such a request. It asks a transport that checks the request and then gets
// no connection.
func sendable(req *http.Request) bool {
	errUnconnected := errors.New("no connection")
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errUnconnected }
	probe := req.WithContext(context.Background()) // whose trace is not told
	probe.Body = nil
	_, err := (&http.Transport{DialContext: dial}).RoundTrip(probe)
	return errors.Is(err, errUnconnected)
}

// inProgress reports whether an answer says that an earlier attempt is still being carried out.
func inProgress(resp *http.Response) bool {
	return resp != nil && resp.StatusCode == http.StatusConflict &&
		(resp.Header.Get("Retry-After") != "" || resp.Header.Get("Stripe-Should-Retry") == "true")
}

// rest discards the answer of an attempt and pauses before the next one. It returns an error if ctx ends before.
func rest(ctx context.Context, pause time.Duration, resp *http.Response, err error) error {
	began := time.Now()
	if resp != nil {
		discard(resp.Body, min(pause, time.Second))
		err = fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	timer := time.NewTimer(pause - time.Since(began))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
	}
}

// discard reads some of an answer that nobody wants, so that its connection can be used again. It does not wait long.
func discard(body io.ReadCloser, patience time.Duration) {
	impatient := time.AfterFunc(patience, func() { _ = body.Close() })
	defer impatient.Stop()
	_, _ = io.CopyN(io.Discard, body, 16<<10)
	_ = body.Close()
}
