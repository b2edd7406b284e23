package testservice

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Hook intercepts a method of a store. The hook may call step, which calls the method of the inner store, and may
// return an error. n is the number of the call, from 1.
type Hook func(ctx context.Context, n int64, step func() error) error

// Failing returns a hook that fails the first n calls with err, without calling the store.
func Failing(n int64, err error) Hook {
	return func(_ context.Context, call int64, step func() error) error {
		if call <= n {
			return err
		}
		return step()
	}
}

// Always is more calls than any test makes. Use Always as the n of [Failing].
const Always = 1 << 62

// ErrDown is the error of an unreachable store.
var ErrDown = errors.New("store down")

// SpyStore is a store that counts its calls. The hooks let a test change the result of a call.
type SpyStore struct {
	idempotency.Store
	OnBegin, OnExtend, OnComplete, OnRelease Hook
	Begins, Extends, Completes, Releases     atomic.Int64
}

// NewSpyStore returns a spy on a new memory store.
func NewSpyStore() *SpyStore {
	return &SpyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
}

// Unwrap returns the inner store.
func (s *SpyStore) Unwrap() idempotency.Store { return s.Store }

// Begin counts the call, and returns a claim that counts its calls. If OnBegin returns an error after the inner store
// has granted the claim, the claim is in doubt.
func (s *SpyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (rec idempotency.Record, claim idempotency.Claim, err error) {
	err = callHook(ctx, &s.Begins, s.OnBegin, func() (err error) {
		rec, claim, err = s.Store.Begin(ctx, key, request)
		return err
	})
	if claim != nil {
		claim = &spyClaim{claim, s}
	}
	if claim != nil && err != nil {
		return rec, nil, &idempotency.ClaimInDoubtError{Claim: claim, Err: err}
	}
	return rec, claim, err
}

// callHook counts a call, and calls the hook on if the hook is set, otherwise step.
func callHook(ctx context.Context, calls *atomic.Int64, on Hook, step func() error) error {
	n := calls.Add(1)
	if on == nil {
		return step()
	}
	return on(ctx, n, step)
}

type spyClaim struct {
	idempotency.Claim
	spyStore *SpyStore
}

func (c *spyClaim) Extend(ctx context.Context, lease time.Duration) error {
	return callHook(ctx, &c.spyStore.Extends, c.spyStore.OnExtend, func() error { return c.Claim.Extend(ctx, lease) })
}

func (c *spyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	return callHook(ctx, &c.spyStore.Completes, c.spyStore.OnComplete, func() error {
		return c.Claim.Complete(ctx, resp, ttl)
	})
}

func (c *spyClaim) Release(ctx context.Context, end idempotency.Release) error {
	return callHook(ctx, &c.spyStore.Releases, c.spyStore.OnRelease, func() error { return c.Claim.Release(ctx, end) })
}

// AlteredStore is a store that alters each record before Begin returns the record.
type AlteredStore struct {
	idempotency.Store
	Alter func(*idempotency.Record)
}

// Begin returns the altered record.
func (s *AlteredStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	s.Alter(&record)
	return record, claim, err
}

// ForgedStore is a store in which each key has a completed record with a forged response.
type ForgedStore struct{ Response *idempotency.Response }

// Begin returns the forged response.
func (s ForgedStore) Begin(
	_ context.Context, _ idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return idempotency.Record{Attempt: 1, Fingerprint: request.Fingerprint, Response: s.Response}, nil, nil
}

// WithoutSteps is a store whose claims do not implement [idempotency.Checkpointer].
type WithoutSteps struct{ idempotency.Store }

// Begin returns a claim with only the methods of [idempotency.Claim].
func (s WithoutSteps) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = struct{ idempotency.Claim }{claim}
	}
	return record, claim, err
}
