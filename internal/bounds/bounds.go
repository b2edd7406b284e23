// Package bounds limits what requests share. Buffers are reused by later requests, Shares limit the memory of requests,
// and Usage limits the memory of records. Crowd distinguishes a crowded pool of connections from a server that is down.
package bounds

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math/bits"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Buffer is a byte slice that one request after another uses. Allocating a buffer for a body of a megabyte would cost
// more than everything else in the middleware.
type Buffer struct {
	B    []byte
	Next [1]byte // space for the byte after a full B
}

const (
	minCapacity = 512
	MaxPooled   = 2 << 20 // the capacity of the largest buffer that is kept for later requests
)

// Room returns the capacity of a new buffer for n bytes.
func Room(n int64) int64 {
	if n > MaxPooled {
		return n
	}
	return 1 << bits.Len64(uint64(max(n, minCapacity)-1))
}

// bufferPools[i] has the unused buffers with a capacity of 1<<i bytes. Pools by capacity keep large buffers for large
// bodies.
var bufferPools [22]sync.Pool

// poolFor returns the pool for buffers with the given capacity.
func poolFor(capacity int64) *sync.Pool { return &bufferPools[bits.Len64(uint64(capacity))-1] }

// NewBuffer returns an empty buffer with room for n bytes.
func NewBuffer(n int) *Buffer {
	capacity := Room(int64(n))
	if capacity <= MaxPooled {
		if b, ok := poolFor(capacity).Get().(*Buffer); ok {
			return b
		}
	}
	return &Buffer{B: make([]byte, 0, capacity)}
}

// Free gives the buffer to later requests, and reports whether it did: huge buffers go to the garbage collector.
func (b *Buffer) Free() bool {
	capacity := int64(cap(b.B))
	if capacity > MaxPooled || capacity != Room(capacity) {
		return false
	}
	b.B = b.B[:0]
	poolFor(capacity).Put(b)
	return true
}

// Grow makes room for n more bytes.
func (b *Buffer) Grow(n int) {
	if cap(b.B)-len(b.B) >= n {
		return
	}
	larger := NewBuffer(len(b.B) + n)
	b.B, larger.B = append(larger.B, b.B...), b.B
	larger.Free()
}

// These are errors of ReadBody. Any other error is an error of the body.
var (
	ErrTooLarge = errors.New("over the limit")
	ErrNoRoom   = errors.New("no room for the body")
)

// maxFirstCapacity bounds the first buffer for a body, whatever size the request announces, because announcing a size
// costs a client nothing.
const maxFirstCapacity = 32 << 10

// emptyBuffer is the buffer of requests without a body.
var emptyBuffer = new(Buffer)

// ReadBody reads the whole body of r. ReadBody takes the capacity of the buffer from the share of user in budget, and
// the caller must give the capacity back, also after an error. If r announces more than limit bytes, ReadBody fails
// without reading.
//
//   - ErrTooLarge: the body has more than limit bytes, or more bytes than an [http.MaxBytesReader] around the body
//     allows.
//   - ErrNoRoom: the budget is used up.
//   - Any other error: the body could not be read to its end.
func ReadBody(r *http.Request, limit int64, budget *Shares, user string) (*Buffer, error) {
	if r.ContentLength > limit {
		return emptyBuffer, fmt.Errorf("%w of %d bytes: %d are announced", ErrTooLarge, limit, r.ContentLength)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return emptyBuffer, nil
	}
	first := min(max(r.ContentLength, minCapacity), maxFirstCapacity)
	if !budget.Take(user, Room(first)) {
		return emptyBuffer, ErrNoRoom
	}
	b := NewBuffer(int(first))
	for {
		err := readSome(b, r, limit, budget, user)
		if err == io.EOF {
			return b, nil
		}
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge { // the limit of an outer middleware
			err = fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		if err != nil {
			return b, err
		}
	}
}

// readSome reads once from the body of r, and grows a full buffer if the body goes on.
func readSome(b *Buffer, r *http.Request, limit int64, budget *Shares, user string) error {
	space := b.B[len(b.B):cap(b.B)]
	full := len(space) == 0
	if full {
		space = b.Next[:] // reads io.EOF without growing a buffer that the body fits exactly
	}
	n, err := r.Body.Read(space)
	if int64(len(b.B)+n) > limit {
		return fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
	}
	switch {
	case !full:
		b.B = b.B[:len(b.B)+n]
	case n > 0:
		larger := min(grownSize(b, r.ContentLength), limit)
		if !budget.Take(user, Room(larger)-int64(cap(b.B))) {
			return ErrNoRoom
		}
		b.Grow(int(larger) - len(b.B))
		b.B = append(b.B, b.Next[0])
	}
	return err
}

// grownSize returns the new size of a full buffer: twice the capacity, but at most the announced size.
func grownSize(b *Buffer, announced int64) int64 {
	twice := 2 * int64(cap(b.B))
	if announced > int64(cap(b.B)) {
		return min(twice, announced)
	}
	return twice
}

// Shares counts how much of a resource all users hold together, and how much each user holds, so that one user cannot
// take everything. The zero value has no limits and counts nothing. Shares is safe for concurrent use.
type Shares struct {
	Total, Each int64 // the limits for all users together and for each user

	mu         sync.Mutex
	totalHeld  int64
	heldByUser map[string]int64 // without users who hold nothing
}

// Take adds n to what user holds and returns true, if the limits allow. A user who holds nothing may take more than
// Each at once: with a stricter limit, a request larger than Each could never run.
func (s *Shares) Take(user string, n int64) bool {
	if s.Each == 0 || n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	userHolds := s.heldByUser[user]
	if s.totalHeld+n > s.Total || userHolds > 0 && userHolds+n > s.Each {
		return false
	}
	if s.heldByUser == nil {
		s.heldByUser = make(map[string]int64)
	}
	s.totalHeld += n
	s.heldByUser[user] = userHolds + n
	return true
}

// GiveBack subtracts n from what user holds.
func (s *Shares) GiveBack(user string, n int64) {
	if s.Each == 0 || n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totalHeld -= n
	if s.heldByUser[user] -= n; s.heldByUser[user] == 0 {
		delete(s.heldByUser, user)
	}
}

// Users returns the number of users who hold something.
func (s *Shares) Users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heldByUser)
}

