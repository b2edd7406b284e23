package testservice

import (
	"context"
	"net/http"
)

// Answer is what a client got, but for the Date.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	Err    error // instead of an answer, or in the middle of one
}

// Replayed reports whether the answer is marked as a replay.
func (a Answer) Replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

// Edit changes a request before it is sent.
type Edit func(*http.Request)

// WithHeader sets the values of a field, under the name as it is written.
func WithHeader(name string, values ...string) Edit {
	return func(r *http.Request) { r.Header[name] = values }
}

// WithMethod makes the request another one than a POST.
func WithMethod(method string) Edit { return func(r *http.Request) { r.Method = method } }

// WithContext gives the request a context.
func WithContext(ctx context.Context) Edit { return func(r *http.Request) { *r = *r.WithContext(ctx) } }
