package idempotency

import "sync"

// shares counts what all users hold of something, and what each of them holds, so that nobody takes all of it. The zero
// value has no limits and counts nothing. It is safe for concurrent use.
type shares struct {
	total, each int64 // the most that all users may hold together, and one of them

	mu     sync.Mutex
	held   int64
	byUser map[string]int64 // has no users who hold nothing
}

// take reports whether user may hold n more; if so, they count until they are given back. A user who holds nothing may take
// more than a share at once: else there would be things that nobody could ever hold.
func (s *shares) take(user string, n int64) bool {
	if s.each == 0 || n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	holds := s.byUser[user]
	if s.held+n > s.total || holds > 0 && holds+n > s.each {
		return false
	}
	if s.byUser == nil {
		s.byUser = make(map[string]int64)
	}
	s.held += n
	s.byUser[user] = holds + n
	return true
}

func (s *shares) giveBack(user string, n int64) {
	if s.each == 0 || n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held -= n
	if s.byUser[user] -= n; s.byUser[user] == 0 {
		delete(s.byUser, user)
	}
}
