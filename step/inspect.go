package step

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/polling"
)

var _ idempotency.Inspector = (*store)(nil)

// inspectors returns those of both stores.
func (s *store) inspectors() (tx, leased idempotency.Inspector, err error) {
	tx, ok := s.tx.(idempotency.Inspector)
	if !ok {
		return nil, nil, fmt.Errorf("step: a %T is no Inspector: %w", s.tx, errors.ErrUnsupported)
	}
	leased, ok = s.leased.(idempotency.Inspector)
	if !ok {
		return nil, nil, fmt.Errorf("step: a %T is no Inspector: %w", s.leased, errors.ErrUnsupported)
	}
	return tx, leased, nil
}

// Inspect implements [idempotency.Inspector]. An operation of which only steps are left, since its transaction was rolled
// back, is shown as released.
func (s *store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	tx, leased, err := s.inspectors()
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := tx.Inspect(ctx, key)
	if err != nil && !errors.Is(err, idempotency.ErrNoRecord) || entry.State == idempotency.StateCompleted {
		return entry, err
	}
	steps, none := leased.Inspect(ctx, keyOfSteps(key))
	switch {
	case errors.Is(none, idempotency.ErrNoRecord):
		return entry, err
	case none != nil:
		return entry, none
	case err == nil:
		entry.Steps = steps.Steps
		return entry, nil
	}
	steps.Key, steps.Digest = key, key.Digest()
	steps.State, steps.LeaseLeft = idempotency.StateReleased, 0
	return steps, nil
}

// Forget implements [idempotency.Inspector]. With the record of an operation it removes its steps.
func (s *store) Forget(ctx context.Context, asked idempotency.Entry) error {
	tx, leased, err := s.inspectors()
	if err != nil {
		return err
	}
	if asked.Key.ID == "" { // a store that keeps no keys
		return tx.Forget(ctx, asked)
	}
	err = tx.Forget(ctx, asked)
	if err != nil && !errors.Is(err, idempotency.ErrNoRecord) {
		return err
	}
	steps, none := lapsed(ctx, leased, keyOfSteps(asked.Key))
	switch {
	case errors.Is(none, idempotency.ErrNoRecord):
		return err
	case none != nil:
		return none
	case err != nil && (steps.Attempt != asked.Attempt || !steps.Created.Equal(asked.Created)):
		return idempotency.ErrEntryChanged
	}
	return leased.Forget(ctx, steps)
}

// lapsed returns the entry of the record with the steps when its lease has lapsed. It is short, and nobody renews it.
func lapsed(ctx context.Context, leased idempotency.Inspector, key idempotency.Key) (idempotency.Entry, error) {
	for {
		steps, err := leased.Inspect(ctx, key)
		if err != nil || steps.State != idempotency.StateRunning {
			return steps, err
		}
		if !polling.Sleep(ctx, max(steps.LeaseLeft, time.Millisecond), nil) {
			return steps, context.Cause(ctx)
		}
	}
}

// List implements [idempotency.Inspector]. It lists the records of the transactional store. If the leased one has the same
// table, those with steps are among them.
func (s *store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	tx, _, err := s.inspectors()
	if err != nil {
		return idempotency.Listing{}, err
	}
	return tx.List(ctx, request)
}
