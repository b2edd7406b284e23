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

// table is where steps in a transaction write rows. A row has a number.
type table interface {
	// write writes a row in a step, and returns the row that is the result of the step.
	write(ctx context.Context, claim idempotency.Claim, of idempotency.Key, row int) (result int, err error)

	// read returns the rows of a key.
	read(ctx context.Context, of idempotency.Key) (rows []int, err error)
}

// checkpointTx has a claim run a step whose result is the number of a row.
func checkpointTx(ctx context.Context, claim idempotency.Claim, variable any, row int, run func() error) (result int, err error) {
	stored, err := claim.(idempotency.TxCheckpointer).CheckpointTx(ctx, &idempotency.TxStep{
		Name: "write", Var: variable, Timeout: patience,
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

func (t postgresTable) write(ctx context.Context, claim idempotency.Claim, of idempotency.Key, row int) (int, error) {
	var tx pgx.Tx
	return checkpointTx(ctx, claim, &tx, row, func() error {
		_, err := tx.Exec(ctx, "INSERT INTO written VALUES ($1, $2)", of.User+"/"+of.ID, row)
		return err
	})
}

func (t postgresTable) read(ctx context.Context, of idempotency.Key) ([]int, error) {
	rows, err := t.pool.Query(ctx, "SELECT row FROM written WHERE key = $1", of.User+"/"+of.ID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// flawedTx is a transaction of a flawed store, which has one row.
type flawedTx struct{ row int }

func (f *flawed) write(ctx context.Context, claim idempotency.Claim, _ idempotency.Key, row int) (int, error) {
	var tx *flawedTx
	return checkpointTx(ctx, claim, &tx, row, func() error {
		tx.row = row
		return nil
	})
}

func (f *flawed) read(_ context.Context, of idempotency.Key) ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.written[of]), nil
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
	r := f.find(c.key, now)
	isOwn := r != nil && r.owner == c && r.Response == nil && !r.released
	commit := func() { f.written[c.key] = append(f.written[c.key], tx.row) }
	switch {
	case !isOwn && f.has("rows are not fenced"):
		commit()
		return data, nil
	case !isOwn:
		return nil, idempotency.ErrClaimLost
	case r.result != nil:
		if f.has("second rows are committed") {
			commit()
		}
		return r.result, nil
	}
	if !f.has("rows are lost") {
		commit()
	}
	if f.has("the result of a step comes later") {
		f.pause()
		if r.owner != c {
			return nil, idempotency.ErrClaimLost
		}
	}
	if !f.has("the result of a step is lost") {
		r.result = data
	}
	r.lease = now.Add(c.leaseDuration)
	r.ttl = later(r.ttl, r.lease)
	return data, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// The model asks for nothing else of a checkpointer.

func (c *flawedClaim) Checkpoint(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (c *flawedClaim) Checkpoints(context.Context) (map[string][]byte, error) { return nil, nil }
