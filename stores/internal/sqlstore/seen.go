package sqlstore

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Seen is a record as operators see the record.
type Seen struct {
	Row
	Steps    []byte // encoded checkpoints, unless the record has a response
	Resolved []byte // encoded idempotency.Resolved; empty: no operator has resolved the operation
	Ended    []byte // the idempotency.EndReason of a Release; empty: none
}

// contentSize returns the size of response, checkpoints and resolution in bytes.
func (s *Seen) contentSize() int { return len(s.Response.V) + len(s.Steps) + len(s.Resolved) }

// Entry returns the record as an entry. Errors:
//
//   - idempotency.ErrNoRecord, wrapped: the record does not count.
//   - idempotency.ErrRecordInvalid, wrapped: no store has written the record. The entry is incomplete.
func (s *Seen) Entry(operation uuid.UUID) (idempotency.Entry, error) {
	if !s.Counts() {
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	e := s.entryWithoutKey(operation)
	e.Size = s.NamesSize() + int64(s.contentSize())
	if reason := idempotency.EndReason(s.Ended); reason.IsValid() && (e.State == idempotency.StateReleased || e.State == idempotency.StateAbandoned) {
		e.Ended = reason
	}
	var err error
	if e.Key, err = s.decodeKey(operation); err != nil {
		return e, err
	}
	return e, s.addContents(&e)
}

// entryWithoutKey returns the entry without key, size, response and checkpoints.
func (r *Row) entryWithoutKey(operation uuid.UUID) idempotency.Entry {
	e := idempotency.Entry{
		Operation: operation, State: r.operationState(), Attempt: int(r.Attempt), Created: time.UnixMicro(r.Created),
		Remaining: durationUntil(r.Expires, r.Now),
	}
	copy(e.Fingerprint[:], r.Fingerprint)
	if e.State == idempotency.StateRunning {
		e.LeaseLeft = durationUntil(r.Lease.Int64, r.Now)
	}
	return e
}

// operationState returns the state of the operation for a request that arrives at Now. The record must count.
func (r *Row) operationState() idempotency.State {
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

// decodeKey returns the key of the record, or an error if the names belong to a different operation.
func (r *Row) decodeKey(operation uuid.UUID) (idempotency.Key, error) {
	key := r.Names.Key()
	if key.OperationID() != operation || NamesOf(key) != r.Names {
		return idempotency.Key{}, Invalid("the record belongs to another operation")
	}
	return key, nil
}

// addContents adds response, checkpoints and resolution to e.
func (s *Seen) addContents(e *idempotency.Entry) error {
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
	record, err := s.decodeRecord()
	switch resp := record.Response; {
	case err != nil:
		return err
	case resp != nil:
		e.Response, e.Status, e.Note = resp, resp.Status, resp.Note
		return nil
	}
	found, err := decodeEntries(s.Steps)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		e.Steps = append(e.Steps, idempotency.StepSize{Name: name, Bytes: len(found[name])})
	}
	return err
}

// refuseChange returns the reason to refuse a change of the record, or nil if the record is still the record of the
// entry asked.
func (s *Seen) refuseChange(asked idempotency.Entry) error {
	switch now := s.entryWithoutKey(asked.Operation); {
	case !s.Counts():
		return idempotency.ErrNoRecord
	case now.State == idempotency.StateRunning:
		return idempotency.ErrInProgress
	case now.State != asked.State || now.Attempt != asked.Attempt || !now.Created.Equal(asked.Created):
		return idempotency.ErrEntryChanged
	}
	return nil
}

// Listed returns the entry for a listing, without size, response and checkpoints.
func (r *Row) Listed(operation uuid.UUID) (idempotency.Entry, error) {
	e := r.entryWithoutKey(operation)
	e.Key, _ = r.decodeKey(operation)
	return e, r.checkValues(idempotency.Fingerprint{})
}

// NamesSize returns the size of the names in bytes.
func (r *Row) NamesSize() int64 { return int64(len(r.Names[0]) + len(r.Names[1]) + len(r.Names[2])) }
