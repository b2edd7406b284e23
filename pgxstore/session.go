package pgxstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// use is one call of the handler. It may outlast the method that begins it, by the rows that are still to be read.
type use struct {
	of   *attempt
	ctx  context.Context
	over bool
}

// done ends the call.
func (u *use) done(err error) {
	if u.over {
		return
	}
	u.over = true
	if refusesWrites(err) {
		u.of.visit.unfit.Store(true)
	}
	u.of.Leave(u.outcome(err), err)
}

// outcome says what a call means for the transaction. One that was not made because its context is over undoes it, as one does
// that was interrupted: the handler may believe it was made, or take it for a refusal by the database.
func (u *use) outcome(err error) sqlstore.Outcome {
	over := u.ctx.Err()
	switch {
	case err == nil && u.of.status() == 'T':
		return sqlstore.Recovered
	case over != nil && errors.Is(err, over):
		return sqlstore.Ended
	case mayPass(err):
		return sqlstore.MayPass
	}
	return sqlstore.Stands
}

// openRows end the call that asked for them when they are closed.
type openRows struct {
	pgx.Rows
	use
}

func (r *openRows) Close() {
	r.Rows.Close()
	r.done(r.Err())
}

func (r *openRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.done(r.Err())
	}
	return more
}

// Scan closes the rows if it fails, as that of pgx does.
func (r *openRows) Scan(dest ...any) error { return r.closeIf(r.Rows.Scan(dest...)) }

func (r *openRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	return values, r.closeIf(err)
}

func (r *openRows) closeIf(err error) error {
	if err != nil {
		r.Close()
	}
	return err
}

// openRow ends the call when it is scanned.
type openRow struct {
	pgx.Row
	use
}

func (r *openRow) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	r.done(err)
	return err
}

// openBatch ends the call when it is closed.
type openBatch struct {
	pgx.BatchResults
	use
}

func (b *openBatch) Close() error {
	err := b.BatchResults.Close()
	b.done(err)
	return err
}

// refusedRows are the rows of a query that was not asked.
type refusedRows struct {
	pgx.Rows
	err error
}

func (r refusedRows) Err() error        { return r.err }
func (r refusedRows) Close()            {}
func (r refusedRows) Next() bool        { return false }
func (r refusedRows) Scan(...any) error { return r.err }

func (r refusedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// refusedBatch are the results of a batch that was not sent.
type refusedBatch struct {
	pgx.BatchResults
	err error
}

func (b refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b refusedBatch) Query() (pgx.Rows, error)         { return refusedRows{err: b.err}, b.err }
func (b refusedBatch) QueryRow() pgx.Row                { return refusedRows{err: b.err} }
func (b refusedBatch) Close() error                     { return b.err }
