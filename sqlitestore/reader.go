package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// readers are connections that read records. They neither wait for the writer nor keep it waiting.
type readers struct {
	idle   chan *reader
	closed chan struct{} // closed when no more reading is to begin
}

type reader struct {
	conn *connection
	read *sql.Stmt
}

// newReaders returns n connections of db.
func newReaders(db *sql.DB, n int, closed chan struct{}) (*readers, error) {
	rs := &readers{make(chan *reader, n), closed}
	for range n {
		r := new(reader)
		var err error
		if r.conn, err = connect(db, map[string]**sql.Stmt{statement("read"): &r.read}); err != nil {
			for range len(rs.idle) {
				err = errors.Join(err, (<-rs.idle).conn.Close())
			}
			return nil, err
		}
		rs.idle <- r
	}
	return rs, nil
}

// read returns the record with a digest, or nil.
func (rs *readers) read(ctx context.Context, digest []byte) (*row, error) {
	r, err := rs.take(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { rs.idle <- r }()
	for {
		rows, err := r.read.QueryContext(untouched, digest)
		if err == nil {
			var found *row
			if found, err = read(rows); err == nil {
				return found, nil
			}
		}
		if !isBusy(err) || ctx.Err() != nil { // busy: another process repairs what a death has left
			return nil, err
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
