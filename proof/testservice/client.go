package testservice

import (
	"context"
	"net/http"
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
