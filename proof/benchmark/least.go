package benchmark

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
)

// least is the least that keeps the contract: it reads and hashes the body, claims the key under a random token, lets
// the handler run, stores the answer under the token, and then sends it. It is no library: it knows no user or path, no
// renewal of a lease, no deadline, no panic, and no handler that keeps its writer. It serves guarded requests only.
type least struct {
	store leastStore
	next  http.Handler
}

const leastLacks = "no scope by user or path, renewal of the lease, deadlines or limits; all headers are stored"

// leastStore is where it keeps its records.
type leastStore interface {
	// claim claims the key, or puts the record that has it into c.found.
	claim(ctx context.Context, key string, c *leastCall) (leastState, error)

	// complete replaces the claim by what is in c.made, unless it is lost.
	complete(ctx context.Context, key string, c *leastCall) error
}

type leastState int

const (
	claimed leastState = iota
	reused
	running
	done
)

// leastAnswer is what is recorded of an answer.
type leastAnswer struct {
	status int
	fields []leastField
	body   []byte
}

type leastField struct {
	name   string
	values []string
}

// leastCall is what one request needs. It serves another one afterwards.
type leastCall struct {
	w           http.ResponseWriter
	request     []byte
	unread      body
	token       [16]byte
	fingerprint [sha256.Size]byte
	made        leastAnswer // by the handler
	found       leastAnswer // in the store
	record      []byte      // made, as bytes, if the store needs them
}

var leastCalls = sync.Pool{New: func() any { return new(leastCall) }}

func (l *least) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := leastCalls.Get().(*leastCall)
	c.w = w
	defer c.free()
	if err := c.read(r); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	key := r.Header[keyHeader][0]
	state, err := l.store.claim(r.Context(), key, c)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable)
	case state == reused, state == running:
		w.WriteHeader(http.StatusConflict)
	case state == done:
		c.replay()
	default:
		l.execute(key, c, r)
	}
}

func (c *leastCall) read(r *http.Request) error {
	buf := bytes.NewBuffer(c.request[:0])
	buf.Grow(int(r.ContentLength) + bytes.MinRead)
	_, err := buf.ReadFrom(r.Body)
	c.request = buf.Bytes()
	c.fingerprint = sha256.Sum256(c.request)
	_, _ = rand.Read(c.token[:]) // never fails
	return err
}

func (l *least) execute(key string, c *leastCall, r *http.Request) {
	c.made = leastAnswer{fields: c.made.fields[:0], body: c.made.body[:0]}
	c.unread.r.Reset(c.request)
	r.Body = &c.unread
	l.next.ServeHTTP(c, r)
	if err := l.store.complete(r.Context(), key, c); err != nil {
		c.w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.w.WriteHeader(c.made.status)
	_, _ = c.w.Write(c.made.body)
}

func (c *leastCall) replay() {
	h := c.w.Header()
	for _, field := range c.found.fields {
		h[field.name] = field.values
	}
	c.w.WriteHeader(c.found.status)
	_, _ = c.w.Write(c.found.body)
}

func (c *leastCall) free() {
	c.w, c.found = nil, leastAnswer{}
	leastCalls.Put(c)
}

func (c *leastCall) Header() http.Header { return c.w.Header() }

func (c *leastCall) WriteHeader(status int) {
	c.made.status = status
	for name, values := range c.w.Header() {
		c.made.fields = append(c.made.fields, leastField{name, values})
	}
}

func (c *leastCall) Write(p []byte) (int, error) {
	c.made.body = append(c.made.body, p...)
	return len(p), nil
}
