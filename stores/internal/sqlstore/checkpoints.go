package sqlstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Checkpointer = (*leaseClaim)(nil)

// knownCheckpoints is the copy of the stored checkpoints in the memory of a claim. Only the claim adds checkpoints
// while the claim holds the record.
type knownCheckpoints struct {
	stateMutex    sync.Mutex
	writeTurn     chan struct{} // full while a checkpoint is being written
	storedEntries []byte        // encoded entries

	rows reliedRows
}

// lockWrite waits until the claim writes no checkpoint. Concurrent writers would each take a connection to wait for the
// row.
func (c *knownCheckpoints) lockWrite(ctx context.Context) error {
	c.stateMutex.Lock()
	if c.writeTurn == nil {
		c.writeTurn = make(chan struct{}, 1)
	}
	c.stateMutex.Unlock()
	select {
	case c.writeTurn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *knownCheckpoints) unlockWrite() { <-c.writeTurn }

func (c *knownCheckpoints) loadEntries() []byte {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	return c.storedEntries
}

// noteStored sets the known checkpoints to stored. If the entries of steps with rows are missing from stored,
// noteStored marks the rows as lost.
func (c *knownCheckpoints) noteStored(stored []byte) {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	c.storedEntries = stored
	c.rows.areLost = c.rows.areLost || !bytes.HasPrefix(stored, c.rows.reliedEntries)
}

// reliedRows describes the rows that the handler relies on.
type reliedRows struct {
	reliedEntries []byte // the first entries of the record, up to the latest step that may have written rows
	hasJoined     bool   // a transaction of the handler holds a result, and may be committed
	areLost       bool   // the store has lost a step and the rows of the step
}

// mayExist is mayHaveRows for callers that hold stateMutex.
func (r *reliedRows) mayExist() bool { return r.areLost || r.hasJoined || len(r.reliedEntries) > 0 }

// noteRelied is noteStored for entries of steps that may have written rows.
func (c *knownCheckpoints) noteRelied(stored []byte) {
	c.noteStored(stored)
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	c.rows.reliedEntries = stored
}

// noteJoinedRows records that a transaction of the handler holds the result of a step.
func (c *knownCheckpoints) noteJoinedRows() {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	c.rows.hasJoined = true
}

// markRowsLost records that the store has lost the record with all steps.
func (c *knownCheckpoints) markRowsLost() {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	c.rows.areLost = c.rows.mayExist()
}

// mayHaveRows reports whether the handler may have written rows, which the store may lose with the record.
func (c *knownCheckpoints) mayHaveRows() bool {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	return c.rows.mayExist()
}

// reliedSize returns how many bytes of entries the record must have at Complete. If lost is true, the rows are already
// lost.
func (c *knownCheckpoints) reliedSize() (size int, lost bool) {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	return len(c.rows.reliedEntries), c.rows.areLost
}

// appendEntry returns entries with an entry appended: the name and the data, each after its length as a varint.
func appendEntry(entries []byte, name string, data []byte) []byte {
	b := make([]byte, 0, len(entries)+len(name)+len(data)+2*binary.MaxVarintLen32)
	b = append(b, entries...)
	b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// lostEntries are the entries of a restored record.
var lostEntries = appendEntry(nil, idempotency.RecordLost, nil)

// decodeEntries returns the checkpoints of entries by name. The first entry of a name counts.
func decodeEntries(entries []byte) (map[string][]byte, error) {
	found := make(map[string][]byte)
	for len(entries) > 0 {
		name, rest, isName := cutField(entries)
		data, rest, isData := cutField(rest)
		if !isName || !isData {
			return nil, Invalid("the checkpoints cannot be decoded")
		}
		if _, twice := found[string(name)]; !twice {
			found[string(name)] = data
		}
		entries = rest
	}
	return found, nil
}

func hasEntry(entries []byte, asked string) bool {
	for len(entries) > 0 {
		name, rest, _ := cutField(entries)
		if string(name) == asked {
			return true
		}
		_, entries, _ = cutField(rest)
	}
	return false
}

// cutField returns the field at the start of b, which follows its length, and the rest of b.
func cutField(b []byte) (front, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(length)
	return b[n:end:end], b[end:], true
}

// checkpointCall is a call of Checkpoint.
type checkpointCall struct {
	stepName             string
	stepData, storedData []byte
	isFull               bool
}

// Checkpoint implements [idempotency.Checkpointer].
func (l *leaseClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	const step = "checkpoint"
	if err := l.checkpoints.lockWrite(ctx); err != nil {
		return nil, l.store.Failure(step, err)
	}
	defer l.checkpoints.unlockWrite()
	a := &checkpointCall{stepName: name, stepData: data}
	add := func(steps Steps) (bool, error) { return l.addCheckpoint(steps, a) }
	err := l.changeOrRestore(ctx, step, l.grantedRecord.LeaseLeft, l.recordTTL, add)
	restored := err
	for errors.Is(err, idempotency.ErrRestored) { // a restored record lacks the checkpoint
		err = l.changeOrRestore(ctx, step, l.grantedRecord.LeaseLeft, l.recordTTL, add)
	}
	switch {
	case err != nil:
		return nil, err
	case a.isFull:
		return nil, l.store.Failure(step, idempotency.ErrStoreFull)
	}
	return a.storedData, restored
}

// maxConflicts bounds how often a step is repeated after a record was restored or changed between two statements of the
// step. If a checkpoint meets more conflicts, no store has written the stored entries, because their length differs
// from the number of bytes read.
const maxConflicts = 8

// addCheckpoint stores a checkpoint unless the record has a checkpoint with the name. addCheckpoint returns false if
// the claim does not hold the record.
func (l *leaseClaim) addCheckpoint(steps Steps, a *checkpointCall) (bool, error) {
	for range maxConflicts {
		known := l.checkpoints.loadEntries()
		if !hasEntry(known, a.stepName) {
			if a.isFull = !steps.HasRoom(len(a.stepName) + len(a.stepData)); a.isFull {
				return true, nil
			}
			all := appendEntry(known, a.stepName, a.stepData)
			added, err := steps.Checkpoint(l.operation, l.ownerToken, all, len(known))
			if err != nil {
				return false, err
			}
			if added {
				l.checkpoints.noteStored(all)
				a.storedData = a.stepData
				return true, nil
			}
		}
		found, held, err := l.loadCheckpoints(steps)
		if err != nil || !held {
			return false, err
		}
		if stored, ok := found[a.stepName]; ok {
			a.storedData = stored
			return true, nil
		}
	}
	return false, Invalid("the length of the checkpoints contradicts their contents")
}

// loadCheckpoints returns the stored checkpoints. The bool held reports that the claim holds the record.
func (l *leaseClaim) loadCheckpoints(steps Steps) (found map[string][]byte, held bool, err error) {
	entries, held, err := steps.Checkpoints(l.operation, l.ownerToken)
	if err != nil || !held {
		return nil, false, err
	}
	if found, err = decodeEntries(entries); err == nil {
		l.checkpoints.noteStored(entries)
	}
	return found, true, err
}

// Reader is a [Leases] that reads a record without waiting for writers. A store with a single writer needs a Reader,
// because a handler that reads checkpoints in a transaction of the handler would wait for itself.
type Reader interface {
	// Look returns the record of operation, and the checkpoints of the record.
	Look(ctx context.Context, operation uuid.UUID) (seen *Row, entries []byte, err error)
}

// lookUpCheckpoints is Checkpoints for a store that is a [Reader].
func (l *leaseClaim) lookUpCheckpoints(ctx context.Context, reader Reader) (map[string][]byte, error) {
	seen, entries, err := reader.Look(ctx, l.operation)
	if err != nil {
		return nil, l.store.Failure("checkpoints", err)
	}
	switch status := l.statusOf(seen); {
	case status == statusRunning:
		found, err := decodeEntries(entries)
		if err == nil {
			l.checkpoints.noteRelied(entries) // any entry may have rows
		}
		return found, err
	case status == statusGone && l.isOpen():
		return lostRecordCheckpoints(), nil
	}
	return nil, idempotency.ErrClaimLost
}

// lostRecordCheckpoints returns the checkpoints of a lost record.
func lostRecordCheckpoints() map[string][]byte { return map[string][]byte{idempotency.RecordLost: {}} }

// Checkpoints implements [idempotency.Checkpointer].
func (l *leaseClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if reader, ok := l.store.(Reader); ok {
		return l.lookUpCheckpoints(ctx, reader)
	}
	var found map[string][]byte
	var status recordStatus
	_, err := l.store.Do(ctx, false, func(steps Steps) (err error) {
		status, err = l.changeRecord(steps, func() (held bool, err error) {
			if found, held, err = l.loadCheckpoints(steps); err == nil && held {
				l.checkpoints.noteRelied(l.checkpoints.loadEntries()) // any entry may have rows
			}
			return held, err
		}, nil)
		return err
	})
	switch {
	case err != nil:
		return nil, l.store.Failure("checkpoints", err)
	case status == statusChanged:
		return found, nil
	case status == statusGone && l.isOpen():
		return lostRecordCheckpoints(), nil
	}
	return nil, idempotency.ErrClaimLost
}

// isOpen reports whether the claim is neither settled nor lost.
func (l *leaseClaim) isOpen() bool {
	l.settleMutex.Lock()
	defer l.settleMutex.Unlock()
	return l.currentState == claimOpen
}
