package killtest

import (
	"context"
	"errors"

	"github.com/idempotency-go/idempotency"
)

// ClaimWithSteps wraps a claim, and forwards the methods of [idempotency.TxCheckpointer] if the claim has these
// methods. Types that wrap a claim embed ClaimWithSteps.
type ClaimWithSteps struct{ idempotency.Claim }

// Checkpoint implements [idempotency.Checkpointer].
func (c ClaimWithSteps) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if inner, ok := c.Claim.(idempotency.Checkpointer); ok {
		return inner.Checkpoint(ctx, name, data)
	}
	return nil, errors.ErrUnsupported
}

// Checkpoints implements [idempotency.Checkpointer].
func (c ClaimWithSteps) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if inner, ok := c.Claim.(idempotency.Checkpointer); ok {
		return inner.Checkpoints(ctx)
	}
	return nil, errors.ErrUnsupported
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c ClaimWithSteps) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
	if inner, ok := c.Claim.(idempotency.TxCheckpointer); ok {
		return inner.CheckpointTx(ctx, step)
	}
	return nil, errors.ErrUnsupported
}
