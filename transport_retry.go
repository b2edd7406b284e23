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

// delays returns the pauses between the attempts of one request.
func (t *Transport) delays() *backoff.ExponentialBackOff {
	longest := cmp.Or(t.MaxDelay, 8*time.Second)
	return &backoff.ExponentialBackOff{
		InitialInterval:     min(cmp.Or(t.MinDelay, 500*time.Millisecond), longest),
		MaxInterval:         longest,
		Multiplier:          2,
		RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
}

// pause returns how long to wait before req is sent again, after its nth attempt. Zero: it is not.
func (t *Transport) pause(
	req *http.Request, n int, resp *http.Response, err error, delays *backoff.ExponentialBackOff,
) time.Duration {
	if n >= cmp.Or(t.MaxAttempts, 4) || !repeatable(req) || !curable(resp, err) {
		return 0
	}
	pause := delays.NextBackOff()
	if resp != nil {
		pause = max(pause, retryAfter(resp.Header, cmp.Or(t.MaxRetryAfter, time.Minute)))
	}
	deadline, ok := req.Context().Deadline()
	if ok && time.Until(deadline) <= pause {
		return 0
	}
	return max(pause, 1)
}

// repeatable reports whether the request can be sent once more.
func repeatable(req *http.Request) bool {
	return req.Context().Err() == nil && (req.Body == nil || req.Body == http.NoBody || req.GetBody != nil)
}

// curable reports whether another attempt may end better than one with this answer or error.
func curable(resp *http.Response, err error) bool {
	if err != nil {
		_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return !untrusted
	}
	if resp.Header.Get(replayMarker) == "true" {
		return false
	}
	switch resp.StatusCode {
	case http.StatusConflict:
		return resp.Header.Get("Retry-After") != ""
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
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