// Limits are the maximum bytes of all users together, and of each user.
type Limits struct{ Total, User int64 }

// Usage counts the bytes of all users together, and of each user. The users are divided by their hash into parts with
// separate locks, so that goroutines seldom wait for each other. Usage is safe for concurrent use.
type Usage struct {
	errFull, errQuota error
	hashSeed          maphash.Seed
	totalBytes        atomic.Int64
	userParts         [64]userBytes
}

// userBytes counts the bytes of some users. The map leaves out users without bytes.
type userBytes struct {
	mu          sync.Mutex
	bytesByUser map[string]int64
}

// Init prepares the Usage. Add returns full at the limit of all users together, and quota at the limit of one user.
func (u *Usage) Init(full, quota error) {
	u.errFull, u.errQuota = full, quota
	u.hashSeed = maphash.MakeSeed()
	for i := range u.userParts {
		u.userParts[i].bytesByUser = make(map[string]int64)
	}
}

func (u *Usage) partFor(user string) *userBytes {
	return &u.userParts[maphash.String(u.hashSeed, user)%uint64(len(u.userParts))]
}

// Add counts n more bytes of user. If the sum would exceed a limit, Add returns an error and counts nothing.
func (u *Usage) Add(user string, n int64, within Limits) error {
	part := u.partFor(user)
	part.mu.Lock()
	defer part.mu.Unlock()
	sum := part.bytesByUser[user] + n
	if sum > within.User {
		return u.errQuota
	}
	if !u.addTotal(n, within.Total) {
		return u.errFull
	}
	part.bytesByUser[user] = sum
	return nil
}

// addTotal adds n to the total if the limit allows. The limit is checked before the addition, so that a large n that
// exceeds the limit does not make a concurrent small n fail.
func (u *Usage) addTotal(n, limit int64) bool {
	for {
		total := u.totalBytes.Load()
		if total+n > limit {
			return false
		}
		if u.totalBytes.CompareAndSwap(total, total+n) {
			return true
		}
	}
}

// Subtract counts n fewer bytes of user.
func (u *Usage) Subtract(user string, n int64) {
	part := u.partFor(user)
	part.mu.Lock()
	defer part.mu.Unlock()
	u.totalBytes.Add(-n)
	part.bytesByUser[user] -= n
	if part.bytesByUser[user] == 0 {
		delete(part.bytesByUser, user)
	}
}

// Counted returns the present counts, in total and by user.
func (u *Usage) Counted() (total int64, users map[string]int64) {
	users = make(map[string]int64)
	for i := range u.userParts {
		part := &u.userParts[i]
		part.mu.Lock()
		maps.Copy(users, part.bytesByUser)
		part.mu.Unlock()
	}
	return u.totalBytes.Load(), users
}

// Crowd counts the steps that share a pool of connections, and remembers the last reply of the server. A Crowd is safe for
// concurrent use.
type Crowd struct {
	poolSize  int64
	stepCount atomic.Int64
	createdAt time.Time
	lastReply atomic.Int64 // nanoseconds since createdAt; 0: no reply yet
}

// NewCrowd returns the crowd of a pool with size connections.
func NewCrowd(size int64) *Crowd { return &Crowd{poolSize: size, createdAt: time.Now()} }

// Enter counts a step that begins, and reports whether the pool is crowded. The caller calls Leave at the end of the step.
func (c *Crowd) Enter() bool { return c.stepCount.Add(1) > c.poolSize }

// Leave counts the end of a step.
func (c *Crowd) Leave() { c.stepCount.Add(-1) }

// IsCrowded reports whether more steps are running than the pool has connections.
func (c *Crowd) IsCrowded() bool { return c.stepCount.Load() > c.poolSize }

// Replied records a reply of the server.
func (c *Crowd) Replied() { c.lastReply.Store(int64(time.Since(c.createdAt))) }

// WasUp reports whether the server has replied within the last minute. A minute is long because, in a very crowded pool,
// all steps may time out for a while.
func (c *Crowd) WasUp() bool {
	last := c.lastReply.Load()
	return last > 0 && time.Since(c.createdAt)-time.Duration(last) < time.Minute
}
