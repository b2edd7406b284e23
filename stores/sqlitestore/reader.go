package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// readers are connections for reading records. A reader and the writer never wait for each other.
type readers struct {
	idleReaders  chan *reader
	closeStarted chan struct{} // closed when Close starts, and no new read may begin
}

type reader struct {
	conn                        *connection
	readStatement, seeStatement *sql.Stmt
}

// newReaders opens n connections of db for reading.
func newReaders(db *sql.DB, n int, closed chan struct{}) (*readers, error) {
	rs := &readers{make(chan *reader, n), closed}
	for range n {
		r := new(reader)
		var err error
		texts := map[string]**sql.Stmt{statement("read"): &r.readStatement, statement("see"): &r.seeStatement}
		if r.conn, err = openConnection(db, texts); err != nil {
			for range len(rs.idleReaders) {
				err = errors.Join(err, (<-rs.idleReaders).conn.Close())
			}
			return nil, err
		}
		rs.idleReaders <- r
	}
	return rs, nil
}

// readRow returns the record of operation. Without a record, Found of the row is false.
func (rs *readers) readRow(ctx context.Context, operation uuid.UUID) (seen *sqlstore.Row, err error) {
	err = rs.withReader(ctx, func(r *reader) error {
		rows, err := r.readStatement.QueryContext(statementContext, operation[:])
		if err == nil {
			seen, err = scanRow(rows)
		}
		return err
	})
	return seen, err
}

// readSeen returns the record of operation as operators see the record.
func (rs *readers) readSeen(ctx context.Context, operation uuid.UUID) (seen *sqlstore.Seen, err error) {
	err = rs.withReader(ctx, func(r *reader) error {
		seen, err = querySeen(r.seeStatement, operation)
		return err
	})
	return seen, err
}

// withReader calls read with an idle reader, and repeats read while the file is busy.
func (rs *readers) withReader(ctx context.Context, read func(r *reader) error) error {
	r, err := rs.takeReader(ctx)
	if err != nil {
		return err
	}
	defer func() { rs.idleReaders <- r }()
	for {
		err := read(r)
		if !isBusy(err) || ctx.Err() != nil { // busy: a process is recovering the log of a dead process
			return err
		}
		pauseBriefly()
	}
}

// takeReader waits for an idle reader.
func (rs *readers) takeReader(ctx context.Context) (*reader, error) {
	select {
	case <-rs.closeStarted:
		return nil, ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case r := <-rs.idleReaders:
		return r, nil
	case <-rs.closeStarted:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
}

// closeAll waits for running reads, and closes the connections.
func (rs *readers) closeAll() (err error) {
	for range cap(rs.idleReaders) {
		err = errors.Join(err, (<-rs.idleReaders).conn.Close())
	}
	return err
}

// querySeen returns the record found by stmt, with checkpoints and resolution.
func querySeen(stmt *sql.Stmt, operation uuid.UUID) (*sqlstore.Seen, error) {
	rows, err := stmt.QueryContext(statementContext, operation[:])
	if err != nil {
		return nil, err
	}
	var checkpoints, resolved, ended []byte
	row, err := scanRow(rows, &checkpoints, &resolved, &ended)
	if err != nil {
		return nil, err
	}
	return &sqlstore.Seen{Row: *row, Steps: checkpoints, Resolved: resolved, Ended: ended}, nil
}

// scanRow returns the record found by a query. The columns before the columns of the record are scanned to more.
func scanRow(rows *sql.Rows, more ...any) (seen *sqlstore.Row, err error) {
	defer func() {
		if closed := rows.Close(); err == nil {
			err = closed
		}
	}()
	seen = new(sqlstore.Row)
	if !rows.Next() {
		return seen, rows.Err()
	}
	if err := rows.Scan(append(more, seen.Columns()...)...); err != nil {
		return nil, fmt.Errorf("%w: %w", idempotency.ErrRecordInvalid, err)
	}
	seen.Found = true
	return seen, nil
}
