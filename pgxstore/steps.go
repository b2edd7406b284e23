package pgxstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

var _ idempotency.Checkpointer = (*claim)(nil)

// restoredFor is how long a record at least is kept that Checkpoint has made again, until the lease is renewed.
const restoredFor = time.Minute

// Checkpoint implements [idempotency.Checkpointer].
func (c *claim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	if data == nil {
		data = []byte{} // not null
	}
	var restored error
	for range races {
		done, err := c.change(ctx, spare, "checkpoint", []any{c.digest[:], c.token, name, data})
		if done || err != nil {
			return data, cmp.Or(err, restored)
		}
		steps, found, err := c.steps(ctx)
		stored, ok := steps[name]
		switch {
		case err != nil:
			return nil, failure("checkpoint", err)
		case ok:
			return stored, cmp.Or(c.store.confirm(ctx, c.sql, c.digest, c.token, false), restored)
		case found: // again, since the first statement
			continue
		}
		restored = c.revive(ctx, "checkpoint", c.request.Lease, max(c.request.TTL, restoredFor))
		if !errors.Is(restored, idempotency.ErrRestored) {
			return nil, restored
		}
	}
	return nil, failure("checkpoint", errHidden)
}

// Checkpoints implements [idempotency.Checkpointer].
func (c *claim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	steps, found, err := c.steps(ctx)
	switch {
	case err != nil || found:
		c.rows.rely(slices.Collect(maps.Keys(steps))...) // any of them may have rows
		return steps, failure("checkpoints", err)
	case c.hasEnded():
		return nil, failure("checkpoints", idempotency.ErrClaimLost)
	}
	return map[string][]byte{idempotency.RecordLost: {}}, nil
}

// steps returns the steps of the operation, and whether there is its record. The error is [idempotency.ErrClaimLost] if
// somebody else has claimed the key, or the record says that the claim has ended.
func (c *claim) steps(ctx context.Context) (steps map[string][]byte, found bool, err error) {
	var names []string
	var results [][]byte
	var own bool
	err = c.store.retry(ctx, new(bool), spare, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, c.sql["checkpoints"], c.digest[:], c.token).Scan(&names, &results, &found, &own)
	})
	if isForged(err, names, results) {
		return nil, true, errors.Join(sqlstore.Invalid("steps"), err)
	}
	switch {
	case err == nil && !own:
		return nil, found, idempotency.ErrClaimLost
	case err != nil || !found:
		return nil, found, err
	}
	steps = make(map[string][]byte, len(names))
	for i, name := range names {
		steps[name] = results[i]
	}
	return steps, true, nil
}

// isForged reports whether no store has written such steps. The error is that of their scan.
func isForged(err error, names []string, results [][]byte) bool {
	if _, misread := errors.AsType[pgx.ScanArgError](err); misread {
		return true
	}
	return len(names) != len(results) || slices.ContainsFunc(results, func(result []byte) bool { return result == nil })
}

// hasEnded reports whether Complete or Release has ended the claim.
func (c *claim) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settled
}
