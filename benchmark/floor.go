package benchmark

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"hash/maphash"
	"net/http"
	"sync"
	"time"
)

// floor is the least work that deduplicates requests at all: read and hash the body, claim the key with a random token
// in a sharded map, record the answer while it is written, and write it again. It is no library: it knows no lease that
// ends, no expiry, no errors, no panics, and it sends an answer before it is stored.
type floor struct {
	next   http.Handler
	seed   maphash.Seed
	shards [64]floorShard
}

type floorShard struct {
	mu      sync.Mutex
	records map[string]*floorRecord
	_       [40]byte // a cache line each
}

type floorRecord struct {
	fingerprint [sha256.Size]byte
	token       [16]byte
	done        bool
	status      int
	fields      []floorField
	body        []byte
	expires     int64
}

type floorField struct {
	name   string
	values []string
}

func newFloor(next http.Handler) *floor {
	f := &floor{next: next, seed: maphash.MakeSeed()}
	for i := range f.shards {
		f.shards[i].records = make(map[string]*floorRecord)
	}
	return f
}

// floorCall is what the floor needs for one request.
type floorCall struct {
	request []byte
	unread  body
	w       http.ResponseWriter
	status  int
	fields  []floorField
	body    []byte
}

var floorCalls = sync.Pool{New: func() any { return new(floorCall) }}

func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header[keyHeader]
	if len(key) == 0 || r.Method != http.MethodPost {
		f.next.ServeHTTP(w, r)
		return
	}
	c := floorCalls.Get().(*floorCall)
	defer c.free()
	if err := c.read(r); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	fingerprint := sha256.Sum256(c.request)
	record, state := f.claim(key[0], fingerprint)
	switch state {
	case claimed:
		f.execute(c, w, r)
		f.complete(key[0], record, c)
	case reused:
		w.WriteHeader(http.StatusUnprocessableEntity)
	case running:
		w.WriteHeader(http.StatusConflict)
	case done:
		record.replay(w)
	}
}

type floorState int

const (
	claimed floorState = iota
	reused
	running
	done
)

func (c *floorCall) read(r *http.Request) error {
	if int64(cap(c.request)) <= r.ContentLength {
		c.request = make([]byte, 0, r.ContentLength+1)
	}
	var err error
	c.request, err = readInto(c.request, r.Body)
	return err
}

func (c *floorCall) free() {
	c.w = nil
	floorCalls.Put(c)
}

func (f *floor) claim(key string, fingerprint [sha256.Size]byte) (*floorRecord, floorState) {
	now := time.Now().Unix()
	sh := f.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch record := sh.records[key]; {
	case record == nil:
	case record.fingerprint != fingerprint:
		return record, reused
	case !record.done:
		return record, running
	default:
		return record, done
	}
	record := &floorRecord{fingerprint: fingerprint, expires: now + 60}
	_, _ = rand.Read(record.token[:]) // never fails
	sh.records[key] = record
	return record, claimed
}

func (f *floor) shard(key string) *floorShard {
	return &f.shards[maphash.String(f.seed, key)%uint64(len(f.shards))]
}

func (f *floor) execute(c *floorCall, w http.ResponseWriter, r *http.Request) {
	c.unread.r.Reset(c.request)
	c.w, c.status, c.fields, c.body = w, 0, c.fields[:0], c.body[:0]
	r.Body = &c.unread
	f.next.ServeHTTP(c, r)
}

func (f *floor) complete(key string, record *floorRecord, c *floorCall) {
	fields, body := append([]floorField(nil), c.fields...), bytes.Clone(c.body)
	sh := f.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	record.status, record.fields, record.body, record.done = c.status, fields, body, true
	record.expires += 86400 - 60
}

func (c *floorCall) Header() http.Header { return c.w.Header() }

func (c *floorCall) WriteHeader(status int) {
	c.status = status
	for name, values := range c.w.Header() {
		c.fields = append(c.fields, floorField{name, values})
	}
	c.w.WriteHeader(status)
}

func (c *floorCall) Write(p []byte) (int, error) {
	c.body = append(c.body, p...)
	return c.w.Write(p)
}

func (rec *floorRecord) replay(w http.ResponseWriter) {
	h := w.Header()
	for _, field := range rec.fields {
		h[field.name] = field.values
	}
	w.WriteHeader(rec.status)
	_, _ = w.Write(rec.body)
}
