//go:build linux

package clocks_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// caller is a client of the server processes.
type caller struct {
	t               testing.TB
	client          *http.Client
	misdatedAnswers *atomic.Int64 // counts the answers whose Date field was wrong by more than an hour
}

func newCaller(t testing.TB) caller {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(client.CloseIdleConnections)
	return caller{t, client, new(atomic.Int64)}
}

// reply is the answer to a client.
type reply struct {
	status                        int
	body, retryAfter, contentType string
	isFromHandler                 bool // the answer came from the handler, or is a replay of such an answer
}

// isProblem reports whether the reply is a refusal by the middleware of the type problem.
func (r reply) isProblem(problem string) bool {
	return r.contentType == "application/problem+json" && strings.Contains(r.body, "#"+problem)
}

// sendOnce sends a request with the key, without retries.
func (c caller) sendOnce(url, key string, header map[string]string) (r reply) {
	req, err := http.NewRequest(http.MethodPost, url, nil)
	if !assert.NoError(c.t, err) {
		return r
	}
	req.Header.Set("Idempotency-Key", key)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := c.client.Do(req)
	if !assert.NoError(c.t, err) {
		return r
	}
	defer resp.Body.Close()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil && time.Since(date).Abs() > time.Hour {
		c.misdatedAnswers.Add(1)
	}
	body, err := io.ReadAll(resp.Body)
	assert.NoError(c.t, err)
	return reply{
		resp.StatusCode, string(body), resp.Header.Get("Retry-After"), resp.Header.Get("Content-Type"),
		resp.Header.Get("Handler") != "",
	}
}

// awaitAnswer repeats the request until the handler's answer arrives, and returns its body.
func (c caller) awaitAnswer(url, key string, header map[string]string) string {
	deadline := time.Now().Add(time.Minute)
	for pause := 10 * time.Millisecond; time.Now().Before(deadline) && !c.t.Failed(); pause = min(2*pause, time.Second/2) {
		if r := c.sendOnce(url, key, header); r.status == http.StatusCreated {
			return r.body
		}
		time.Sleep(pause)
	}
	assert.Fail(c.t, "never answered", key)
	return ""
}
