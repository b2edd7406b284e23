package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases gives package sqlstore the statements for claims and for operators.
type leases struct{ *Store }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (bool, error) {
	return l.writer.submitStep(ctx, adds, func(tx *transaction) error { return run(tx) })
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	_, err := l.writer.submitStep(ctx, false, func(tx *transaction) error { return run(tx) })
	return err
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return wrapFailure(step, err) }

// transaction runs the statements of steps. The store has one transaction at a time.
type transaction struct {
	space
	maxUserRecords int // 0 means no bound
	statements     *statements
	now            func() time.Time
}

// space is the limit and the use of bytes in the file. A limit of 0 means no limit.
type space struct{ limitBytes, usedBytes int64 }

// makeRoom deletes up to two expired records for each of adding new records, and measures the used space. So the size
// of the file is bounded by the records that count, and the deletion needs no additional wait for the disk.
func (tx *transaction) makeRoom(adding int) error {
	if adding > 0 {
		if _, err := tx.statements.trim.ExecContext(statementContext, tx.nowMicros(), 2*adding); err != nil {
			return err
		}
	}
	if tx.limitBytes == 0 {
		return nil
	}
	return tx.statements.used.QueryRowContext(statementContext).Scan(&tx.usedBytes)
}

func (tx *transaction) nowMicros() int64 { return tx.now().UnixMicro() }

// Read implements [sqlstore.Steps].
func (tx *transaction) Read(operation uuid.UUID) (*sqlstore.Row, error) {
	rows, err := tx.statements.read.QueryContext(statementContext, operation[:])
	if err != nil {
		return nil, err
	}
	seen, err := scanRow(rows)
	if err == nil {
		seen.Now = tx.nowMicros()
	}
	return seen, err
}

// ReadAndCount implements [sqlstore.CountingSteps].
func (tx *transaction) ReadAndCount(operation uuid.UUID, user string) (seen *sqlstore.Row, isUserFull bool, err error) {
	seen, err = tx.Read(operation)
	if err != nil || tx.maxUserRecords == 0 || seen.Exists() {
		return seen, false, err
	}
	row := tx.statements.userFull.QueryRowContext(statementContext, user, seen.Now, tx.maxUserRecords)
	return seen, isUserFull, row.Scan(&isUserFull)
}

// Put implements [sqlstore.Steps]. The stored record is still seen, because the transaction is the only writer.
func (tx *transaction) Put(operation uuid.UUID, seen, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	tx.usedBytes += int64(len(own.Names[0])+len(own.Names[1])+len(own.Names[2])+len(own.Response.V)) + recordOverhead
	now := tx.nowMicros()
	lapses := sql.NullInt64{Int64: now + sqlstore.Micros(lease), Valid: lease > 0}
	put, err := execChange(tx.statements.put, operation[:], own.Names[0], own.Names[1], own.Names[2], own.Attempt,
		own.Fingerprint, own.Token, own.Created, lapses, now+sqlstore.Micros(ttl), own.Response,
		seen.Counts() && !own.Response.Valid, entries, seen.Counts())
	if err == nil && !put {
		err = errNotPut
	}
	return put, err
}

var errNotPut = errors.New("a trigger has prevented the record from being stored")

// Extend implements [sqlstore.Steps].
func (tx *transaction) Extend(operation uuid.UUID, token []byte, lease time.Duration) (bool, error) {
	now := tx.nowMicros()
	return execChange(tx.statements.extend, operation[:], token, now, now+sqlstore.Micros(lease))
}

// Complete implements [sqlstore.Steps].
func (tx *transaction) Complete(operation uuid.UUID, token, response []byte, ttl time.Duration, size int) (bool, error) {
	now := tx.nowMicros()
	return execChange(tx.statements.complete, operation[:], token, now, now+sqlstore.Micros(ttl), response, size)
}

// Release implements [sqlstore.Steps].
func (tx *transaction) Release(operation uuid.UUID, token []byte, reason idempotency.EndReason, ttl time.Duration) (bool, error) {
	now := tx.nowMicros()
	return execChange(tx.statements.release, operation[:], token, now, now+sqlstore.Micros(ttl), reasonOrNull(reason))
}

// reasonOrNull returns the reason as a parameter. No reason is null.
func reasonOrNull(reason idempotency.EndReason) sql.NullString {
	return sql.NullString{String: string(reason), Valid: reason != ""}
}

// Abandon implements [sqlstore.Steps].
func (tx *transaction) Abandon(operation uuid.UUID, token []byte, reason idempotency.EndReason) (bool, error) {
	return execChange(tx.statements.abandon, operation[:], token, tx.nowMicros(), reasonOrNull(reason))
}

// Free implements [sqlstore.Steps].
func (tx *transaction) Free(operation uuid.UUID, token []byte, ttl time.Duration) (bool, error) {
	now := tx.nowMicros()
	return execChange(tx.statements.free, operation[:], token, now, now+sqlstore.Micros(ttl))
}

// Checkpoint implements [sqlstore.Steps].
func (tx *transaction) Checkpoint(operation uuid.UUID, token, entries []byte, before int) (bool, error) {
	return execChange(tx.statements.checkpoint, operation[:], token, tx.nowMicros(), entries, before)
}

// Checkpoints implements [sqlstore.Steps].
func (tx *transaction) Checkpoints(operation uuid.UUID, token []byte) (entries []byte, held bool, err error) {
	err = tx.statements.checkpoints.QueryRowContext(statementContext, operation[:], token, tx.nowMicros()).Scan(&entries)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return entries, err == nil, err
}

// See implements [sqlstore.Changes].
func (tx *transaction) See(operation uuid.UUID) (*sqlstore.Seen, error) {
	seen, err := querySeen(tx.statements.see, operation)
	if err == nil {
		seen.Now = tx.nowMicros()
	}
	return seen, err
}

// Forget implements [sqlstore.Changes]. The transaction is the only writer.
func (tx *transaction) Forget(operation uuid.UUID, _ *sqlstore.Seen) (bool, error) {
	return execChange(tx.statements.forget, operation[:])
}

// Resolve implements [sqlstore.Changes]. The transaction is the only writer.
func (tx *transaction) Resolve(operation uuid.UUID, _, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	return execChange(tx.statements.resolve, operation[:], own.Token, tx.nowMicros()+sqlstore.Micros(ttl), own.Response, own.Steps,
		own.Resolved)
}

// InDoubt implements [sqlstore.Changes]. A step runs again only after a rollback.
func (tx *transaction) InDoubt() bool { return false }

// recordOverhead estimates the bytes of a record besides names and response.
const recordOverhead = 300

// execChange runs a statement, and reports whether the statement has changed a record.
func execChange(stmt *sql.Stmt, args ...any) (bool, error) {
	return sqlstore.HasChanged(stmt.ExecContext(statementContext, args...))
}

// IsFull implements [sqlstore.Steps].
func (s *space) IsFull() bool { return s.limitBytes > 0 && s.usedBytes > s.limitBytes-s.limitBytes/16 }

// HasRoom implements [sqlstore.Steps]. If n bytes have room, HasRoom counts the bytes as used.
func (s *space) HasRoom(n int) bool {
	if s.limitBytes > 0 && s.usedBytes+int64(n) > s.limitBytes-s.limitBytes/8 {
		return false
	}
	s.usedBytes += int64(n)
	return true
}
