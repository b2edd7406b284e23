package dynamodbstore

import (
	"time"
	"unsafe"
)

// LiftSizeLimit lets a store keep answers that fit into the emulator, but not into the service.
func (s *Store) LiftSizeLimit() *Store {
	s.maxContentSize = maxUncompressed
	return s
}

// SetTime gives the store another clock.
func (s *Store) SetTime(now func() time.Time) { s.now = now }

// CheckClockAgain makes the next claim compare the clocks.
func (s *Store) CheckClockAgain() { s.clock.noteReply(time.Time{}) }

// SimulateSuspend changes the last comparison as if the machine had been suspended for d since: the monotonic clock stood
// still, the wall clock went on.
func (s *Store) SimulateSuspend(d time.Duration) {
	lastReply := time.Now()
	(*struct {
		wall      uint64
		monotonic int64
	})(unsafe.Pointer(&lastReply)).monotonic += int64(d)
	s.clock.noteReply(lastReply.Add(-d))
}
