// Package bounds bounds what requests share. Buffers are reused, and Shares count the memory of requests. Usage counts the memory of
// records. Crowd tells a crowded pool of connections from a server that is down.
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

// Buffer is a byte slice that one request after another uses. For a body of a megabyte, a new allocation would cost more
// than all else that the middleware does.
type Buffer struct {
	B    []byte
	Next [1]byte // room for the byte behind a full B
}

const (
	minCapacity = 512
	MaxPooled   = 2 << 20 // the most that a buffer may keep for the next request
)

// Room returns the capacity of a new buffer for n bytes.
func Room(n int64) int64 {
	if n > MaxPooled {
		return n
	}
	return 1 << bits.Len64(uint64(max(n, minCapacity)-1))
}

// buffers has those that nobody uses, by the power of two that is their capacity. So nothing small is in a buffer that
// was made for something large.
var bufferPools [22]sync.Pool

// unused returns where the buffers with a capacity are that nobody uses.
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

// Free gives the buffer to the next request, and reports whether it did: a huge one is left to the garbage collector.
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

// Reasons for which ReadBody gives up. Any other error is that of the body.
var (
	ErrTooLarge = errors.New("over the limit")
	ErrNoRoom   = errors.New("no room for the body")
)

// largestRead bounds the room for a body at first, whatever the request announces: an announcement costs its sender
// nothing.
const maxFirstCapacity = 32 << 10

// noBody is the buffer of requests without a body.
var emptyBuffer = new(Buffer)

// ReadBody reads the whole body of r, which must not have more than limit bytes. ReadBody takes the capacity of the buffer
// from what user may hold of budget, and the caller gives that capacity back, also after an error. If r announces more
// than limit bytes, ReadBody fails without reading.
//
//   - ErrTooLarge: the body has more than limit bytes, or more than an [http.MaxBytesReader] around it allows.
//   - ErrNoRoom: the budget is used up.
//   - Any other error: the body breaks off.
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
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge { // for a limit of outer middleware
			err = fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		if err != nil {
			return b, err
		}
	}
}

// readSome reads once from the body of r.
func readSome(b *Buffer, r *http.Request, limit int64, budget *Shares, user string) error {
	space := b.B[len(b.B):cap(b.B)]
	full := len(space) == 0
	if full {
		space = b.Next[:] // so that a body that fits needs no growth to meet its end
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

// doubled returns the size to which a full buffer grows: twice as much, but not beyond what the request announces.
func grownSize(b *Buffer, announced int64) int64 {
	twice := 2 * int64(cap(b.B))
	if announced > int64(cap(b.B)) {
		return min(twice, announced)
	}
	return twice
}

// Shares counts what all users hold of something, and what each of them holds, so that nobody takes all of it. The zero
// value has no limits and counts nothing. It is safe for concurrent use.
type Shares struct {
	Total, Each int64 // the most that all users may hold together, and one of them

	mu         sync.Mutex
	totalHeld  int64
	heldByUser map[string]int64 // has no users who hold nothing
}

// Take reports whether user may hold n more; if so, they count until they are given back. A user who holds nothing may
// take more than a share at once: else there would be things that nobody could ever hold.
func (s *Shares) Take(user string, n int64) bool {
	if s.Each == 0 || n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	holds := s.heldByUser[user]
	if s.totalHeld+n > s.Total || holds > 0 && holds+n > s.Each {
		return false
	}
	if s.heldByUser == nil {
		s.heldByUser = make(map[string]int64)
	}
	s.totalHeld += n
	s.heldByUser[user] = holds + n
	return true
}

// GiveBack ends what a user holds of n.
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

// Users returns how many users hold something.
func (s *Shares) Users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heldByUser)
}

// Limits are the most bytes that all users may have together, and one of them.
type Limits struct{ Total, User int64 }

// Usage counts the bytes of all users, and those of each. Users are divided by their hash, so that few wait for the same
// lock. It is safe for concurrent use.
type Usage struct {
	errFull, errQuota error
	hashSeed          maphash.Seed
	totalBytes        atomic.Int64
	userParts         [64]userBytes
}

// userBytes counts the bytes of some users. A user without any is not in the map.
type userBytes struct {
	mu          sync.Mutex
	bytesByUser map[string]int64
}

// Init makes the Usage ready. Full is what Add returns at the limit of all, and quota at that of a user.
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

// Add counts n more bytes of user. It returns an error and counts nothing if that would exceed a limit.
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

// addTotal checks the limit before it adds. Much that has no room must not make little fail in the meantime.
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

// Counted returns what is counted now, in total and by user.
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

// WasUp reports whether the server has replied within the last minute. The window is that long, because in a very crowded pool all
// steps may time out for a while.
func (c *Crowd) WasUp() bool {
	last := c.lastReply.Load()
	return last > 0 && time.Since(c.createdAt)-time.Duration(last) < time.Minute
}
