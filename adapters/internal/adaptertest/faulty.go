package adaptertest

import (
	"context"
	"time"

	"github.com/idempotency-go/idempotency"
)

// FaultyStore wraps a store. A method of the store or of its claims fails with the error in the corresponding field,
// if set.
type FaultyStore struct {
	idempotency.Store
	BeginErr, ExtendErr, CompleteErr error

	// Released receives the ttl of each Release, which is 0 if the key is freed. Nil means that nothing is sent.
	Released chan time.Duration
}

type faultyClaim struct {
	idempotency.Claim
	faultyStore *FaultyStore
}

// Begin implements [idempotency.Store].
func (s *FaultyStore) Begin(
	ctx context.Context, key idempotency.Key, r idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.BeginErr != nil {
		return idempotency.Record{}, nil, s.BeginErr
	}
	record, claim, err := s.Store.Begin(ctx, key, r)
	if claim != nil {
		claim = &faultyClaim{claim, s}
	}
	return record, claim, err
}

func (c *faultyClaim) Extend(ctx context.Context, lease time.Duration) error {
	if c.faultyStore.ExtendErr != nil {
		return c.faultyStore.ExtendErr
	}
	return c.Claim.Extend(ctx, lease)
}

func (c *faultyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if c.faultyStore.CompleteErr != nil {
		return c.faultyStore.CompleteErr
	}
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c *faultyClaim) Release(ctx context.Context, end idempotency.Release) error {
	if c.faultyStore.Released != nil {
		c.faultyStore.Released <- end.TTL
	}
	return c.Claim.Release(ctx, end)
}
