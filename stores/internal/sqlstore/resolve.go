package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Operated is a store whose records operators change.
type Operated interface {
	// Change runs a step, and returns when it has taken effect. The step may run again after an error.
	Change(ctx context.Context, run func(Changes) error) error

	// Failure returns the error of a step for the caller of the store.
	Failure(step string, err error) error
}

// Changes are what operators see and change.
type Changes interface {
	// See returns what people are told of the record with a digest.
	See(digest []byte) (*Seen, error)

	// Forget deletes what See has seen. It returns false if there is another record by now, or none.
	Forget(digest []byte, seen *Seen) (bool, error)

	// Resolve replaces token, response, checkpoints and resolution of what See has seen by those of own, ends the lease, and
	// keeps the record for ttl from now. It returns false if there is another record by now, or none.
	Resolve(digest []byte, seen, own *Seen, ttl time.Duration) (bool, error)

	// IsFull reports whether there is no room for a new operation.
	IsFull() bool

	// HasRoom reports whether there is room for a response of n bytes.
	HasRoom(n int) bool

	// InDoubt reports whether an earlier run of the step may have had an effect, which was not answered.
	InDoubt() bool
}

// Forget removes the record of an entry, as Forget of [idempotency.Inspector] does.
func Forget(ctx context.Context, store Operated, asked idempotency.Entry) error {
	c := operator{
		asked:  asked,
		isDone: func(changes Changes, seen *Seen) bool { return !seen.Found && changes.InDoubt() },
		change: func(changes Changes, seen *Seen) (bool, error) { return changes.Forget(asked.Digest[:], seen) },
	}
	return c.do(ctx, store, "forget")
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
	c := operator{
		asked:  asked,
		isDone: func(_ Changes, seen *Seen) bool { return seen.Found && string(seen.Token) == string(token) },
		change: func(changes Changes, seen *Seen) (bool, error) {
			own := Seen{Row: Row{Token: token, Response: response}, Resolved: resolved}
			if err := own.keepSteps(seen, asked.OpenMarks()); err != nil {
				return false, err
			}
			if !hasRoom(changes, own.keptSize()-seen.keptSize(), r.Response) {
				return false, idempotency.ErrStoreFull
			}
			return changes.Resolve(asked.Digest[:], seen, &own, r.TTL)
		},
	}
	return c.do(ctx, store, "resolve")
}

// hasRoom reports whether a record may grow by a resolution. It always may if it does not grow. What is as small as a claim may
// have the room for claims.
func hasRoom(changes Changes, grows int, resp *idempotency.Response) bool {
	switch {
	case grows <= 0:
		return true
	case resp == nil || resp.Omitted:
		return !changes.IsFull()
	default:
		return changes.HasRoom(grows)
	}
}

// keepSteps takes over the checkpoints of an abandoned record, except those of some names, unless there is a response.
func (s *Seen) keepSteps(seen *Seen, except []string) error {
	switch err := seen.checkValues(idempotency.Fingerprint{}); {
	case seen.state() != idempotency.StateAbandoned:
		return idempotency.ErrEntryChanged
	case err != nil || s.Response.Valid:
		return err
	}
	all, err := decode(seen.Steps)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(except, name) {
			s.Steps = encode(s.Steps, name, all[name])
		}
	}
	return nil
}

// operator changes the record of an entry, unless it is another one by now.
type operator struct {
	asked  idempotency.Entry
	isDone func(changes Changes, seen *Seen) bool          // by an earlier run
	change func(changes Changes, seen *Seen) (bool, error) // false: there is another record since it was seen
}

func (o *operator) do(ctx context.Context, store Operated, name string) error {
	var refused error
	err := store.Change(ctx, func(changes Changes) error {
		refused = nil
		err := o.try(changes)
		if isRefusal(err) {
			refused, err = err, nil
		}
		return err
	})
	return store.Failure(name, cmp.Or(err, refused))
}

// isRefusal reports whether an operator is refused because of what the record is, rather than by a failure.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{
		idempotency.ErrInProgress, idempotency.ErrNoRecord, idempotency.ErrEntryChanged, idempotency.ErrRecordInvalid,
		idempotency.ErrStoreFull,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

func (o *operator) try(changes Changes) error {
	for range races {
		seen, err := changes.See(o.asked.Digest[:])
		if err != nil || o.isDone(changes, seen) {
			return err
		}
		if err := seen.refusal(o.asked); err != nil {
			return err
		}
		if changed, err := o.change(changes, seen); changed || err != nil {
			return err
		}
	}
	return idempotency.ErrEntryChanged // again and again
}
