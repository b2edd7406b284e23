package sqlstore

import (
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Seen is a record as people are told of it.
type Seen struct {
	Row
	Steps    []byte // the checkpoints, if there is no response
	Resolved []byte // the stored form of an idempotency.Resolved; empty: nobody has resolved the operation
}

// keptSize returns how many bytes the response has, the checkpoints, and the resolution.
func (s *Seen) keptSize() int { return len(s.Response.V) + len(s.Steps) + len(s.Resolved) }

// Entry returns the entry of a digest. The error wraps idempotency.ErrNoRecord or idempotency.ErrRecordInvalid.
func (s *Seen) Entry(digest [sha256.Size]byte) (idempotency.Entry, error) {
	if !s.Counts() {
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	e := s.shown(digest)
	e.Size = s.NamesSize() + int64(s.keptSize())
	var err error
	if e.Key, err = s.key(digest); err != nil {
		return e, err
	}
	return e, s.showKept(&e)
}

// shown returns the entry without key, size, and what is in the response and in the checkpoints.
func (r *Row) shown(digest [sha256.Size]byte) idempotency.Entry {
	e := idempotency.Entry{
		Digest: digest, State: r.state(), Attempt: int(r.Attempt), Created: time.UnixMicro(r.Created),
		Remaining: until(r.Expires, r.Now),
	}
	copy(e.Fingerprint[:], r.Fingerprint)
	if e.State == idempotency.StateRunning {
		e.LeaseLeft = until(r.Lease.Int64, r.Now)
	}
	return e
}

// state says what a record that counts means for a request that comes now.
func (r *Row) state() idempotency.State {
	switch {
	case r.Response.Valid:
		return idempotency.StateCompleted
	case !r.Lease.Valid:
		return idempotency.StateReleased
	case r.Lease.Int64 > r.Now:
		return idempotency.StateRunning
	default:
		return idempotency.StateAbandoned
	}
}

// key returns the key of a record, if its names are those of the key with that digest.
func (r *Row) key(digest [sha256.Size]byte) (idempotency.Key, error) {
	key := r.Names.Key()
	if key.Digest() != digest || NamesOf(key) != r.Names {
		return idempotency.Key{}, Invalid("made for another key")
	}
	return key, nil
}

// showKept adds what is in the response or in the checkpoints, and how the operation was resolved.
func (s *Seen) showKept(e *idempotency.Entry) error {
	if err := s.checkValues(idempotency.Fingerprint{}); err != nil {
		return err
	}
	if len(s.Resolved) > 0 {
		var resolved idempotency.Resolved
		if err := resolved.UnmarshalBinary(s.Resolved); err != nil {
			return err
		}
		e.Resolved = &resolved
	}
	record, err := s.record()
	switch resp := record.Response; {
	case err != nil:
		return err
	case resp != nil:
		e.Response, e.Status, e.Note = resp, resp.Status, resp.Note
		return nil
	}
	found, err := decode(s.Steps)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		e.Steps = append(e.Steps, idempotency.StepSize{Name: name, Bytes: len(found[name])})
	}
	return err
}

// refusal returns why the record is left alone when somebody asks to change it as it was seen in an entry.
func (s *Seen) refusal(asked idempotency.Entry) error {
	switch now := s.shown(asked.Digest); {
	case !s.Counts():
		return idempotency.ErrNoRecord
	case now.State == idempotency.StateRunning:
		return idempotency.ErrInProgress
	case now.State != asked.State || now.Attempt != asked.Attempt || !now.Created.Equal(asked.Created):
		return idempotency.ErrEntryChanged
	}
	return nil
}

// Listed returns the entry of a listing, without what is in the response and in the checkpoints, and without the size.
func (r *Row) Listed(digest [sha256.Size]byte) (idempotency.Entry, error) {
	e := r.shown(digest)
	e.Key, _ = r.key(digest)
	return e, r.checkValues(idempotency.Fingerprint{})
}

// NamesSize returns how many bytes the names of a record have.
func (r *Row) NamesSize() int64 { return int64(len(r.Names[0]) + len(r.Names[1]) + len(r.Names[2])) }
