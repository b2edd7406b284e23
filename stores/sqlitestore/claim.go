package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases are what package sqlstore makes claims by, and changes records for operators.
type leases struct{ *Store }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (bool, error) {
	return l.writer.do(ctx, adds, func(tx *transaction) error { return run(tx) })
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	_, err := l.writer.do(ctx, false, func(tx *transaction) error { return run(tx) })
	return err
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return failure(step, err) }

// transaction is what a step may do. There is one at a time.
type transaction struct {
	space
	sql *statements
	now func() time.Time
}

// space is how many bytes of the file may be used, and how many are. A limit of 0 is none.
type space struct{ limit, used int64 }

// prepare makes room for records that are added: for each, up to two are deleted that have expired. So the file is
// bounded by the records that count, and nothing waits for the disk that would not wait anyway.
func (tx *transaction) prepare(adding int) error {
	if adding > 0 {
		if _, err := tx.sql.trim.ExecContext(untouched, tx.micros(), 2*adding); err != nil {
			return err
		}
	}
	if tx.limit == 0 {
		return nil
	}
	return tx.sql.used.QueryRowContext(untouched).Scan(&tx.used)
}

func (tx *transaction) micros() int64 { return tx.now().UnixMicro() }

// Read implements [sqlstore.Steps].
func (tx *transaction) Read(digest []byte) (*sqlstore.Row, error) {
	rows, err := tx.sql.read.QueryContext(untouched, digest)
	if err != nil {
		return nil, err
	}
	seen, err := read(rows)
	if err == nil {
		seen.Now = tx.micros()
	}
	return seen, err
}

// Put implements [sqlstore.Steps]. Nobody else writes in the meantime.
func (tx *transaction) Put(digest []byte, seen, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	tx.used += int64(len(own.Names[0])+len(own.Names[1])+len(own.Names[2])+len(own.Response.V)) + overhead
	now := tx.micros()
	lapses := sql.NullInt64{Int64: now + sqlstore.Micros(lease), Valid: lease > 0}
	put, err := change(tx.sql.put, digest, own.Names[0], own.Names[1], own.Names[2], own.Attempt,
		own.Fingerprint, own.Token, own.Created, lapses, now+sqlstore.Micros(ttl), own.Response,
		seen.Counts() && !own.Response.Valid, entries, seen.Counts())
	if err == nil && !put {
		err = errNotPut
	}
	return put, err
}

var errNotPut = errors.New("a trigger has kept the record from being stored")

// Extend implements [sqlstore.Steps].
func (tx *transaction) Extend(digest, token []byte, lease time.Duration) (bool, error) {
	now := tx.micros()
	return change(tx.sql.extend, digest, token, now, now+sqlstore.Micros(lease))
}

// Complete implements [sqlstore.Steps].
func (tx *transaction) Complete(digest, token, response []byte, ttl time.Duration, size int) (bool, error) {
	now := tx.micros()
	return change(tx.sql.complete, digest, token, now, now+sqlstore.Micros(ttl), response, size)
}

// Release implements [sqlstore.Steps].
func (tx *transaction) Release(digest, token []byte, ttl time.Duration) (bool, error) {
	now := tx.micros()
	return change(tx.sql.release, digest, token, now, now+sqlstore.Micros(ttl))
}

// Free implements [sqlstore.Steps].
func (tx *transaction) Free(digest, token []byte, ttl time.Duration) (bool, error) {
	now := tx.micros()
	return change(tx.sql.free, digest, token, now, now+sqlstore.Micros(ttl))
}

// Checkpoint implements [sqlstore.Steps].
func (tx *transaction) Checkpoint(digest, token, entries []byte, before int) (bool, error) {
	return change(tx.sql.checkpoint, digest, token, tx.micros(), entries, before)
}

// Checkpoints implements [sqlstore.Steps].
func (tx *transaction) Checkpoints(digest, token []byte) (entries []byte, held bool, err error) {
	err = tx.sql.checkpoints.QueryRowContext(untouched, digest, token, tx.micros()).Scan(&entries)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return entries, err == nil, err
}

// See implements [sqlstore.Changes].
func (tx *transaction) See(digest []byte) (*sqlstore.Seen, error) {
	seen, err := see(tx.sql.see, digest)
	if err == nil {
		seen.Now = tx.micros()
	}
	return seen, err
}

// Forget implements [sqlstore.Changes]. Nobody else writes in the meantime.
func (tx *transaction) Forget(digest []byte, _ *sqlstore.Seen) (bool, error) {
	return change(tx.sql.forget, digest)
}

// Resolve implements [sqlstore.Changes]. Nobody else writes in the meantime.
func (tx *transaction) Resolve(digest []byte, _, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	return change(tx.sql.resolve, digest, own.Token, tx.micros()+sqlstore.Micros(ttl), own.Response, own.Steps,
		own.Resolved)
}

// InDoubt implements [sqlstore.Changes]: a step runs again only if its transaction was rolled back.
func (tx *transaction) InDoubt() bool { return false }

// overhead estimates what a record takes beyond its names and its response.
const overhead = 300

// change runs a statement that changes a record, and reports whether it has.
func change(stmt *sql.Stmt, args ...any) (bool, error) {
	result, err := stmt.ExecContext(untouched, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// IsFull implements [sqlstore.Steps].
func (s *space) IsFull() bool { return s.limit > 0 && s.used > s.limit-s.limit/16 }

// HasRoom implements [sqlstore.Steps]. It counts the bytes if there is room.
func (s *space) HasRoom(n int) bool {
	if s.limit > 0 && s.used+int64(n) > s.limit-s.limit/8 {
		return false
	}
	s.used += int64(n)
	return true
}
