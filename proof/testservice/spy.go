package testservice

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Hook stands between a caller and one method of a store: it may call step, or fail instead, or both. N counts from 1.
type Hook func(ctx context.Context, n int64, step func() error) error

// Failing is the hook of a method that fails for the first n calls, without effect.
func Failing(n int64, err error) Hook {
	return func(_ context.Context, call int64, step func() error) error {
		if call <= n {
			return err
		}
		return step()
	}
}

// Always is a number of calls that no test makes.
const Always = 1 << 62

// ErrDown is what a store says that cannot be reached.
var ErrDown = errors.New("store down")

// SpyStore is a store that counts what is asked of it, and lets a test interfere.
type SpyStore struct {
	idempotency.Store
	OnBegin, OnExtend, OnComplete, OnRelease Hook
	Begins, Extends, Completes, Releases     atomic.Int64
}

// NewSpyStore returns a spy on a new memory store.
func NewSpyStore() *SpyStore {
	return &SpyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
}

// Unwrap returns the store that is spied on.
func (s *SpyStore) Unwrap() idempotency.Store { return s.Store }

// Begin is counted, and so are the methods of the claim that it returns. If OnBegin fails behind a grant, the claim is in doubt.
func (s *SpyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (rec idempotency.Record, claim idempotency.Claim, err error) {
	err = spy(ctx, &s.Begins, s.OnBegin, func() (err error) {
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

func spy(ctx context.Context, calls *atomic.Int64, on Hook, step func() error) error {
	n := calls.Add(1)
	if on == nil {
		return step()
	}
	return on(ctx, n, step)
}

type spyClaim struct {
	idempotency.Claim
	store *SpyStore
}

func (c *spyClaim) Extend(ctx context.Context, lease time.Duration) error {
	return spy(ctx, &c.store.Extends, c.store.OnExtend, func() error { return c.Claim.Extend(ctx, lease) })
}

func (c *spyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	return spy(ctx, &c.store.Completes, c.store.OnComplete, func() error { return c.Claim.Complete(ctx, resp, ttl) })
}

func (c *spyClaim) Release(ctx context.Context, ttl time.Duration) error {
	return spy(ctx, &c.store.Releases, c.store.OnRelease, func() error { return c.Claim.Release(ctx, ttl) })
}

// AlteredStore is a store whose records are altered before they are shown.
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

// ForgedStore has a completed record under each key, which somebody else has written.
type ForgedStore struct{ Response *idempotency.Response }

// Begin returns the forged response.
func (s ForgedStore) Begin(
	_ context.Context, _ idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return idempotency.Record{Attempt: 1, Fingerprint: request.Fingerprint, Response: s.Response}, nil, nil
}

// WithoutSteps is a store whose claims keep no checkpoints.
type WithoutSteps struct{ idempotency.Store }

// Begin returns a claim that has the methods of [idempotency.Claim] only.
func (s WithoutSteps) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = struct{ idempotency.Claim }{claim}
	}
	return record, claim, err
}
