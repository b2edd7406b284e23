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
	t        testing.TB
	client   *http.Client
	misdated *atomic.Int64 // answers of which the field Date was off by more than an hour
}

func newCaller(t testing.TB) caller {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(client.CloseIdleConnections)
	return caller{t, client, new(atomic.Int64)}
}

// reply is what a client gets.
type reply struct {
	status                int
	body, retry, language string
	handled               bool // by the handler, perhaps before
}

// says reports whether the reply is the refusal of that name.
func (r reply) says(problem string) bool {
	return r.language == "application/problem+json" && strings.Contains(r.body, "#"+problem)
}

// ask sends a request with a key once.
func (c caller) ask(url, key string, header map[string]string) (r reply) {
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
		c.misdated.Add(1)
	}
	body, err := io.ReadAll(resp.Body)
	assert.NoError(c.t, err)
	return reply{
		resp.StatusCode, string(body), resp.Header.Get("Retry-After"), resp.Header.Get("Content-Type"),
		resp.Header.Get("Handler") != "",
	}
}

// final asks until the operation is answered.
func (c caller) final(url, key string, header map[string]string) string {
	deadline := time.Now().Add(time.Minute)
	for pause := 10 * time.Millisecond; time.Now().Before(deadline) && !c.t.Failed(); pause = min(2*pause, time.Second/2) {
		if r := c.ask(url, key, header); r.status == http.StatusCreated {
			return r.body
		}
		time.Sleep(pause)
	}
	assert.Fail(c.t, "never answered", key)
	return ""
}
