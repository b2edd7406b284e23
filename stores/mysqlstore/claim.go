package mysqlstore

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
type leases struct{ *Table }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, _ bool, run func(sqlstore.Steps) error) (begun bool, err error) {
	return l.runSteps(ctx, func(s *steps) error { return run(s) })
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	_, err := l.runSteps(ctx, func(s *steps) error { return run(s) })
	return err
}

func (l leases) runSteps(ctx context.Context, run func(*steps) error) (begun bool, err error) {
	s := &steps{Table: l.Table, ctx: ctx}
	err = l.retryStep(ctx, func() error {
		err := run(s)
		if refusesWrites(err) {
			l.dropReadOnly(ctx)
		}
		return err
	})
	return err == nil || s.mayHaveChanged, err
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return wrapFailure(step, err) }

// steps runs the statements of one step.
type steps struct {
	*Table
	ctx            context.Context
	mayHaveChanged bool // a statement has changed a record, or its reply was lost
}

// Read implements [sqlstore.Steps].
func (s *steps) Read(operation uuid.UUID) (*sqlstore.Row, error) {
	return s.queryRow("read", []any{hexDigits(operation[:])})
}

// queryRow returns the record that the statement of a file reads. The columns before those of the record are scanned to more.
func (s *steps) queryRow(file string, args []any, more ...any) (*sqlstore.Row, error) {
	stmt, err := s.statements.prepare(s.ctx, file)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(s.ctx, args...)
	if err != nil {
		return nil, err
	}
	row, largest, err := scanCommittedRow(rows, more...)
	if err == nil {
		s.maxPacket.Store(largest)
	}
	return row, err
}

// ReadAndCount implements [sqlstore.CountingSteps].
func (s *steps) ReadAndCount(operation uuid.UUID, user string) (seen *sqlstore.Row, isUserFull bool, err error) {
	bound := s.opts.MaxUserRecords
	if bound == 0 {
		seen, err = s.Read(operation)
		return seen, false, err
	}
	digits := hexDigits([]byte(user))
	seen, err = s.queryRow("read_counted", []any{digits, digits, bound, bound, hexDigits(operation[:])}, &isUserFull)
	return seen, isUserFull, err
}

// Put implements [sqlstore.Steps].
func (s *steps) Put(operation uuid.UUID, seen, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	names := own.Names
	args := []any{hexDigits([]byte(names[0])), hexDigits([]byte(names[1])), hexDigits([]byte(names[2])), own.Attempt,
		hexDigits(own.Fingerprint), hexDigits(own.Token), own.Created, leaseMicros(lease), sqlstore.Micros(ttl), hexDigits(own.Response.V),
		responseSize(own.Response)}
	if seen.Found {
		keepsSteps := seen.Counts() && !own.Response.Valid
		return s.changeRecord("replace", append(args, keepsSteps, hexDigits(entries), seen.Counts(),
			hexDigits(operation[:]), hexDigits(seen.Token), seen.Lease, seen.Expires, !seen.Response.Valid)...)
	}
	began := time.Now()
	put, err := s.changeRecord("insert", append(append([]any{hexDigits(operation[:])}, args...), hexDigits(entries))...)
	if isDuplicate(err) {
		return false, nil
	}
	if put && lease > 0 && time.Since(began) > lease/10 {
		// The statement has waited, so the lease has begun too early: renew the lease. If another attempt has taken the key over
		// meanwhile, Extend returns false, as for a record that was not inserted.
		return s.Extend(operation, own.Token, lease)
	}
	return put, err
}

// Extend implements [sqlstore.Steps].
func (s *steps) Extend(operation uuid.UUID, token []byte, lease time.Duration) (bool, error) {
	micros := sqlstore.Micros(lease)
	return s.changeRecord("extend", micros, micros, hexDigits(operation[:]), hexDigits(token))
}

// Complete implements [sqlstore.Steps].
func (s *steps) Complete(operation uuid.UUID, token, response []byte, ttl time.Duration, size int) (bool, error) {
	return s.changeRecord("complete", sqlstore.Micros(ttl), hexDigits(response), len(response), hexDigits(operation[:]), hexDigits(token), size)
}

// Release implements [sqlstore.Steps].
func (s *steps) Release(operation uuid.UUID, token []byte, reason idempotency.EndReason, ttl time.Duration) (bool, error) {
	return s.changeRecord("release", sqlstore.Micros(ttl), reasonDigits(reason), hexDigits(operation[:]), hexDigits(token))
}

// reasonDigits returns the reason as a parameter. No reason is null.
func reasonDigits(reason idempotency.EndReason) []byte {
	if reason == "" {
		return nil
	}
	return hexDigits([]byte(reason))
}

// Abandon implements [sqlstore.Steps].
func (s *steps) Abandon(operation uuid.UUID, token []byte, reason idempotency.EndReason) (bool, error) {
	return s.changeRecord("abandon", reasonDigits(reason), hexDigits(operation[:]), hexDigits(token))
}

// Free implements [sqlstore.Steps].
func (s *steps) Free(operation uuid.UUID, token []byte, ttl time.Duration) (bool, error) {
	return s.changeRecord("free", sqlstore.Micros(ttl), hexDigits(operation[:]), hexDigits(token))
}

