package guarantees_test

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
)

// rowTable is a table where steps in a transaction write numbered rows.
type rowTable interface {
	// writeRow writes a row in a step, and returns the number that is the result of the step.
	writeRow(ctx context.Context, claim idempotency.Claim, of idempotency.Key, row int) (result int, err error)

	// readRowNumbers returns the numbers of the rows of a key.
	readRowNumbers(ctx context.Context, of idempotency.Key) (rows []int, err error)
}

// checkpointTx runs a step whose result is the number of a row.
func checkpointTx(ctx context.Context, claim idempotency.Claim, variable any, row int, run func() error) (result int, err error) {
	stored, err := claim.(idempotency.TxCheckpointer).CheckpointTx(ctx, &idempotency.TxStep{
		Name: "write", Var: variable, Timeout: callTimeout,
		Run: func() ([]byte, error) { return []byte(strconv.Itoa(row)), run() },
	})
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(stored))
}

// postgresTable is a table in the database of the store.
type postgresTable struct{ pool *pgxpool.Pool }

func newPostgresTable(ctx context.Context, pool *pgxpool.Pool) (postgresTable, error) {
	_, err := pool.Exec(ctx, "CREATE TABLE written (key text NOT NULL, row int NOT NULL); CREATE INDEX ON written (key)")
	return postgresTable{pool}, err
}

func (t postgresTable) writeRow(ctx context.Context, claim idempotency.Claim, of idempotency.Key, row int) (int, error) {
	var tx pgx.Tx
	return checkpointTx(ctx, claim, &tx, row, func() error {
		_, err := tx.Exec(ctx, "INSERT INTO written VALUES ($1, $2)", of.User+"/"+of.ID, row)
		return err
	})
}

func (t postgresTable) readRowNumbers(ctx context.Context, of idempotency.Key) ([]int, error) {
	rows, err := t.pool.Query(ctx, "SELECT row FROM written WHERE key = $1", of.User+"/"+of.ID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// flawedTx is a transaction of a flawedStore, with one row.
type flawedTx struct{ rowNumber int }

func (f *flawedStore) writeRow(ctx context.Context, claim idempotency.Claim, _ idempotency.Key, row int) (int, error) {
	var tx *flawedTx
	return checkpointTx(ctx, claim, &tx, row, func() error {
		tx.rowNumber = row
		return nil
	})
}

func (f *flawedStore) readRowNumbers(_ context.Context, of idempotency.Key) ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.rowsByKey[of]), nil
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c *flawedClaim) CheckpointTx(_ context.Context, step *idempotency.TxStep) ([]byte, error) {
	f, tx := c.store, new(flawedTx)
	*step.Var.(**flawedTx) = tx
	data, err := step.Run()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.findRecord(c.key, now)
	isOwn := r != nil && r.ownerClaim == c && r.Response == nil && !r.isReleased
	commit := func() { f.rowsByKey[c.key] = append(f.rowsByKey[c.key], tx.rowNumber) }
	switch {
	case !isOwn && f.hasBug("rows are not fenced"):
		commit()
		return data, nil
	case !isOwn:
		return nil, idempotency.ErrClaimLost
	case r.stepResult != nil:
		if f.hasBug("second rows are committed") {
			commit()
		}
		return r.stepResult, nil
	}
	if !f.hasBug("rows are lost") {
		commit()
	}
	if f.hasBug("the result of a step is stored too late") {
		f.yieldLock()
		if r.ownerClaim != c {
			return nil, idempotency.ErrClaimLost
		}
	}
	if !f.hasBug("the result of a step is lost") {
		r.stepResult = data
	}
	r.leaseEnd = now.Add(c.leaseDuration)
	r.expiry = laterTime(r.expiry, r.leaseEnd)
	return data, nil
}

func laterTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// The histories call no other methods of a checkpointer.

func (c *flawedClaim) Checkpoint(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (c *flawedClaim) Checkpoints(context.Context) (map[string][]byte, error) { return nil, nil }
