package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"

	"github.com/idempotency-go/idempotency"
)

// Forget removes the record of an entry, as Forget of [idempotency.Inspector] does.
func Forget(ctx context.Context, store Leases, asked idempotency.Entry) error {
	c := operator{
		asked:  asked,
		isDone: func(steps Steps, seen *Seen) bool { return !seen.Found && steps.InDoubt() },
		change: func(steps Steps, seen *Seen) (bool, error) { return steps.Forget(asked.Digest[:], seen) },
	}
	return c.do(ctx, store, "forget")
}

// Resolve ends the operation of an entry, as Resolve of [idempotency.Resolver] does.
func Resolve(ctx context.Context, store Leases, asked idempotency.Entry, r idempotency.Resolution) error {
	var response sql.Null[[]byte]
	if r.Response != nil {
		stored, err := r.Response.MarshalBinary()
		if err != nil {
			return store.Failure("resolve", err)
		}
		response = sql.Null[[]byte]{V: stored, Valid: true}
	}
	token := NewToken()
	c := operator{
		asked:  asked,
		isDone: func(_ Steps, seen *Seen) bool { return seen.Found && string(seen.Token) == string(token) },
		change: func(steps Steps, seen *Seen) (bool, error) {
			own := Seen{Row: Row{Token: token, Response: response}}
			if err := own.resolves(seen, r.Note); err != nil {
				return false, err
			}
			if !steps.HasRoom(max(len(response.V), len(idempotency.ResolutionNote)+len(r.Note))) {
				return false, idempotency.ErrStoreFull
			}
			return steps.Resolve(asked.Digest[:], seen, &own, r.TTL)
		},
	}
	return c.do(ctx, store, "resolve")
}

// resolves adds the checkpoints of an abandoned record, with a note, unless there is a response.
func (s *Seen) resolves(seen *Seen, note string) error {
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
	all[idempotency.ResolutionNote] = []byte(note)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s.Steps = encode(s.Steps, name, all[name])
	}
	return nil
}

// operator changes the record of an entry, unless it is another one by now.
type operator struct {
	asked  idempotency.Entry
	isDone func(steps Steps, seen *Seen) bool          // by an earlier run
	change func(steps Steps, seen *Seen) (bool, error) // false: there is another record since it was seen
}

func (o *operator) do(ctx context.Context, store Leases, name string) error {
	var refused error
	_, err := store.Do(ctx, false, func(steps Steps) error {
		refused = nil
		err := o.try(steps)
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

func (o *operator) try(steps Steps) error {
	for range races {
		seen, err := steps.See(o.asked.Digest[:])
		if err != nil || o.isDone(steps, seen) {
			return err
		}
		if err := seen.refusal(o.asked); err != nil {
			return err
		}
		if changed, err := o.change(steps, seen); changed || err != nil {
			return err
		}
	}
	return idempotency.ErrEntryChanged // again and again
}
