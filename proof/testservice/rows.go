package testservice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Rows is a database in memory. A row is only a name. The transactions are of type *RowTx.
type Rows struct {
	mu        sync.Mutex
	rowCounts map[string]int
}

// NewRows returns an empty database.
func NewRows() *Rows { return &Rows{rowCounts: make(map[string]int)} }

// Begin begins a transaction.
func (r *Rows) Begin(ctx context.Context) (*RowTx, error) { return &RowTx{database: r}, ctx.Err() }

// Count returns the number of committed rows with a name.
func (r *Rows) Count(ctx context.Context, name string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rowCounts[name], ctx.Err()
}

func (r *Rows) addRows(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.rowCounts[name]++
	}
}

// RowTx is a transaction of [Rows], for a single goroutine.
type RowTx struct {
	database        *Rows
	writtenRows     []string
	storeCheckpoint func(ctx context.Context) error // nil: the transaction has no checkpoint
	hasEnded        bool
	hasFailed       bool
	isOwnedByStore  bool // only the store may commit
	writesAtOnce    bool // a bug: each row is committed when it is written
}

// errTxEnded is the error of a transaction that has ended.
var errTxEnded = errors.New("the transaction has ended")

// Write writes a row.
func (tx *RowTx) Write(ctx context.Context, name string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case tx.hasEnded:
		return errTxEnded
	}
	tx.writtenRows = append(tx.writtenRows, name)
	if tx.writesAtOnce {
		tx.database.addRows(name)
	}
	return nil
}

// Commit commits the rows and the checkpoint of a step. For a transaction that the store owns, Commit rolls back and
// returns an error.
func (tx *RowTx) Commit(ctx context.Context) error {
	if tx.isOwnedByStore {
		return errors.Join(tx.Rollback(ctx), errors.New("only the store commits"))
	}
	return tx.commitRows(ctx)
}

func (tx *RowTx) commitRows(ctx context.Context) error {
	if tx.hasEnded {
		return errTxEnded
	}
	tx.hasEnded = true
	if tx.hasFailed {
		return errors.New("the transaction has failed")
	}
	if tx.storeCheckpoint != nil {
		if err := tx.storeCheckpoint(ctx); err != nil {
			return err
		}
	}
	tx.database.addRows(tx.writtenRows...)
	return nil
}

// Rollback discards the rows.
func (tx *RowTx) Rollback(context.Context) error {
	if tx.hasEnded {
		return errTxEnded
	}
	tx.hasEnded = true
	return nil
}

// RowStore is a store whose claims implement [idempotency.TxCheckpointer] with transactions of [Rows]. Bug names a bug
// that RowStore imitates; an empty Bug means a correct store.
type RowStore struct {
	idempotency.Store
	Rows *Rows
	Bug  string

	connSlots chan struct{}
}

// NewRowStore returns a store that keeps its records in a memory store.
func NewRowStore(rows *Rows, bug string) *RowStore {
	return &RowStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Rows: rows, Bug: bug,
		connSlots: make(chan struct{}, 4),
	}
}

// Begin implements [idempotency.Store].
func (s *RowStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = &rowClaim{Checkpointer: claim.(idempotency.Checkpointer), rowStore: s, request: request}
	}
	return record, claim, err
}

func (s *RowStore) hasBug(bug string) bool { return s.Bug == bug }

type rowClaim struct {
	idempotency.Checkpointer
	rowStore  *RowStore
	request   idempotency.ClaimRequest
	currentTx *RowTx // transaction of the running step
	stepCount int    // steps that have run
}

// Extend implements [idempotency.Claim].
func (c *rowClaim) Extend(ctx context.Context, lease time.Duration) error {
	if c.rowStore.hasBug("renewal ends the transaction") && c.currentTx != nil {
		c.currentTx.hasEnded = true
	}
	return c.Checkpointer.Extend(ctx, lease)
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c *rowClaim) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
	s := c.rowStore
	variable, begins := step.Var.(**RowTx)
	given, joins := step.Tx.(*RowTx)
	switch {
	case begins && (ctx.Err() == nil || s.hasBug("ended context is not seen")):
		return c.runInOwnTx(ctx, step, variable)
	case begins:
		return nil, ctx.Err()
	case joins:
		return c.runInHandlerTx(ctx, step, given)
	case s.hasBug("other types are no error"):
		return step.Run()
	}
	return nil, fmt.Errorf("a %T, a %T: %w", step.Var, step.Tx, errors.ErrUnsupported)
}

