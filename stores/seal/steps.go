package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/idempotency-go/idempotency"
)

// sealedSteps is a sealedClaim whose inner claim keeps checkpoints. sealedSteps implements [idempotency.TxCheckpointer].
//
// A sealed checkpoint begins with the mark of its key, as the header of a sealed answer does. A plain checkpoint never begins
// with a mark, because package step stores JSON, no bytes, or the eight bytes of the mark of a begun step.
type sealedSteps struct{ sealedClaim }

func (c *sealedSteps) innerCheckpointer() idempotency.Checkpointer {
	return c.Claim.(idempotency.Checkpointer)
}

// Checkpoint implements [idempotency.Checkpointer].
func (c *sealedSteps) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	given, err := c.sealKey.sealStep(ctx, data, &c.boundTo, name)
	if err != nil {
		return nil, err
	}
	stored, err = c.innerCheckpointer().Checkpoint(ctx, name, given)
	switch {
	case err != nil && !errors.Is(err, idempotency.ErrRestored):
		return nil, err
	case bytes.Equal(stored, given):
		return data, err
	}
	opened, invalid := c.store.openStep(ctx, stored, &c.boundTo, name)
	if invalid != nil {
		return nil, invalid
	}
	return opened, err
}

// CheckpointTx implements [idempotency.TxCheckpointer]. CheckpointTx encrypts the result while the transaction is
// open, before the inner store stores the result.
func (c *sealedSteps) CheckpointTx(ctx context.Context, step *idempotency.TxStep) (stored []byte, err error) {
	inner, ok := c.Claim.(idempotency.TxCheckpointer)
	if !ok {
		return nil, fmt.Errorf("seal: the inner store has no transactions for steps: %w", errors.ErrUnsupported)
	}
	var data, given []byte
	run := step.Run
	step.Run = func() (_ []byte, err error) {
		if data, err = run(); err == nil {
			given, err = c.sealKey.sealStep(ctx, data, &c.boundTo, step.Name)
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
	return c.store.openStep(ctx, stored, &c.boundTo, step.Name)
}

// Checkpoints implements [idempotency.Checkpointer]. If one checkpoint cannot be decrypted, Checkpoints
// returns an error and no checkpoints.
func (c *sealedSteps) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	stored, err := c.innerCheckpointer().Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	opened := make(map[string][]byte, len(stored))
	for name, data := range stored {
		if name == idempotency.RecordLost { // the inner store adds RecordLost itself, in plain text
			opened[name] = data
			continue
		}
		if opened[name], err = c.store.openStep(ctx, data, &c.boundTo, name); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

// sealStep encrypts a checkpoint for the inner store. A nil key returns the plain checkpoint.
func (k *sealer) sealStep(ctx context.Context, data []byte, of *binding, name string) ([]byte, error) {
	if k == nil {
		return data, nil
	}
	sealed, err := k.encrypt(ctx, slices.Clip(data), k.bindStep(of, name)) // Clip removes the spare capacity, so that gcm does not overwrite data
	if err != nil {
		return nil, err
	}
	return append([]byte(k.headerMark), sealed...), nil
}

// openStep decrypts a checkpoint of the inner store.
func (s *Store) openStep(ctx context.Context, stored []byte, of *binding, name string) ([]byte, error) {
	for _, k := range s.keys {
		if k == nil {
			continue
		}
		if sealed, ok := bytes.CutPrefix(stored, []byte(k.headerMark)); ok {
			return k.decrypt(ctx, sealed, k.bindStep(of, name), "step")
		}
	}
	if s.acceptsPlain && !bytes.HasPrefix(stored, []byte(markPrefix)) {
		return stored, nil
	}
	return nil, fmt.Errorf("%w: step %q is not sealed, or its key is unknown", idempotency.ErrRecordInvalid, name)
}

// bindStep returns the operation and the name of a step as associated data. A checkpoint belongs to all attempts at the
// operation, which have the same fingerprint in the inner store. The newline separates name and key ID, because no key ID has
// a newline.
func (k *sealer) bindStep(of *binding, name string) []byte {
	b := make([]byte, 0, 256)
	b = append(b, "idempotency/seal/1 step\n"...)
	b = append(b, of.operation[:]...)
	b = append(b, of.fingerprint[:]...)
	b = append(b, name...)
	b = append(b, '\n')
	return append(b, k.keyID...)
}
