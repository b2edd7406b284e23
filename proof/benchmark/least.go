package benchmark

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
)

// least does the least work that keeps the contract. least reads and hashes the body, claims the key with a random token,
// calls the handler, stores the answer with the token, and sends the answer. Compared with the library, least lacks users
// and paths, renewal of leases, deadlines, and protection from panics and from handlers that keep the writer. least serves
// guarded requests only.
type least struct {
	store leastStore
	next  http.Handler
}

const leastLacks = "no scope by user or path, renewal of the lease, deadlines or limits; all headers are stored"

// leastStore keeps the records of least.
type leastStore interface {
	// claimKey claims the key, or reads the completed record of the key into c.storedAnswer.
	claimKey(ctx context.Context, key string, c *leastCall) (leastState, error)

	// completeRecord replaces the claim by c.newAnswer, unless the claim is lost.
	completeRecord(ctx context.Context, key string, c *leastCall) error
}

type leastState int

const (
	stateClaimed leastState = iota
	stateReused
	stateRunning
	stateDone
)

// leastAnswer is the recorded part of an answer.
type leastAnswer struct {
	status       int
	headerFields []leastField
	body         []byte
}

type leastField struct {
	name   string
	values []string
}

// leastCall has the buffers and the state of one request. A pool reuses the calls.
type leastCall struct {
	responseWriter http.ResponseWriter
	requestBody    []byte
	unreadBody     serverBody
	ownerToken     [16]byte
	fingerprint    [sha256.Size]byte
	newAnswer      leastAnswer // of the handler
	storedAnswer   leastAnswer // from the store
	encodedRecord  []byte      // newAnswer in bytes, for stores on a server
}

var leastCalls = sync.Pool{New: func() any { return new(leastCall) }}

func (l *least) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := leastCalls.Get().(*leastCall)
	c.responseWriter = w
	defer c.returnToPool()
	if err := c.readRequest(r); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	key := r.Header[keyHeader][0]
	state, err := l.store.claimKey(r.Context(), key, c)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable)
	case state == stateReused, state == stateRunning:
		w.WriteHeader(http.StatusConflict)
	case state == stateDone:
		c.replayAnswer()
	default:
		l.executeHandler(key, c, r)
	}
}

func (c *leastCall) readRequest(r *http.Request) error {
	buf := bytes.NewBuffer(c.requestBody[:0])
	buf.Grow(int(r.ContentLength) + bytes.MinRead)
	_, err := buf.ReadFrom(r.Body)
	c.requestBody = buf.Bytes()
	c.fingerprint = sha256.Sum256(c.requestBody)
	_, _ = rand.Read(c.ownerToken[:]) // never fails
	return err
}

func (l *least) executeHandler(key string, c *leastCall, r *http.Request) {
	c.newAnswer = leastAnswer{headerFields: c.newAnswer.headerFields[:0], body: c.newAnswer.body[:0]}
	c.unreadBody.reader.Reset(c.requestBody)
	r.Body = &c.unreadBody
	l.next.ServeHTTP(c, r)
	if err := l.store.completeRecord(r.Context(), key, c); err != nil {
		c.responseWriter.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.responseWriter.WriteHeader(c.newAnswer.status)
	_, _ = c.responseWriter.Write(c.newAnswer.body)
}

func (c *leastCall) replayAnswer() {
	h := c.responseWriter.Header()
	for _, field := range c.storedAnswer.headerFields {
		h[field.name] = field.values
	}
	c.responseWriter.WriteHeader(c.storedAnswer.status)
	_, _ = c.responseWriter.Write(c.storedAnswer.body)
}

func (c *leastCall) returnToPool() {
	c.responseWriter, c.storedAnswer = nil, leastAnswer{}
	leastCalls.Put(c)
}

func (c *leastCall) Header() http.Header { return c.responseWriter.Header() }

func (c *leastCall) WriteHeader(status int) {
	c.newAnswer.status = status
	for name, values := range c.responseWriter.Header() {
		c.newAnswer.headerFields = append(c.newAnswer.headerFields, leastField{name, values})
	}
}

func (c *leastCall) Write(p []byte) (int, error) {
	c.newAnswer.body = append(c.newAnswer.body, p...)
	return len(p), nil
}
