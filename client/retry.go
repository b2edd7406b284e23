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

// maxBufferedBody is the size of the largest body that Transport keeps in memory for retries.
const maxBufferedBody = 1 << 20

// sendWithRetries sends req with headerValue until Base returns a final answer, and returns the number of attempts.
func (t *Transport) sendWithRetries(req *http.Request, headerValue string) (*http.Response, int, error) {
	mayRetry := t.isListedHost(req) && t.MaxAttempts != 1
	if mayRetry && !canReplayBody(req) {
		buffered, err := bufferBody(req)
		if err != nil {
			return nil, 0, err
		}
		req = buffered
	}
	deadline, _ := req.Context().Deadline()
	policy := retryPolicy{
		transport: t, mayRetry: mayRetry && canReplayBody(req), deadline: deadline, nextDelay: t.MinDelay,
	}
	for n := 1; ; n++ {
		attempt := t.cloneWithHeader(req, headerValue)
		if n > 1 && req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, n - 1, err
			}
			attempt.Body = body
		}
		resp, err := t.baseTransport().RoundTrip(attempt)
		pause := policy.choosePause(attempt, resp, err)
		if pause == 0 {
			if err != nil {
				err = withCause(req.Context(), err)
			}
			return resp, n, err
		}
		if err := waitForRetry(req.Context(), pause, resp, err); err != nil {
			return nil, n, err
		}
	}
}

// canReplayBody reports whether the body of req can be sent again.
func canReplayBody(req *http.Request) bool {
	return !hasBody(req) || req.GetBody != nil
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// bufferBody reads the body of req into memory, and returns a copy of req with GetBody set. A body of unknown length or
// of more than maxBufferedBody bytes remains a stream, without GetBody. If ctx ends during the read, bufferBody closes
// the body and returns the cause.
func bufferBody(req *http.Request) (*http.Request, error) {
	if req.ContentLength < 0 || req.ContentLength > maxBufferedBody {
		return req, nil
	}
	stop := context.AfterFunc(req.Context(), func() { closeBody(req) }) // ends a read that stalls
	start, err := io.ReadAll(io.LimitReader(req.Body, maxBufferedBody+1))
	if !stop() {
		err = context.Cause(req.Context())
	}
	if err != nil {
		closeBody(req)
		return nil, err
	}
	buffered := req.WithContext(req.Context()) // a RoundTripper must not modify the request of the caller
	buffered.Body = prependToBody(start, req.Body)
	if len(start) <= maxBufferedBody {
		buffered.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(start)), nil }
	}
	return buffered, nil
}

// prependToBody returns a body that reads start, and then the rest from body.
func prependToBody(start []byte, body io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), body), body}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // the request has failed already, or its body was read to the end
	}
}

// retryPolicy decides whether and when a request is sent again.
type retryPolicy struct {
	transport       *Transport
	mayRetry        bool
	countedAttempts int           // attempts that count for MaxAttempts: all but those that found the operation in progress
	deadline        time.Time     // the last attempt begins before deadline; zero means no limit
	nextDelay       time.Duration // before the bounds and the random variation are applied
}

// choosePause returns the pause before the next attempt, after an attempt that ended with resp or err. Zero means that
// the attempt was the last one.
func (r *retryPolicy) choosePause(attempt *http.Request, resp *http.Response, err error) time.Duration {
	if !r.mayRetry || attempt.Context().Err() != nil || !isTransient(attempt, resp, err) {
		return 0
	}
	if !isInProgress(resp) {
		r.countedAttempts++
	} else if r.deadline.IsZero() {
		r.deadline = time.Now().Add(cmp.Or(r.transport.MaxWait, 5*time.Minute))
	}
	pause := r.chooseDelay(resp)
	if r.countedAttempts >= cmp.Or(r.transport.MaxAttempts, 4) ||
		!r.deadline.IsZero() && time.Until(r.deadline) <= pause {
		return 0
	}
	startedAt := time.Now() // forbidsRetry may wait for the body
	if resp != nil && forbidsRetry(resp) {
		return 0
	}
	return max(1, pause-time.Since(startedAt))
}

