package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// readers are connections that read records. They neither wait for the writer nor keep it waiting.
type readers struct {
	idle   chan *reader
	closed chan struct{} // closed when no more reading is to begin
}

type reader struct {
	conn      *connection
	read, see *sql.Stmt
}

// newReaders returns n connections of db.
func newReaders(db *sql.DB, n int, closed chan struct{}) (*readers, error) {
	rs := &readers{make(chan *reader, n), closed}
	for range n {
		r := new(reader)
		var err error
		texts := map[string]**sql.Stmt{statement("read"): &r.read, statement("see"): &r.see}
		if r.conn, err = connect(db, texts); err != nil {
			for range len(rs.idle) {
				err = errors.Join(err, (<-rs.idle).conn.Close())
			}
			return nil, err
		}
		rs.idle <- r
	}
	return rs, nil
}

// read returns the record with a digest. It need not have been found.
func (rs *readers) read(ctx context.Context, digest []byte) (seen *sqlstore.Row, err error) {
	err = rs.do(ctx, func(r *reader) error {
		rows, err := r.read.QueryContext(untouched, digest)
		if err == nil {
			seen, err = read(rows)
		}
		return err
	})
	return seen, err
}

// see returns what people are told of the record with a digest.
func (rs *readers) see(ctx context.Context, digest []byte) (seen *sqlstore.Seen, err error) {
	err = rs.do(ctx, func(r *reader) error {
		seen, err = see(r.see, digest)
		return err
	})
	return seen, err
}

// do reads by a connection that is idle.
func (rs *readers) do(ctx context.Context, read func(r *reader) error) error {
	r, err := rs.take(ctx)
	if err != nil {
		return err
	}
	defer func() { rs.idle <- r }()
	for {
		err := read(r)
		if !isBusy(err) || ctx.Err() != nil { // busy: another process repairs what a death has left
			return err
		}
		pause()
	}
}

func (rs *readers) take(ctx context.Context) (*reader, error) {
	select {
	case <-rs.closed:
		return nil, ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case r := <-rs.idle:
		return r, nil
	case <-rs.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
}

// close waits for those that read.
func (rs *readers) close() (err error) {
	for range cap(rs.idle) {
		err = errors.Join(err, (<-rs.idle).conn.Close())
	}
	return err
}

// see returns the record that a statement finds by a digest, with its checkpoints and how it was resolved.
func see(stmt *sql.Stmt, digest []byte) (*sqlstore.Seen, error) {
	rows, err := stmt.QueryContext(untouched, digest)
	if err != nil {
		return nil, err
	}
	var checkpoints, resolved []byte
	row, err := read(rows, &checkpoints, &resolved)
	if err != nil {
		return nil, err
	}
	return &sqlstore.Seen{Row: *row, Steps: checkpoints, Resolved: resolved}, nil
}

// read returns the record that a query finds. More is where to scan the columns in front of it to.
func read(rows *sql.Rows, more ...any) (seen *sqlstore.Row, err error) {
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