// checkHold renews the lease, and returns an error if the claim has lost its key. If Extend has restored a lost record,
// checkHold releases the record and returns ErrClaimLost.
func (c *rowClaim) checkHold(ctx context.Context) error {
	err := c.Checkpointer.Extend(ctx, c.request.Lease)
	if errors.Is(err, idempotency.ErrRestored) && !c.rowStore.hasBug("forgotten record is made again") {
		_ = c.Release(ctx, idempotency.Release{TTL: 1})
		return idempotency.ErrClaimLost
	}
	return err
}

// runInOwnTx runs the step in a new transaction, and sets *variable to the transaction.
func (c *rowClaim) runInOwnTx(ctx context.Context, step *idempotency.TxStep, variable **RowTx) ([]byte, error) {
	s := c.rowStore
	if s.hasBug("one step at most") && c.stepCount > 0 {
		return nil, errors.New("not now")
	}
	if s.hasBug("concurrent steps are lost") && len(s.connSlots) > 0 {
		return []byte("lost"), nil
	}
	if s.hasBug("ended context is not seen") {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case s.connSlots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.hasBug("concurrent steps are lost") {
		time.Sleep(time.Millisecond)
	}
	tx := &RowTx{
		database: s.Rows, isOwnedByStore: !s.hasBug("Run can commit"), writesAtOnce: s.hasBug("rows are committed at once"),
	}
	*variable, c.currentTx = tx, tx
	c.stepCount++
	returned := false
	defer func() {
		if returned || !s.hasBug("panic keeps the connection") {
			<-s.connSlots
		}
		if !returned && s.hasBug("panic commits") {
			_ = tx.commitRows(ctx)
		}
		c.currentTx, tx.hasEnded = nil, !s.hasBug("transaction is left open")
	}()
	if s.hasBug("result is stored first") {
		_, _ = c.Checkpoint(ctx, step.Name, []byte("1"))
	}
	data, err := step.Run()
	returned = true
	switch {
	case s.hasBug("rows are lost"), s.hasBug("rows are committed at once"):
		tx.writtenRows = nil
	case s.hasBug("rows are committed alone"):
		return data, tx.commitRows(ctx)
	case err != nil && s.hasBug("error commits"):
		s.Rows.addRows(tx.writtenRows...)
		return nil, err
	case err != nil && s.hasBug("error is wrapped"):
		return nil, fmt.Errorf("step: %w", err)
	case err != nil:
		return nil, err
	case ctx.Err() != nil && s.hasBug("end of the context undoes"):
		return nil, ctx.Err()
	case tx.hasEnded && s.hasBug("end by Run is not noticed"):
		return data, nil
	case tx.hasEnded:
		return nil, errTxEnded
	}
	return c.commitStep(context.WithoutCancel(ctx), step, tx, data)
}

// commitStep stores data as the checkpoint of the step, and commits if the claim still holds its key.
func (c *rowClaim) commitStep(ctx context.Context, step *idempotency.TxStep, tx *RowTx, data []byte) ([]byte, error) {
	s := c.rowStore
	if err := c.checkHold(ctx); err != nil && !s.hasBug("not fenced") {
		return nil, err
	}
	if s.hasBug("results are cut") {
		data = data[:min(len(data), 64)]
	}
	stored, err := c.Checkpoint(ctx, step.Name, data)
	switch {
	case err != nil && !s.hasBug("not fenced"):
		return nil, err
	case bytes.Equal(stored, data) || s.hasBug("second rows are committed"):
		return stored, tx.commitRows(ctx)
	case s.hasBug("own result is returned"):
		return data, nil
	}
	return stored, nil
}

// runInHandlerTx runs the step in a transaction that the handler has begun.
func (c *rowClaim) runInHandlerTx(ctx context.Context, step *idempotency.TxStep, tx *RowTx) ([]byte, error) {
	s := c.rowStore
	if err := c.checkHold(ctx); err != nil && !s.hasBug("joined transaction is not fenced") {
		tx.hasFailed = true
		return nil, err
	}
	data, err := step.Run()
	if err != nil && !s.hasBug("joined error is lost") {
		return nil, err
	}
	keep := func(ctx context.Context) error {
		_, err := c.Checkpoint(ctx, step.Name, data)
		return err
	}
	if s.hasBug("joined result is stored at once") {
		_ = keep(ctx)
		return data, nil
	}
	if s.hasBug("joined transaction is committed at once") {
		return data, tx.commitRows(ctx)
	}
	if err := c.checkHold(ctx); err != nil && !s.hasBug("joined transaction is not fenced") {
		tx.hasFailed = true
		return nil, err
	}
	if !s.hasBug("joined result is lost") {
		tx.storeCheckpoint = keep
	}
	return data, nil
}
