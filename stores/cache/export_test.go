package cache

// Len returns how many records the cache has.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entriesByKey)
}