// chooseDelay returns the exponential delay, or the delay that Retry-After asks for, whichever is longer. While the
// operation is in progress, Retry-After alone counts, and the exponential delay stays as it is.
func (r *retryPolicy) chooseDelay(resp *http.Response) time.Duration {
	requested := min(parseRetryAfter(resp), cmp.Or(r.transport.MaxRetryAfter, time.Minute))
	if isInProgress(resp) && requested > 0 {
		return requested
	}
	delay := max(1, min(cmp.Or(r.nextDelay, 500*time.Millisecond), cmp.Or(r.transport.MaxDelay, 8*time.Second)))
	r.nextDelay = 2 * delay
	return max(requested, 1+delay/2+rand.N(delay))
}

// parseRetryAfter returns the delay in the header field Retry-After (RFC 9110, section 10.2.3) of resp. Without a valid
// delay, it returns zero or less.
func parseRetryAfter(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	value := resp.Header.Get("Retry-After")
	if date, err := http.ParseTime(value); err == nil {
		return time.Until(date)
	}
	seconds, _ := strconv.ParseUint(value, 10, 32) // 0 for an invalid number, 136 years for one out of range
	return time.Duration(seconds) * time.Second
}

// isTransient reports whether a further attempt may succeed after an attempt that ended with resp or err.
func isTransient(attempt *http.Request, resp *http.Response, err error) bool {
	if err != nil {
		_, isUntrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return !isUntrusted && isSendable(attempt)
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return isInProgress(resp)
}

// forbidsRetry reports whether resp is a problem whose member "retry" forbids to send the same request with the same key
// again. If the problem cannot be read, forbidsRetry returns false, so that the request is retried.
func forbidsRetry(resp *http.Response) bool {
	var problem struct{ Retry string }
	return json.Unmarshal(peekProblem(resp), &problem) == nil && (problem.Retry == "never" || problem.Retry == "new-key")
}

const (
	maxProblemBody = 64 << 10    // bytes of a problem that peekProblem reads
	problemTimeout = time.Second // for the arrival of the whole problem
)

// peekProblem returns the body of resp if resp is a problem (RFC 9457). The caller can read the body of resp from its start
// afterwards. If the body has not arrived after problemTimeout, peekProblem closes the body and returns nil.
func peekProblem(resp *http.Response) []byte {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if mediaType != "application/problem+json" {
		return nil
	}
	body := resp.Body
	timeout := time.AfterFunc(problemTimeout, func() { _ = body.Close() })
	start, _ := io.ReadAll(io.LimitReader(body, maxProblemBody)) // the caller gets the error from the same body
	if !timeout.Stop() {
		return nil
	}
	resp.Body = prependToBody(start, body)
	return start
}

// isSendable reports whether net/http can send a request like req at all. isSendable passes req to a transport that
// checks the request before it dials, and whose dial always fails: any error other than that of the dial is a fault of
// req.
func isSendable(req *http.Request) bool {
	errUnconnected := errors.New("no connection")
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errUnconnected }
	probe := req.WithContext(context.Background()) // without the httptrace of the caller
	probe.Body = nil
	_, err := (&http.Transport{DialContext: dial}).RoundTrip(probe)
	return errors.Is(err, errUnconnected)
}

// isInProgress reports whether resp says that the server still executes an earlier attempt.
func isInProgress(resp *http.Response) bool {
	return resp != nil && resp.StatusCode == http.StatusConflict &&
		(resp.Header.Get("Retry-After") != "" || resp.Header.Get("Stripe-Should-Retry") == "true")
}

// waitForRetry discards the answer of an attempt, and returns when pause has passed since the call. If ctx ends first,
// waitForRetry returns an error that wraps the cause of ctx and the error of the attempt.
func waitForRetry(ctx context.Context, pause time.Duration, resp *http.Response, err error) error {
	startedAt := time.Now()
	if resp != nil {
		drainBody(resp.Body, min(pause, time.Second))
		err = fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	timer := time.NewTimer(pause - time.Since(startedAt))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return withCause(ctx, err)
	}
}

// withCause returns err, the error of the last attempt, and wraps the cause of ctx as well if ctx has ended.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w; the last attempt: %w", cause, err)
	}
	return err
}

// drainBody reads up to 16 KiB of body for at most timeout, and closes body. A connection whose body was read to the end
// can be used again.
func drainBody(body io.ReadCloser, timeout time.Duration) {
	timer := time.AfterFunc(timeout, func() { _ = body.Close() })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, 16<<10)
	_ = body.Close()
}
