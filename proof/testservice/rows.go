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

// Rows is a database that has nothing but the names of rows. Its transactions are of type *RowTx.
type Rows struct {
	mu        sync.Mutex
	committed map[string]int
}

// NewRows returns an empty database.
func NewRows() *Rows { return &Rows{committed: make(map[string]int)} }

// Begin begins a transaction.
func (r *Rows) Begin(ctx context.Context) (*RowTx, error) { return &RowTx{rows: r}, ctx.Err() }

// Count returns how many rows of a name are committed.
func (r *Rows) Count(ctx context.Context, name string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.committed[name], ctx.Err()
}

func (r *Rows) add(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.committed[name]++
	}
}

// RowTx is a transaction. It is for one goroutine.
type RowTx struct {
	rows    *Rows
	written []string
	keep    func(ctx context.Context) error // stores a checkpoint; nil: there is none
	ended   bool
	failed  bool
	owned   bool // only the store commits it
	atOnce  bool // a fault: what is written is permanent at once
}

// errTxEnded is what a transaction says that has ended.
var errTxEnded = errors.New("the transaction has ended")

// Write writes a row.
func (tx *RowTx) Write(ctx context.Context, name string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case tx.ended:
		return errTxEnded
	}
	tx.written = append(tx.written, name)
	if tx.atOnce {
		tx.rows.add(name)
	}
	return nil
}

// Commit makes the rows permanent, and the checkpoint of a step. The transaction of a store is rolled back.
func (tx *RowTx) Commit(ctx context.Context) error {
	if tx.owned {
		return errors.Join(tx.Rollback(ctx), errors.New("only the store commits"))
	}
	return tx.commit(ctx)
}

func (tx *RowTx) commit(ctx context.Context) error {
	if tx.ended {
		return errTxEnded
	}
	tx.ended = true
	if tx.failed {
		return errors.New("the transaction has failed")
	}
	if tx.keep != nil {
		if err := tx.keep(ctx); err != nil {
			return err
		}
	}
	tx.rows.add(tx.written...)
	return nil
}

// Rollback undoes the rows.
func (tx *RowTx) Rollback(context.Context) error {
	if tx.ended {
		return errTxEnded
	}
	tx.ended = true
	return nil
}

// RowStore is a store whose claims are [idempotency.TxCheckpointer]s with the transactions of a database. Bug names a fault in
// its code.
type RowStore struct {
	idempotency.Store
	Rows *Rows
	Bug  string

	conns chan struct{}
}

// NewRowStore returns a store on a memory store.
func NewRowStore(rows *Rows, bug string) *RowStore {
	return &RowStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Rows: rows, Bug: bug, conns: make(chan struct{}, 4),
	}
}

// Begin implements [idempotency.Store].
func (s *RowStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = &rowClaim{Checkpointer: claim.(idempotency.Checkpointer), store: s, request: request}
	}
	return record, claim, err
}

func (s *RowStore) has(bug string) bool { return s.Bug == bug }

type rowClaim struct {
	idempotency.Checkpointer
	store   *RowStore
	request idempotency.ClaimRequest
	tx      *RowTx // of the step that runs
	steps   int    // that have run
}

// Extend implements [idempotency.Claim].
func (c *rowClaim) Extend(ctx context.Context, lease time.Duration) error {
	if c.store.has("renewal ends the transaction") && c.tx != nil {
		c.tx.ended = true
	}
	return c.Checkpointer.Extend(ctx, lease)
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c *rowClaim) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
	s := c.store
	variable, begins := step.Var.(**RowTx)
	given, joins := step.Tx.(*RowTx)
	switch {
	case begins && (ctx.Err() == nil || s.has("ended context is not seen")):
		return c.runIn(ctx, step, variable)
	case begins:
		return nil, ctx.Err()
	case joins:
		return c.join(ctx, step, given)
	case s.has("other types are no error"):
		return step.Run()
	}
	return nil, fmt.Errorf("a %T, a %T: %w", step.Var, step.Tx, errors.ErrUnsupported)
}

