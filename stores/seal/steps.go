package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/idempotency-go/idempotency"
)

// sealedSteps is a sealedClaim whose inner claim keeps checkpoints. It implements [idempotency.TxCheckpointer].
//
// What is stored of a checkpoint begins with the mark of its key, as the header of a sealed answer does. No checkpoint
// in the clear begins like this: package step stores JSON, nothing, or the eight bytes that say that a step has begun.
type sealedSteps struct{ sealedClaim }

func (c *sealedSteps) inner() idempotency.Checkpointer { return c.Claim.(idempotency.Checkpointer) }

// Checkpoint implements [idempotency.Checkpointer].
func (c *sealedSteps) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	given, err := c.key.sealStep(ctx, data, &c.to, name)
	if err != nil {
		return nil, err
	}
	stored, err = c.inner().Checkpoint(ctx, name, given)
	switch {
	case err != nil && !errors.Is(err, idempotency.ErrRestored):
		return nil, err
	case bytes.Equal(stored, given):
		return data, err
	}
	opened, invalid := c.store.openStep(ctx, stored, &c.to, name)
	if invalid != nil {
		return nil, invalid
	}
	return opened, err
}

// CheckpointTx implements [idempotency.TxCheckpointer]. The result is sealed before it is stored, while the transaction is open.
func (c *sealedSteps) CheckpointTx(ctx context.Context, step *idempotency.TxStep) (stored []byte, err error) {
	inner, ok := c.Claim.(idempotency.TxCheckpointer)
	if !ok {
		return nil, fmt.Errorf("the inner store has no transactions for steps: %w", errors.ErrUnsupported)
	}
	var data, given []byte
	run := step.Run
	step.Run = func() (_ []byte, err error) {
		if data, err = run(); err == nil {
			given, err = c.key.sealStep(ctx, data, &c.to, step.Name)
		}
		return given, err
	}
	stored, err = inner.CheckpointTx(ctx, step)
	switch {
	case err != nil:
		return nil, err
	case bytes.Equal(stored, given):
		return data, nil
	}
	return c.store.openStep(ctx, stored, &c.to, step.Name)
}

// Checkpoints implements [idempotency.Checkpointer]. If one of them cannot be opened, it returns none.
func (c *sealedSteps) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	stored, err := c.inner().Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	opened := make(map[string][]byte, len(stored))
	for name, data := range stored {
		if name == idempotency.RecordLost { // the inner store has stored it by itself
			opened[name] = data
			continue
		}
		if opened[name], err = c.store.openStep(ctx, data, &c.to, name); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

// sealStep returns what the inner store gets of a checkpoint. A nil key leaves it in the clear.
func (k *sealer) sealStep(ctx context.Context, data []byte, of *binding, name string) ([]byte, error) {
	if k == nil {
		return data, nil
	}
	sealed, err := k.seal(ctx, slices.Clip(data), k.bindStep(of, name)) // without room, data is not overwritten
	if err != nil {
		return nil, err
	}
	return append([]byte(k.mark), sealed...), nil
}

// openStep returns what sealStep was given.
func (s *Store) openStep(ctx context.Context, stored []byte, of *binding, name string) ([]byte, error) {
	for _, k := range s.keys {
		if k == nil {
			continue
		}
		if sealed, ok := bytes.CutPrefix(stored, []byte(k.mark)); ok {
			return k.open(ctx, sealed, k.bindStep(of, name), "step")
		}
	}
	if s.clear && !bytes.HasPrefix(stored, []byte(magic)) {
		return stored, nil
	}
	return nil, fmt.Errorf("%w: step %q is not sealed, or its key is unknown", idempotency.ErrRecordInvalid, name)
}

// bindStep returns what a sealed checkpoint belongs to as associated data. It belongs to every attempt at the
// operation. The fingerprint in the inner store is the same for all of them. No ID of a key has a newline.
func (k *sealer) bindStep(of *binding, name string) []byte {
	b := make([]byte, 0, 256)
	b = append(b, "idempotency/seal/1 step\n"...)
	b = append(b, of.digest[:]...)
	b = append(b, of.fingerprint[:]...)
	b = append(b, name...)
	b = append(b, '\n')
	return append(b, k.id...)
}
