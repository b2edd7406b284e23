package idempotency

import (
	"context"
	"time"
)

var _ Inspector = (*MemoryStore)(nil)

// Inspect implements [Inspector]. It fills every field of an [Entry].
func (s *MemoryStore) Inspect(_ context.Context, key Key) (Entry, error) {
	if s.faults != nil {
		return Entry{}, s.faults
	}
	hash := s.hash(key)
	sh := s.lock(hash)
	defer sh.mu.Unlock()
	now := s.now()
	e := s.find(sh, hash, key, now)
	if e == nil {
		return Entry{}, ErrNoRecord
	}
	shown := e.shown(now)
	shown.Digest = key.Digest()
	if e.completed {
		shown.Response, _ = e.response.CutNote()
	}
	return shown, nil
}

// shown returns what people are told of the record, but for the digest and the response. The caller holds the shard.
func (e *entry) shown(now time.Duration) Entry {
	shown := Entry{
		Key: e.key, State: e.state(now),
		Attempt: int(e.attempt), Created: e.shard.store.start.Add(e.created), Fingerprint: e.fingerprint,
		Remaining: e.expires - now, Size: e.size() - entryOverhead,
	}
	switch shown.State {
	case StateRunning:
		shown.LeaseLeft = e.lease - now
	case StateCompleted:
		shown.Completed, shown.Status = e.shard.store.start.Add(e.lease), e.response.Status
		_, shown.Note = e.response.CutNote()
	}
	return shown
}

// state says what the record means for a request that comes now.
func (e *entry) state(now time.Duration) State {
	switch {
	case e.completed:
		return StateCompleted
	case e.released:
		return StateReleased
	case e.lease > now:
		return StateRunning
	default:
		return StateAbandoned
	}
}

// Forget implements [Inspector].
func (s *MemoryStore) Forget(_ context.Context, asked Entry) error {
	if s.faults != nil {
		return s.faults
	}
	hash := s.hash(asked.Key)
	sh := s.lock(hash)
	defer sh.mu.Unlock()
	now := s.now()
	e := s.find(sh, hash, asked.Key, now)
	if e == nil {
		return ErrNoRecord
	}
	if err := e.shown(now).mayForget(asked); err != nil {
		return err
	}
	s.remove(sh, hash, e)
	return nil
}

// List implements [Inspector]. It looks at all records, whatever ListRequest.Scan says. Claims in the part of the store
// that it is looking at wait: some milliseconds if there are a million records.
func (s *MemoryStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	if s.faults != nil {
		return Listing{}, s.faults
	}
	found, err := newCollector(request)
	if err != nil {
		return Listing{}, err
	}
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return Listing{}, err
		}
		s.shards[i].list(request.User, found)
	}
	listing := found.result()
	for i := range listing.Entries {
		listing.Entries[i].Digest = listing.Entries[i].Key.Digest()
	}
	return listing, nil
}

// list adds the records of a user, or of all users.
func (sh *shard) list(user string, to *collector) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.store.now()
	for _, e := range sh.expiring { // which has all of them
		if e.live(now) && (user == "" || user == e.key.User) {
			to.add(e.shown(now))
		}
	}
}
