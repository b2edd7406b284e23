package idempotency

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// retry decides whether and when one request is sent again.
type retry struct {
	transport *Transport
	allowed   bool      // to send it more than once
	sendable  bool      // by net/http
	attempts  int       // without those that found the operation in progress
	waitUntil time.Time // for an operation in progress, if the context has no deadline
	delays    *backoff.ExponentialBackOff
}

func (t *Transport) retry(req *http.Request) *retry {
	longest := cmp.Or(t.MaxDelay, 8*time.Second)
	return &retry{
		transport: t,
		allowed:   t.retries(req) && replayable(req),
		sendable:  sendable(req),
		delays: &backoff.ExponentialBackOff{
			InitialInterval:     min(cmp.Or(t.MinDelay, 500*time.Millisecond), longest),
			MaxInterval:         longest,
			Multiplier:          2,
			RandomizationFactor: backoff.DefaultRandomizationFactor,
		},
	}
}

// retries reports whether the request may be sent more than once.
func (t *Transport) retries(req *http.Request) bool {
	return t.maxAttempts() > 1 && t.named(req)
}

func (t *Transport) maxAttempts() int { return cmp.Or(t.MaxAttempts, 4) }

// pause returns how long to wait before the next attempt. Zero: the one that ended with resp or err was the last.
func (r *retry) pause(attempt *http.Request, resp *http.Response, err error) time.Duration {
	ctx := attempt.Context()
	if !r.allowed || ctx.Err() != nil || !r.transient(attempt, resp, err) {
		return 0
	}
	deadline, bounded := ctx.Deadline()
	if !inProgress(resp) {
		r.attempts++
	} else if !bounded {
		deadline, bounded = r.waitDeadline(), true
	}
	if r.attempts >= r.transport.maxAttempts() {
		return 0
	}
	pause := r.delay(resp)
	if bounded && time.Until(deadline) <= pause {
		return 0
	}
	return max(pause, 1)
}

// waitDeadline returns when to give up on an operation in progress. The time begins with the first call.
func (r *retry) waitDeadline() time.Time {
	if r.waitUntil.IsZero() {
		r.waitUntil = time.Now().Add(cmp.Or(r.transport.MaxWait, 5*time.Minute))
	}
	return r.waitUntil
}

// delay returns the usual pause, or that of Retry-After if it is longer. For an operation in progress, Retry-After
// replaces the usual pause: it does not grow.
func (r *retry) delay(resp *http.Response) time.Duration {
	if resp == nil {
		return r.delays.NextBackOff()
	}
	asked := retryAfter(resp.Header, cmp.Or(r.transport.MaxRetryAfter, time.Minute))
	if inProgress(resp) && asked > 0 {
		return asked
	}
	return max(asked, r.delays.NextBackOff())
}

// transient reports whether another attempt may end better than one with this answer or error.
func (r *retry) transient(attempt *http.Request, resp *http.Response, err error) bool {
	if err != nil {
		_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return r.sendable && !untrusted && !mismeasured(attempt)
	}
	switch resp.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return inProgress(resp)
}

// inProgress reports whether an answer says that an earlier attempt is still being carried out.
func inProgress(resp *http.Response) bool {
	return resp != nil && resp.StatusCode == http.StatusConflict &&
		(resp.Header.Get("Retry-After") != "" || resp.Header.Get("Stripe-Should-Retry") == "true")
}

// retryAfter returns what Retry-After (RFC 9110, section 10.2.3) asks for, up to limit.
func retryAfter(h http.Header, limit time.Duration) time.Duration {
	value := h.Get("Retry-After")
	if date, err := http.ParseTime(value); err == nil {
		return min(time.Until(date), limit)
	}
	seconds, _ := strconv.ParseUint(value, 10, 64) // 0 if it is no number, the largest there is if it is too large
	return time.Duration(min(float64(seconds)*float64(time.Second), float64(limit)))
}

// drainable is how much of an answer that nobody wants is read, so that its connection can be used again.
const drainable = 16 << 10

// discard reads the rest of an answer, but does not wait long for it.
func discard(body io.ReadCloser, patience time.Duration) {
	impatient := time.AfterFunc(patience, func() { _ = body.Close() })
	defer impatient.Stop()
	_, _ = io.CopyN(io.Discard, body, drainable)
	_ = body.Close()
}

// rest discards the answer of an attempt and pauses before the next one. It returns an error if ctx ends before.
func rest(ctx context.Context, pause time.Duration, resp *http.Response, err error) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	if resp != nil {
		discard(resp.Body, min(pause, time.Second))
		err = fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w; the last attempt: %w", context.Cause(ctx), err)
	}
}