// holds reports whether the claim still has its key. A record that is gone is not made again.
func (c *rowClaim) holds(ctx context.Context) error {
	err := c.Checkpointer.Extend(ctx, c.request.Lease)
	if errors.Is(err, idempotency.ErrRestored) && !c.store.has("forgotten record is made again") {
		_ = c.Release(ctx, 1)
		return idempotency.ErrClaimLost
	}
	return err
}

func (c *rowClaim) runIn(ctx context.Context, step *idempotency.TxStep, variable **RowTx) ([]byte, error) {
	s := c.store
	if s.has("one step at most") && c.steps > 0 {
		return nil, errors.New("not now")
	}
	if s.has("concurrent steps are lost") && len(s.conns) > 0 {
		return []byte("lost"), nil
	}
	if s.has("ended context is not seen") {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case s.conns <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.has("concurrent steps are lost") {
		time.Sleep(time.Millisecond)
	}
	tx := &RowTx{rows: s.Rows, owned: !s.has("Run can commit"), atOnce: s.has("rows are committed at once")}
	*variable, c.tx = tx, tx
	c.steps++
	returned := false
	defer func() {
		if returned || !s.has("panic keeps the connection") {
			<-s.conns
		}
		if !returned && s.has("panic commits") {
			_ = tx.commit(ctx)
		}
		c.tx, tx.ended = nil, !s.has("transaction is left open")
	}()
	if s.has("result is stored first") {
		_, _ = c.Checkpoint(ctx, step.Name, []byte("1"))
	}
	data, err := step.Run()
	returned = true
	switch {
	case s.has("rows are lost"), s.has("rows are committed at once"):
		tx.written = nil
	case s.has("rows are committed alone"):
		return data, tx.commit(ctx)
	case err != nil && s.has("error commits"):
		s.Rows.add(tx.written...)
		return nil, err
	case err != nil && s.has("error is wrapped"):
		return nil, fmt.Errorf("step: %w", err)
	case err != nil:
		return nil, err
	case ctx.Err() != nil && s.has("end of the context undoes"):
		return nil, ctx.Err()
	case tx.ended && s.has("end by Run is not noticed"):
		return data, nil
	case tx.ended:
		return nil, errTxEnded
	}
	return c.commit(context.WithoutCancel(ctx), step, tx, data)
}

// commit stores data and commits, if the claim holds its key.
func (c *rowClaim) commit(ctx context.Context, step *idempotency.TxStep, tx *RowTx, data []byte) ([]byte, error) {
	s := c.store
	if err := c.holds(ctx); err != nil && !s.has("not fenced") {
		return nil, err
	}
	if s.has("results are cut") {
		data = data[:min(len(data), 64)]
	}
	stored, err := c.Checkpoint(ctx, step.Name, data)
	switch {
	case err != nil && !s.has("not fenced"):
		return nil, err
	case bytes.Equal(stored, data) || s.has("second rows are committed"):
		return stored, tx.commit(ctx)
	case s.has("own result is returned"):
		return data, nil
	}
	return stored, nil
}

// join runs the step in the transaction of a handler.
func (c *rowClaim) join(ctx context.Context, step *idempotency.TxStep, tx *RowTx) ([]byte, error) {
	s := c.store
	if err := c.holds(ctx); err != nil && !s.has("joined transaction is not fenced") {
		tx.failed = true
		return nil, err
	}
	data, err := step.Run()
	if err != nil && !s.has("joined error is lost") {
		return nil, err
	}
	keep := func(ctx context.Context) error {
		_, err := c.Checkpoint(ctx, step.Name, data)
		return err
	}
	if s.has("joined result is stored at once") {
		_ = keep(ctx)
		return data, nil
	}
	if s.has("joined transaction is committed at once") {
		return data, tx.commit(ctx)
	}
	if err := c.holds(ctx); err != nil && !s.has("joined transaction is not fenced") {
		tx.failed = true
		return nil, err
	}
	if !s.has("joined result is lost") {
		tx.keep = keep
	}
	return data, nil
}
