package sqlstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Checkpointer = (*lease)(nil)

// checkpoints are what a claim knows to be stored. Nobody else stores any as long as it holds its record.
type checkpoints struct {
	mu     sync.Mutex
	turn   chan struct{} // full while one is stored
	stored []byte        // entries, one behind the other

	rows reliedRows
}

// enter waits until no other checkpoint of the claim is being stored: each would take a connection to wait for the row.
func (c *checkpoints) enter(ctx context.Context) error {
	c.mu.Lock()
	if c.turn == nil {
		c.turn = make(chan struct{}, 1)
	}
	c.mu.Unlock()
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *checkpoints) leave() { <-c.turn }

func (c *checkpoints) known() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stored
}

// learn notes what is stored. If the rows of a step are lost, it notes that, too.
func (c *checkpoints) learn(stored []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = stored
	c.rows.areLost = c.rows.areLost || !bytes.HasPrefix(stored, c.rows.entries)
}

// reliedRows are the rows that the handler relies on.
type reliedRows struct {
	entries   []byte // the first ones of the record, by steps that may have written rows
	hasJoined bool   // a result was stored in a transaction of the handler, which may have been committed
	areLost   bool   // the store has lost a step, and the rows with it
}

// rely is learn for entries of steps that may have written rows.
func (c *checkpoints) rely(stored []byte) {
	c.learn(stored)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows.entries = stored
}

// joinRows notes a result that was stored in a transaction of the handler.
func (c *checkpoints) joinRows() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows.hasJoined = true
}

// loseRows notes that the record is gone, and its steps with it. It reports whether rows may have been lost.
func (c *checkpoints) loseRows() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows.areLost = c.rows.areLost || c.rows.hasJoined || len(c.rows.entries) > 0
	return c.rows.areLost
}

// reliedSize returns how many bytes of entries the record must have at Complete. If lost is true, the rows are lost already.
func (c *checkpoints) reliedSize() (size int, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.rows.entries), c.rows.areLost
}

// encode returns entries with another one behind them: name and data, and before each its length.
func encode(entries []byte, name string, data []byte) []byte {
	b := make([]byte, 0, len(entries)+len(name)+len(data)+2*binary.MaxVarintLen32)
	b = append(b, entries...)
	b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// lostCheckpoints are the entries of a record that was lost and is made again.
var lostCheckpoints = encode(nil, idempotency.RecordLost, nil)

// decode returns the checkpoints of entries. The first one of a name counts.
func decode(entries []byte) (map[string][]byte, error) {
	found := make(map[string][]byte)
	for len(entries) > 0 {
		name, rest, isName := cut(entries)
		data, rest, isData := cut(rest)
		if !isName || !isData {
			return nil, Invalid("no checkpoints")
		}
		if _, twice := found[string(name)]; !twice {
			found[string(name)] = data
		}
		entries = rest
	}
	return found, nil
}

func has(entries []byte, asked string) bool {
	for len(entries) > 0 {
		name, rest, _ := cut(entries)
		if string(name) == asked {
			return true
		}
		_, entries, _ = cut(rest)
	}
	return false
}

// cut cuts off what stands behind its length.
func cut(b []byte) (front, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(length)
	return b[n:end:end], b[end:], true
}

// adding is one call of Checkpoint.
type adding struct {
	name         string
	data, stored []byte
	isFull       bool
}

// Checkpoint implements [idempotency.Checkpointer].
func (l *lease) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	const step = "checkpoint"
	if err := l.checkpoints.enter(ctx); err != nil {
		return nil, l.store.Failure(step, err)
	}
	defer l.checkpoints.leave()
	a := &adding{name: name, data: data}
	add := func(steps Steps) (bool, error) { return l.add(steps, a) }
	err := l.proceed(ctx, step, l.record.LeaseLeft, l.ttl, add)
	restored := err
	for errors.Is(err, idempotency.ErrRestored) { // without the checkpoint
		err = l.proceed(ctx, step, l.record.LeaseLeft, l.ttl, add)
	}
	switch {
	case err != nil:
		return nil, err
	case a.isFull:
		return nil, l.store.Failure(step, idempotency.ErrStoreFull)
	}
	return a.stored, restored
}

// races is how often a record may be made again, or changed, between the statements of a step. If a checkpoint is to be
// added more often, no store has written what is there: its length is not that of what is read.
const races = 8

// add stores a checkpoint, unless there is one of that name. It returns false if the claim does not hold its record.
func (l *lease) add(steps Steps, a *adding) (bool, error) {
	for range races {
		known := l.checkpoints.known()
		if !has(known, a.name) {
			if a.isFull = !steps.HasRoom(len(a.name) + len(a.data)); a.isFull {
				return true, nil
			}
			all := encode(known, a.name, a.data)
			added, err := steps.Checkpoint(l.digest, l.token, all, len(known))
			if err != nil {
				return false, err
			}
			if added {
				l.checkpoints.learn(all)
				a.stored = a.data
				return true, nil
			}
		}
		found, held, err := l.found(steps)
		if err != nil || !held {
			return false, err
		}
		if stored, ok := found[a.name]; ok {
			a.stored = stored
			return true, nil
		}
	}
	return false, Invalid("checkpoints of another length")
}

// found returns the checkpoints that are stored. Held says that the claim holds its record.
func (l *lease) found(steps Steps) (found map[string][]byte, held bool, err error) {
	entries, held, err := steps.Checkpoints(l.digest, l.token)
	if err != nil || !held {
		return nil, false, err
	}
	if found, err = decode(entries); err == nil {
		l.checkpoints.learn(entries)
	}
	return found, true, err
}

// Reader is a [Leases] that reads a record without waiting for writers. If the handler has begun a transaction and reads
// checkpoints, it would wait for itself.
type Reader interface {
	// Look returns the record with a digest, and its checkpoints.
	Look(ctx context.Context, digest []byte) (seen *Row, entries []byte, err error)
}

// read returns the checkpoints of a record that the claim holds, from a store that is a [Reader].
func (l *lease) read(ctx context.Context, reader Reader) (map[string][]byte, error) {
	seen, entries, err := reader.Look(ctx, l.digest)
	if err != nil {
		return nil, l.store.Failure("checkpoints", err)
	}
	switch at := l.standing(seen); {
	case at == running:
		found, err := decode(entries)
		if err == nil {
			l.checkpoints.rely(entries) // any of them may have rows
		}
		return found, err
	case at == gone && l.isOpen():
		return lostRecord(), nil
	}
	return nil, idempotency.ErrClaimLost
}

// lostRecord returns the checkpoints of a record that is gone.
func lostRecord() map[string][]byte { return map[string][]byte{idempotency.RecordLost: {}} }

// Checkpoints implements [idempotency.Checkpointer].
func (l *lease) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if reader, ok := l.store.(Reader); ok {
		return l.read(ctx, reader)
	}
	var found map[string][]byte
	var at standing
	_, err := l.store.Do(ctx, false, func(steps Steps) (err error) {
		at, err = l.change(steps, func() (held bool, err error) {
			if found, held, err = l.found(steps); err == nil && held {
				l.checkpoints.rely(l.checkpoints.known()) // any of them may have rows
			}
			return held, err
		}, nil)
		return err
	})
	switch {
	case err != nil:
		return nil, l.store.Failure("checkpoints", err)
	case at == holds:
		return found, nil
	case at == gone && l.isOpen():
		return lostRecord(), nil
	}
	return nil, idempotency.ErrClaimLost
}

// isOpen reports whether the claim has not been settled.
func (l *lease) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended == open
}
