package testservice

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Answer is the answer that a client has received, without the Date field.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	Err    error // the request has failed, or the answer has broken off
}

// Replayed reports whether the answer is marked as a replay.
func (a Answer) Replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

// Edit changes a request before it is sent.
type Edit func(*http.Request)

// WithHeader sets the values of a header field. The name is sent as given, without canonicalization.
func WithHeader(name string, values ...string) Edit {
	return func(r *http.Request) { r.Header[name] = values }
}

// WithMethod sets the method of the request. The default is POST.
func WithMethod(method string) Edit { return func(r *http.Request) { r.Method = method } }

// WithContext sets the context of the request.
func WithContext(ctx context.Context) Edit { return func(r *http.Request) { *r = *r.WithContext(ctx) } }

// BuildJSON returns a function for the fields of probe.Service, which makes a request with a JSON body. The probe adds the key.
func BuildJSON(method, path, body string) func(key string) *http.Request {
	return func(string) *http.Request {
		r, err := http.NewRequest(method, path, strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Content-Type", "application/json")
		return r
	}
}

// ReadNumber returns the number that a service serves at url.
func ReadNumber(ctx context.Context, url string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	number, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(number))
}
