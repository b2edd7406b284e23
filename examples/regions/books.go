package main

import (
	"sync"

	"github.com/google/uuid"
)

// bookings is the database of a region. The database also holds the region's copy of the table of homes.
type bookings struct {
	region string

	mu          sync.Mutex
	homes       tableCopy
	userByOrder map[uuid.UUID]string
}

// findHome returns the region that may book order: the home of user, or this region if it has booked the order already.
func (b *bookings) findHome(order uuid.UUID, user string) (region string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.findHomeLocked(order, user)
}

func (b *bookings) findHomeLocked(order uuid.UUID, user string) (region string) {
	if _, isBooked := b.userByOrder[order]; isBooked {
		return b.region
	}
	return b.homes.findHome(user)
}

// addOrder books order if findHome returns this region. addOrder stands for a transaction. The check is a part of the transaction,
// because a handler may begin before a move and pause until the move is over. An earlier check would miss the move.
func (b *bookings) addOrder(order uuid.UUID, user string) (home string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	home = b.findHomeLocked(order, user)
	if home == b.region {
		b.userByOrder[order] = user
	}
	return home
}
