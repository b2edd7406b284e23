package adaptertest

import (
	"context"
	"time"

	"github.com/idempotency-go/idempotency"
)

// FaultyStore is a store whose methods, and those of its claims, return errors that are not nil.
type FaultyStore struct {
	idempotency.Store
	BeginErr, ExtendErr, CompleteErr error

	// Released gets for how long Release keeps a record. 0 says that the key is freed.
	Released chan time.Duration
}

type faultyClaim struct {
	idempotency.Claim
	store *FaultyStore
}

// Begin claims a key unless BeginErr is set.
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
	if c.store.ExtendErr != nil {
		return c.store.ExtendErr
	}
	return c.Claim.Extend(ctx, lease)
}

func (c *faultyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if c.store.CompleteErr != nil {
		return c.store.CompleteErr
	}
	return c.Claim.Complete(ctx, resp, ttl)
}

func (c *faultyClaim) Release(ctx context.Context, ttl time.Duration) error {
	if c.store.Released != nil {
		c.store.Released <- ttl
	}
	return c.Claim.Release(ctx, ttl)
}
