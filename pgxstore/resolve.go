package pgxstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency"
)

// Forget implements [idempotency.Inspector]. The role needs SELECT and DELETE on the table.
//
// If a step of the operation, see [DoTx], keeps the lock of the row for longer than a second, the error is
// [idempotency.ErrInProgress].
func (t *Table) Forget(ctx context.Context, entry idempotency.Entry) error {
	sql, err := t.inspecting(ctx)
	if err != nil {
		return failure("forget", err)
	}
	found, err := t.change(ctx, sql, "forget", entry, string(entry.State))
	if err == nil && !found.changed {
		err = found.reason()
	}
	if found.lost && errors.Is(err, idempotency.ErrNoRecord) { // a try before has deleted it
		return nil
	}
	return failure("forget", err)
}

// Resolve implements [idempotency.Resolver]. The role needs SELECT and UPDATE on the table. Resolve waits for
// the lock of the row as Forget does.
//
// If an answer of the server is lost, Resolve asks again, and recognises its own token. If another attempt has begun by
// then, nobody can tell whether that was because of this resolution: the error says so, and is none of those of the
// interface.
func (t *Table) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	return failure("resolve", t.resolve(ctx, entry, resolution))
}

func (t *Table) resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	sql, err := t.inspecting(ctx)
	if err := errors.Join(err, t.mayKeep(resolution.TTL)); err != nil {
		return err
	}
	entry.State = idempotency.StateAbandoned // nothing else is resolved
	token := newUUID()
	resolved, err := resolution.Resolved(entry).MarshalBinary()
	if err != nil {
		return err
	}
	args := []any{token, resolution.TTL.Microseconds(), resolved, append([]string{}, entry.OpenMarks()...)} // not null
	if resp := resolution.Response; resp != nil {
		args = responseArgs(*resp, args...)
	} else {
		args = append(args, nil, nil, nil, nil, nil)
	}
	found, err := t.change(ctx, sql, "resolve", entry, args...)
	if err != nil || found.changed {
		return err
	}
	if found.row.token == token { // by a try that was not answered
		return t.confirm(ctx, sql, entry.Digest, token, resolution.Response != nil)
	}
	if _, damage := found.entry(); errors.Is(damage, idempotency.ErrRecordInvalid) {
		return damage
	}
	if found.lost && found.row.attempt.Int32 != int32(entry.Attempt) {
		return fmt.Errorf("in doubt: an answer of the server was lost, and by now: %v", found.reason())
	}
	return found.reason()
}

// found is what a change has found.
type found struct {
	*seen
	changed bool // the record was as it was shown, and is changed
	lost    bool // a try was not answered: it may have changed the record
}

// change runs a statement that changes the record of an entry unless the record has changed since, and reads the record after that.
func (t *Table) change(ctx context.Context, sql statements, name string, entry idempotency.Entry, more ...any) (found, error) {
	f := found{seen: t.newSeen(entry.Digest, nil)}
	args := append([]any{entry.Digest[:], entry.Created, int32(entry.Attempt)}, more...)
	err := t.retry(ctx, &f.lost, pooled, func(conn *pgx.Conn) error {
		*f.seen = *t.newSeen(entry.Digest, nil)
		var batch pgx.Batch
		batch.Queue(beginReadCommitted)
		batch.Queue("set local lock_timeout = '1s'")
		batch.Queue(sql[name], args...).Exec(func(tag pgconn.CommandTag) error {
			f.changed = tag.RowsAffected() == 1
			return nil
		})
		batch.Queue(sql["inspect"], entry.Digest[:]).QueryRow(f.scan)
		batch.Queue("commit")
		return conn.SendBatch(ctx, &batch).Close()
	})
	if isLockTimeout(err) {
		err = fmt.Errorf("%w: %w", idempotency.ErrInProgress, err)
	}
	return f, err
}
