// Package crowd tells a pool of connections that is crowded from a server that is down.
package crowd

import (
	"sync/atomic"
	"time"
)

// Crowd counts the steps that share a pool, and notes when the server has replied. It is safe for concurrent use.
type Crowd struct {
	poolSize  int64 // of the pool
	stepCount atomic.Int64
	createdAt time.Time
	lastReply atomic.Int64 // when the server did so last, in nanoseconds since made; 0: never
}

// New returns the crowd of a pool that has size connections.
func New(size int64) *Crowd { return &Crowd{poolSize: size, createdAt: time.Now()} }

// Enter notes that a step begins, for which the caller calls Leave, and reports whether the pool is crowded.
func (c *Crowd) Enter() bool { return c.stepCount.Add(1) > c.poolSize }

// Leave notes that a step has ended.
func (c *Crowd) Leave() { c.stepCount.Add(-1) }

// IsCrowded reports whether more steps are under way than the pool has connections.
func (c *Crowd) IsCrowded() bool { return c.stepCount.Load() > c.poolSize }

// Replied notes that the server has replied.
func (c *Crowd) Replied() { c.lastReply.Store(int64(time.Since(c.createdAt))) }

// WasUp reports whether the server has replied within the last minute. While a pool is crowded by far, nobody may have a reply
// in time for a while.
func (c *Crowd) WasUp() bool {
	last := c.lastReply.Load()
	return last > 0 && time.Since(c.createdAt)-time.Duration(last) < time.Minute
}
