package idempotency

// CollidingMemoryStore returns a store for which all keys have one of two hashes.
func CollidingMemoryStore() *MemoryStore {
	s := NewMemoryStore(MemoryOptions{})
	hash := s.hash
	s.hash = func(key Key) uint64 { return hash(key) & 1 }
	return s
}

// RefusalFor returns what a client is told of err.
var RefusalFor = refuse
