package sqlitestore

import "sync"

// running are the keys whose operations run in transactions, and those that operators are about to change meanwhile.
type running struct {
	mu   sync.Mutex
	keys map[string]int // by digest: runs, or how many operators
}

const runs = -1

// enter reports whether the operation of a key did not run before, and is not about to be changed.
func (r *running) enter(digest []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[string(digest)] != 0 {
		return false
	}
	r.keys[string(digest)] = runs
	return true
}

func (r *running) has(digest []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[string(digest)] == runs
}

// hold keeps the operation of a key from being run, and reports whether it does not run. Several may hold it.
func (r *running) hold(digest []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[string(digest)] == runs {
		return false
	}
	r.keys[string(digest)]++
	return true
}

// let undoes hold.
func (r *running) let(digest []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[string(digest)]--; r.keys[string(digest)] == 0 {
		delete(r.keys, string(digest))
	}
}

func (r *running) leave(digest []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, string(digest))
}
