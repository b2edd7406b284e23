package main

import (
	"sync"

	"github.com/google/uuid"
)

// books are the database of a region. The copy of the table is in it, too.
type books struct {
	region string

	mu    sync.Mutex
	copy  cached
	users map[uuid.UUID]string // by the IDs of their orders
}

// home returns the region that is to book an order: the home of its user. What is booked stays where it is.
func (b *books) home(order uuid.UUID, user string) (region string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.homeLocked(order, user)
}

func (b *books) homeLocked(order uuid.UUID, user string) (region string) {
	if _, booked := b.users[order]; booked {
		return b.region
	}
	return b.copy.home(user)
}

// add stands for a transaction, and books an order if the home is here. A handler may have begun before a move, and may
// stand still until after it. So it is this step that must find out, and not an earlier one.
func (b *books) add(order uuid.UUID, user string) (home string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	home = b.homeLocked(order, user)
	if home == b.region {
		b.users[order] = user
	}
	return home
}
