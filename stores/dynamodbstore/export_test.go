package dynamodbstore

import (
	"time"
	"unsafe"
)

// Lift lets a store keep answers that the service has no room for, but an emulator has.
func (s *Store) Lift() *Store {
	s.largest = mostWhole
	return s
}

// SetTime gives the store another clock.
func (s *Store) SetTime(now func() time.Time) { s.time = now }

// CheckClockAgain has the next claim compare the clocks.
func (s *Store) CheckClockAgain() { s.clock.answered(time.Time{}) }

// Suspend has the clocks show what they show after the machine was suspended for d: only the monotonic one stood still.
func (s *Store) Suspend(d time.Duration) {
	asked := time.Now()
	(*struct {
		wall      uint64
		monotonic int64
	})(unsafe.Pointer(&asked)).monotonic += int64(d)
	s.clock.answered(asked.Add(-d))
}