// Checkpoint implements [sqlstore.Steps]. Checkpoint refuses entries above the packet size, because the
// server would store null instead.
func (s *steps) Checkpoint(operation uuid.UUID, token, entries []byte, before int) (bool, error) {
	if !s.HasRoom(len(entries)) {
		return false, idempotency.ErrStoreFull
	}
	return s.changeRecord("checkpoint", hexDigits(entries[before:]), hexDigits(operation[:]), hexDigits(token), before)
}

// Checkpoints implements [sqlstore.Steps].
func (s *steps) Checkpoints(operation uuid.UUID, token []byte) (entries []byte, held bool, err error) {
	stmt, err := s.statements.prepare(s.ctx, "checkpoints")
	if err != nil {
		return nil, false, err
	}
	err = stmt.QueryRowContext(s.ctx, hexDigits(operation[:]), hexDigits(token)).Scan(&entries)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return entries, err == nil, err
}

// See implements [sqlstore.Changes].
func (s *steps) See(operation uuid.UUID) (*sqlstore.Seen, error) {
	v := values{"{operation}", hexLiteral(operation[:])}
	rows, err := s.db.QueryContext(s.ctx, v.fillIn(s.opts.statement("see")))
	if err != nil {
		return nil, err
	}
	var checkpoints, resolved, ended []byte
	row, largest, err := scanCommittedRow(rows, &checkpoints, &resolved, &ended)
	if err != nil {
		return nil, err
	}
	s.maxPacket.Store(largest)
	return &sqlstore.Seen{Row: *row, Steps: checkpoints, Resolved: resolved, Ended: ended}, nil
}

// Forget implements [sqlstore.Changes].
func (s *steps) Forget(operation uuid.UUID, seen *sqlstore.Seen) (bool, error) {
	return s.changeUnlockedRecord(operation, "forget", hexDigits(operation[:]), hexDigits(seen.Token), seen.Lease, seen.Expires, !seen.Response.Valid)
}

// Resolve implements [sqlstore.Changes].
func (s *steps) Resolve(operation uuid.UUID, seen, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	if !s.HasRoom(len(own.Response.V) + len(own.Steps) + len(own.Resolved)) {
		return false, idempotency.ErrStoreFull
	}
	return s.changeUnlockedRecord(operation, "resolve", hexDigits(own.Token), sqlstore.Micros(ttl), hexDigits(own.Response.V),
		responseSize(own.Response), hexDigits(own.Steps), hexDigits(own.Resolved),
		hexDigits(operation[:]), hexDigits(seen.Token), seen.Lease, seen.Expires, len(seen.Steps))
}

// InDoubt implements [sqlstore.Changes].
func (s *steps) InDoubt() bool { return s.mayHaveChanged }

// IsFull implements [sqlstore.Steps]. The server itself refuses an insert into a full table.
func (s *steps) IsFull() bool { return false }

// HasRoom implements [sqlstore.Steps]. The server closes a connection that sends more than a packet.
func (s *steps) HasRoom(n int) bool { return fitsPacket(n, s.maxPacket.Load()) }

// fitsPacket reports whether a statement with a response of n bytes fits into a packet. All bytes are sent as two hexadecimal digits.
func fitsPacket(n int, packet int64) bool {
	const besides = 8 << 10 // more than the rest of the statement, in which names take up to 6 KB
	return 2*int64(n)+besides <= packet
}

// responseSize returns the size of a response in bytes, or null for none.
func responseSize(response sql.Null[[]byte]) sql.NullInt64 {
	return sql.NullInt64{Int64: int64(len(response.V)), Valid: response.Valid}
}

// leaseMicros returns the duration of a lease in microseconds, or null for none.
func leaseMicros(lease time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: sqlstore.Micros(lease), Valid: lease > 0}
}

// changeRecord runs the statement of a file, and reports whether the statement has changed a record.
func (s *steps) changeRecord(file string, args ...any) (bool, error) {
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	stmt, err := s.statements.prepare(s.ctx, file)
	if err != nil {
		return false, err
	}
	result, err := stmt.ExecContext(s.ctx, args...)
	if err != nil {
		s.mayHaveChanged = s.mayHaveChanged || !isAnswer(err)
		return false, err
	}
	n, err := result.RowsAffected()
	s.mayHaveChanged = s.mayHaveChanged || n > 0
	return n > 0, err
}

// changeUnlockedRecord is changeRecord for operators. If the transaction of a step has the record locked, changeUnlockedRecord
// returns a conflict at once instead of waiting for that transaction.
func (s *steps) changeUnlockedRecord(operation uuid.UUID, file string, args ...any) (changed bool, err error) {
	inDoubt, err := s.inTransaction(s.ctx, []string{"START TRANSACTION"}, func(tx transaction) (commit bool, err error) {
		rows, err := tx.queryFile(s.ctx, "lock", hexDigits(operation[:]))
		if err != nil {
			return false, err
		}
		found := rows.Next()
		if err := errors.Join(rows.Close(), rows.Err()); err != nil || !found {
			return false, err
		}
		changed, err = tx.execFile(s.ctx, file, args...)
		return changed, err
	})
	s.mayHaveChanged = s.mayHaveChanged || inDoubt && !isAnswer(err)
	return err == nil && changed, err
}
