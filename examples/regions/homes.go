package main

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// homeTable maps each user to a home region. All regions read the table, which stands for a small database with strong
// consistency, such as etcd. While a user is being moved, the home is empty.
type homeTable struct {
	mu         sync.Mutex
	homeByUser map[string]string
}

func (t *homeTable) setHome(user, region string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.homeByUser[user] = region
}

func (t *homeTable) readHomes() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.homeByUser)
}

// moveUser gives user another home. The old region may be unreachable, and so may not notice the move. moveUser waits until the
// old region's copy of the table is too old for further bookings.
func (t *homeTable) moveUser(user, newHome string) {
	t.setHome(user, "")
	time.Sleep(maxCopyAge)   // now all copies with the old home are too old
	t.setHome(user, newHome) // a real service copies the user's data to the new home first
}

// maxCopyAge is how long a region uses a copy of the table. One second keeps the example short. A real service would use a
// minute.
const maxCopyAge = time.Second

// tableCopy is a region's copy of the table.
type tableCopy struct {
	table      *homeTable
	isCut      *atomic.Bool // the table cannot be reached
	readAt     time.Time    // before the table was read, so the copy was still correct at this time
	homeByUser map[string]string
}

// findHome returns the home of user, or an empty string if the home is unknown.
func (c *tableCopy) findHome(user string) string {
	if now := time.Now(); now.Sub(c.readAt) > maxCopyAge/2 && !c.isCut.Load() {
		c.homeByUser, c.readAt = c.table.readHomes(), now
	}
	if time.Since(c.readAt) >= maxCopyAge {
		return ""
	}
	return c.homeByUser[user]
}
