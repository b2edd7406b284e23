package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Operated is a store whose records operators can change.
type Operated interface {
	// Change runs a step, and returns after the step has taken effect. Change may call run again after an error.
	Change(ctx context.Context, run func(Changes) error) error

	// Failure wraps the error of a step for the caller of the store.
	Failure(step string, err error) error
}

// Changes are the statements of a step for operators.
type Changes interface {
	// See returns the record of operation as operators see the record.
	See(operation uuid.UUID) (*Seen, error)

	// Forget deletes the record seen. Forget returns false if the record is gone or has changed since See.
	Forget(operation uuid.UUID, seen *Seen) (bool, error)

	// Resolve replaces token, response, checkpoints and resolution of the record seen by the values of own, ends the
	// lease, and keeps the record for ttl from now. Resolve returns false if the record is gone or has changed since
	// See.
	Resolve(operation uuid.UUID, seen, own *Seen, ttl time.Duration) (bool, error)

	// IsFull reports whether the store has too little room for a new operation.
	IsFull() bool

	// HasRoom reports whether the store has room for a response of n bytes.
	HasRoom(n int) bool

	// InDoubt reports whether an earlier run of the step may have taken effect although the reply was lost.
	InDoubt() bool
}

// Inspect returns the entry of the record of operation, as InspectOperation of [idempotency.Resolver] does. Only the reading
// is repeated after an error: what the record says, for example that the key is free, is final.
func Inspect(ctx context.Context, store Operated, operation uuid.UUID) (idempotency.Entry, error) {
	var seen *Seen
	err := store.Change(ctx, func(changes Changes) (err error) {
		seen, err = changes.See(operation)
		return err
	})
	if err != nil {
		return idempotency.Entry{Operation: operation}, store.Failure("inspect", err)
	}
	entry, err := seen.Entry(operation)
	return entry, store.Failure("inspect", err)
}

// Forget removes the record of an entry, as Forget of [idempotency.Inspector] does.
func Forget(ctx context.Context, store Operated, asked idempotency.Entry) error {
	c := operatorChange{
		expectedEntry: asked,
		isDone:        func(changes Changes, seen *Seen) bool { return !seen.Found && changes.InDoubt() },
		applyChange:   func(changes Changes, seen *Seen) (bool, error) { return changes.Forget(asked.Operation, seen) },
	}
	return c.runChange(ctx, store, "forget")
}

// Resolve ends the operation of an entry, as Resolve of [idempotency.Resolver] does.
func Resolve(ctx context.Context, store Operated, asked idempotency.Entry, r idempotency.Resolution) error {
	var response sql.Null[[]byte]
	if r.Response != nil {
		stored, err := r.Response.MarshalBinary()
		if err != nil {
			return store.Failure("resolve", err)
		}
		response = sql.Null[[]byte]{V: stored, Valid: true}
	}
	resolved, err := r.Resolved(asked).MarshalBinary()
	if err != nil {
		return store.Failure("resolve", err)
	}
	token := NewToken()
	c := operatorChange{
		expectedEntry: asked,
		isDone:        func(_ Changes, seen *Seen) bool { return seen.Found && string(seen.Token) == string(token) },
		applyChange: func(changes Changes, seen *Seen) (bool, error) {
			own := Seen{Row: Row{Token: token, Response: response}, Resolved: resolved}
			if err := own.keepSteps(seen, asked.OpenMarks()); err != nil {
				return false, err
			}
			if !hasRoom(changes, own.contentSize()-seen.contentSize(), r.Response) {
				return false, idempotency.ErrStoreFull
			}
			return changes.Resolve(asked.Operation, seen, &own, r.TTL)
		},
	}
	return c.runChange(ctx, store, "resolve")
}

// hasRoom reports whether a record may grow by growth bytes for a resolution. A record that stays as large or shrinks
// always has room. A resolution without a whole response is as small as a claim, and may use the room reserved for
// claims.
func hasRoom(changes Changes, growth int, resp *idempotency.Response) bool {
	switch {
	case growth <= 0:
		return true
	case resp == nil || resp.Omitted:
		return !changes.IsFull()
	default:
		return changes.HasRoom(growth)
	}
}

// keepSteps copies the checkpoints of the abandoned record seen to s, except the checkpoints named in except. With a
// response, s gets no checkpoints.
func (s *Seen) keepSteps(seen *Seen, except []string) error {
	switch err := seen.checkValues(idempotency.Fingerprint{}); {
	case seen.operationState() != idempotency.StateAbandoned:
		return idempotency.ErrEntryChanged
	case err != nil || s.Response.Valid:
		return err
	}
	all, err := decodeEntries(seen.Steps)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(except, name) {
			s.Steps = appendEntry(s.Steps, name, all[name])
		}
	}
	return nil
}

// operatorChange changes the record of an entry, unless the record has changed since the operator has seen the entry.
type operatorChange struct {
	expectedEntry idempotency.Entry
	isDone        func(changes Changes, seen *Seen) bool          // reports that an earlier run has made the change
	applyChange   func(changes Changes, seen *Seen) (bool, error) // returns false if the record has changed since See
}

func (o *operatorChange) runChange(ctx context.Context, store Operated, name string) error {
	var refused error
	err := store.Change(ctx, func(changes Changes) error {
		refused = nil
		err := o.tryChange(changes)
		if isRefusal(err) {
			refused, err = err, nil
		}
		return err
	})
	if err == nil { // after an error the change may still be under way and write refused
		err = refused
	}
	return store.Failure(name, err)
}

// isRefusal reports whether err refuses the change because of the state of the record. Other errors are failures of the
// store.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{
		idempotency.ErrInProgress, idempotency.ErrNoRecord, idempotency.ErrEntryChanged, idempotency.ErrRecordInvalid,
		idempotency.ErrStoreFull,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

func (o *operatorChange) tryChange(changes Changes) error {
	for range maxConflicts {
		seen, err := changes.See(o.expectedEntry.Operation)
		if err != nil || o.isDone(changes, seen) {
			return err
		}
		if err := seen.refuseChange(o.expectedEntry); err != nil {
			return err
		}
		if changed, err := o.applyChange(changes, seen); changed || err != nil {
			return err
		}
	}
	return idempotency.ErrEntryChanged // the record has changed maxConflicts times
}
