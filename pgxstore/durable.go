package pgxstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
)

// With synchronous replication a commit that is visible may be on no standby: it becomes visible when its wait for the
// standbys is cancelled, and pgx asks for that when it gives up a connection. So it is lost if a standby takes over. A
// record that was seen, and not written by the same step, is therefore confirmed before anybody relies on it.

// errUnconfirmed says that a record is gone, or not on the server that was asked.
var errUnconfirmed = errors.New("pgxstore: the record is not there any more, or not as it was")

// confirm returns nil when a record that was seen, completed or not, is where commits have to be to be acknowledged. It
// tries until ctx ends, unless the record is gone: then the step that has seen it is to be judged anew.
func (t *Table) confirm(ctx context.Context, sql statements, digest [32]byte, token pgtype.UUID, completed bool) error {
	relied := true
	return failure("confirm", t.retry(ctx, &relied, pooled, func(conn *pgx.Conn) error {
		return sql.confirmOn(ctx, conn, digest, token, completed)
	}))
}

func (sql statements) confirmOn(ctx context.Context, conn *pgx.Conn, digest [32]byte, token pgtype.UUID, completed bool) error {
	tag, err := conn.Exec(ctx, sql["confirm"], digest[:], token, completed)
	if err == nil && tag.RowsAffected() == 0 {
		return errUnconfirmed
	}
	return err
}

// unconfirmed is the lease of an operation whose response is not shown, because it cannot be confirmed.
const unconfirmed = time.Second

// found returns the record that holds a key, for an attempt that has found it. A response that cannot be confirmed is
// not shown: the operation counts as running, as it would if nobody had cancelled the wait of its commit.
func (t *Table) found(
	ctx context.Context, sql statements, digest [32]byte, held *row, by idempotency.ClaimRequest,
) (idempotency.Record, error) {
	record, err := held.held(by.Fingerprint)
	if err != nil || record.Response == nil || record.Fingerprint != by.Fingerprint {
		return record, err
	}
	if held.awaited {
		err := t.confirmOnce(ctx, sql, digest, held.token)
		switch {
		case errors.Is(err, idempotency.ErrStoreBusy) || isRefused(err):
			return idempotency.Record{}, failure("claim", err)
		case err != nil:
			record.Response, record.LeaseLeft = nil, unconfirmed
			return record, nil
		}
	}
	t.countReplay(ctx, sql, digest, held, by)
	return record, nil
}

// confirmOnce is confirm with a single try, for a response that the client can ask for again.
func (t *Table) confirmOnce(ctx context.Context, sql statements, digest [32]byte, token pgtype.UUID) error {
	conn, err := t.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return hasten(ctx, conn.Conn(), func() error { return sql.confirmOn(ctx, conn.Conn(), digest, token, true) })
}
