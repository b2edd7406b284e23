package sqlitestore

import "sync"

// running are the keys whose operations run.
type running struct {
	mu   sync.Mutex
	keys map[string]bool // by digest
}

// enter reports whether the operation of a key did not run before.
func (r *running) enter(digest []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[string(digest)] {
		return false
	}
	r.keys[string(digest)] = true
	return true
}

func (r *running) leave(digest []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, string(digest))
}
