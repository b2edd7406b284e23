package main

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// table says which region is the home of each user. All regions read it. It stands for a small database with one truth,
// such as etcd. The home of a user who is being moved is empty.
type table struct {
	mu    sync.Mutex
	homes map[string]string
}

func (t *table) set(user, home string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.homes[user] = home
}

func (t *table) read() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.homes)
}

// move gives a user another home. A region that cannot be reached learns nothing of it. But once its copy is too old, it
// books no more.
func (t *table) move(user, to string) {
	t.set(user, "")
	time.Sleep(trust) // each copy that still has the old home is too old now
	t.set(user, to)   // the user's data have been brought there
}

// trust is how long a region acts by a copy of the table. A minute would be better, but the example is in a hurry.
const trust = time.Second

// cached is a region's copy of the table.
type cached struct {
	table *table
	cut   *atomic.Bool // from the table
	asked time.Time    // before the table answered: what it said was still true then
	homes map[string]string
}

// home returns an empty home if it is not known.
func (c *cached) home(user string) string {
	if now := time.Now(); now.Sub(c.asked) > trust/2 && !c.cut.Load() {
		c.homes, c.asked = c.table.read(), now
	}
	if time.Since(c.asked) >= trust {
		return ""
	}
	return c.homes[user]
}
