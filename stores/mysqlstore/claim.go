package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases are what package sqlstore makes claims by, and changes records for operators.
type leases struct{ *Table }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, _ bool, run func(sqlstore.Steps) error) (begun bool, err error) {
	return l.do(ctx, func(s *steps) error { return run(s) })
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	_, err := l.do(ctx, func(s *steps) error { return run(s) })
	return err
}

func (l leases) do(ctx context.Context, run func(*steps) error) (begun bool, err error) {
	s := &steps{Table: l.Table, ctx: ctx}
	err = l.retry(ctx, func() error {
		err := run(s)
		if refusesWrites(err) {
			l.dropReadOnly(ctx)
		}
		return err
	})
	return err == nil || s.changed, err
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return failure(step, err) }

// steps are the statements of a step.
type steps struct {
	*Table
	ctx     context.Context
	changed bool // a statement has changed a record, or may have because it was not answered
}

// Read implements [sqlstore.Steps].
func (s *steps) Read(digest []byte) (*sqlstore.Row, error) {
	stmt, err := s.statements.get(s.ctx, "read")
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(s.ctx, digits(digest))
	if err != nil {
		return nil, err
	}
	row, largest, err := scanCommitted(rows)
	if err == nil {
		s.largest.Store(largest)
	}
	return row, err
}

// Put implements [sqlstore.Steps].
func (s *steps) Put(digest []byte, seen, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	names := own.Names
	args := []any{digits([]byte(names[0])), digits([]byte(names[1])), digits([]byte(names[2])), own.Attempt,
		digits(own.Fingerprint), digits(own.Token), own.Created, length(lease), sqlstore.Micros(ttl), digits(own.Response.V),
		sizeOf(own.Response)}
	if seen.Found {
		keepsSteps := seen.Counts() && !own.Response.Valid
		return s.change("replace", append(args, keepsSteps, digits(entries), seen.Counts(),
			digits(digest), digits(seen.Token), seen.Lease, seen.Expires, !seen.Response.Valid)...)
	}
	began := time.Now()
	put, err := s.change("insert", append(append([]any{digits(digest)}, args...), digits(entries))...)
	if isDuplicate(err) {
		return false, nil
	}
	if put && lease > 0 && time.Since(began) > lease/10 {
		// The times are from before it waited. If another attempt has taken the key over since, it is as if it were not put.
		return s.Extend(digest, own.Token, lease)
	}
	return put, err
}

// Extend implements [sqlstore.Steps].
func (s *steps) Extend(digest, token []byte, lease time.Duration) (bool, error) {
	micros := sqlstore.Micros(lease)
	return s.change("extend", micros, micros, digits(digest), digits(token))
}

// Complete implements [sqlstore.Steps].
func (s *steps) Complete(digest, token, response []byte, ttl time.Duration, size int) (bool, error) {
	return s.change("complete", sqlstore.Micros(ttl), digits(response), len(response), digits(digest), digits(token), size)
}

// Release implements [sqlstore.Steps].
func (s *steps) Release(digest, token []byte, ttl time.Duration) (bool, error) {
	return s.change("release", sqlstore.Micros(ttl), digits(digest), digits(token))
}

// Free implements [sqlstore.Steps].
func (s *steps) Free(digest, token []byte, ttl time.Duration) (bool, error) {
	return s.change("free", sqlstore.Micros(ttl), digits(digest), digits(token))
}

// Checkpoint implements [sqlstore.Steps]. The server would make null of more than a packet.
func (s *steps) Checkpoint(digest, token, entries []byte, before int) (bool, error) {
	if !s.HasRoom(len(entries)) {
		return false, idempotency.ErrStoreFull
	}
	return s.change("checkpoint", digits(entries[before:]), digits(digest), digits(token), before)
}

// Checkpoints implements [sqlstore.Steps].
func (s *steps) Checkpoints(digest, token []byte) (entries []byte, held bool, err error) {
	stmt, err := s.statements.get(s.ctx, "checkpoints")
	if err != nil {
		return nil, false, err
	}
	err = stmt.QueryRowContext(s.ctx, digits(digest), digits(token)).Scan(&entries)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return entries, err == nil, err
}

// See implements [sqlstore.Changes].
func (s *steps) See(digest []byte) (*sqlstore.Seen, error) { return s.see(s.ctx, digest) }

// Forget implements [sqlstore.Changes].
func (s *steps) Forget(digest []byte, seen *sqlstore.Seen) (bool, error) {
	return s.changeUnlocked(digest, "forget", digits(digest), digits(seen.Token), seen.Lease, seen.Expires, !seen.Response.Valid)
}

// Resolve implements [sqlstore.Changes].
func (s *steps) Resolve(digest []byte, seen, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	if !s.HasRoom(len(own.Response.V) + len(own.Steps) + len(own.Resolved)) {
		return false, idempotency.ErrStoreFull
	}
	return s.changeUnlocked(digest, "resolve", digits(own.Token), sqlstore.Micros(ttl), digits(own.Response.V),
		sizeOf(own.Response), digits(own.Steps), digits(own.Resolved),
		digits(digest), digits(seen.Token), seen.Lease, seen.Expires, len(seen.Steps))
}

// InDoubt implements [sqlstore.Changes].
func (s *steps) InDoubt() bool { return s.changed }

// IsFull implements [sqlstore.Steps]. The server says so itself.
func (s *steps) IsFull() bool { return false }

// HasRoom implements [sqlstore.Steps]. The server closes the connection on which it is sent too much.
func (s *steps) HasRoom(n int) bool { return fits(n, s.largest.Load()) }

// fits reports whether a statement that stores n bytes of a response fits into a packet.
func fits(n int, packet int64) bool {
	const besides = 8 << 10 // more than what the statement has beside it, of which names take up to 6 KB
	return 2*int64(n)+besides <= packet
}

// sizeOf returns how many bytes a response has, or null.
func sizeOf(response sql.Null[[]byte]) sql.NullInt64 {
	return sql.NullInt64{Int64: int64(len(response.V)), Valid: response.Valid}
}

// length returns how long a lease is, or null.
func length(lease time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: sqlstore.Micros(lease), Valid: lease > 0}
}

// change runs a statement that changes a record, and reports whether it has.
func (s *steps) change(file string, args ...any) (bool, error) {
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	stmt, err := s.statements.get(s.ctx, file)
	if err != nil {
		return false, err
	}
	result, err := stmt.ExecContext(s.ctx, args...)
	if err != nil {
		s.changed = s.changed || !isAnswer(err)
		return false, err
	}
	n, err := result.RowsAffected()
	s.changed = s.changed || n > 0
	return n > 0, err
}

// changeUnlocked is change for a record that the transaction of a step may have locked. It does not wait for that transaction:
// the error is a conflict then.
func (s *steps) changeUnlocked(digest []byte, file string, args ...any) (changed bool, err error) {
	inDoubt, err := s.transact(s.ctx, []string{"START TRANSACTION"}, func(tx transaction) (commit bool, err error) {
		rows, err := tx.query(s.ctx, "lock", digits(digest))
		if err != nil {
			return false, err
		}
		found := rows.Next()
		if err := errors.Join(rows.Close(), rows.Err()); err != nil || !found {
			return false, err
		}
		changed, err = tx.exec(s.ctx, file, args...)
		return changed, err
	})
	s.changed = s.changed || inDoubt && !isAnswer(err)
	return err == nil && changed, err
}
