package pgxstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

var _ idempotency.Inspector = (*Table)(nil)

// inspecting returns the statements of an [idempotency.Inspector].
func (t *Table) inspecting(ctx context.Context) (statements, error) {
	if t.faults != nil {
		return nil, t.faults
	}
	return t.located(ctx)
}

// Inspect implements [idempotency.Inspector]. The role needs SELECT on the table, and no more.
//
// It shows that a transaction of a [TxStore] runs the operation, by the advisory lock of its key. A standby has no such
// locks, so it shows only what was committed. Inspect does not wait for standbys as a replay does, see the package
// documentation.
func (t *Table) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return t.inspect(ctx, key.Digest(), &key)
}

// InspectDigest is Inspect for a key of which only the digest is known, as in a log or a [idempotency.Listing]. It cannot
// tell whether the record was made for that key.
func (t *Table) InspectDigest(ctx context.Context, digest [32]byte) (idempotency.Entry, error) {
	return t.inspect(ctx, digest, nil)
}

func (t *Table) inspect(ctx context.Context, digest [32]byte, key *idempotency.Key) (entry idempotency.Entry, err error) {
	found := t.newSeen(digest, key)
	sql, err := t.inspecting(ctx)
	if err == nil {
		err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
			*found = *t.newSeen(digest, key)
			return found.scan(conn.QueryRow(ctx, sql["inspect"], digest[:], t.lockNumber(digest)))
		})
	}
	if err == nil {
		entry, err = found.entry()
	}
	return entry, failure("inspect", err)
}

// Forget implements [idempotency.Inspector]. The role needs SELECT and DELETE on the table.
//
// A completed operation cannot run. For any other operation, Forget takes the advisory lock of the key, so that no
// transaction takes it over meanwhile. If the lock or the row cannot be had within a second, somebody is running the
// operation, or is about to.
func (t *Table) Forget(ctx context.Context, entry idempotency.Entry) error {
	sql, err := t.inspecting(ctx)
	if err != nil {
		return failure("forget", err)
	}
	var deleted int64
	left := t.newSeen(entry.Digest, nil)
	tries := 0
	err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		tries++
		*left = *t.newSeen(entry.Digest, nil)
		var batch pgx.Batch
		batch.Queue(beginReadCommitted)
		batch.Queue("set local lock_timeout = '1s'")
		if entry.State != idempotency.StateCompleted {
			batch.Queue("select pg_advisory_xact_lock($1::bigint)", t.lockNumber(entry.Digest))
		}
		batch.Queue(sql["forget"], entry.Digest[:], entry.Created, int32(entry.Attempt), string(entry.State)).Exec(func(tag pgconn.CommandTag) error {
			deleted = tag.RowsAffected()
			return nil
		})
		batch.Queue(sql["inspect"], entry.Digest[:], t.lockNumber(entry.Digest)).QueryRow(left.scan)
		batch.Queue("commit")
		return conn.SendBatch(ctx, &batch).Close()
	})
	if err == nil && deleted == 0 {
		left.locked = left.locked && entry.State == idempotency.StateCompleted // by another session
		err = left.reason(tries > 1)
	}
	if isLockTimeout(err) {
		err = fmt.Errorf("%w: %w", idempotency.ErrInProgress, err)
	}
	return failure("forget", err)
}

// List implements [idempotency.Inspector]. It reads the whole table, but no answers. The role needs SELECT on the
// table, and no more. A running transaction of a [TxStore] is not listed, because it has no record that others can see.
// With DigestNames, List finds the records of a user, but the entries have no names.
func (t *Table) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if request.Limit < 0 {
		return idempotency.Listing{}, fmt.Errorf("pgxstore: list: Limit is %d, less than zero", request.Limit)
	}
	sql, err := t.inspecting(ctx)
	if err != nil {
		return idempotency.Listing{}, failure("list", err)
	}
	states, users := make([]string, 0, len(request.States)), []string{}
	for _, state := range request.States {
		states = append(states, string(state))
	}
	if request.User != "" { // whichever form the table has it in
		user := sqlstore.Printable(request.User)
		users = append(users, user, digested(user))
	}
	var listing idempotency.Listing
	err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		listing = idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
		var batch pgx.Batch
		batch.Queue(sql["list"], states, users, request.Largest, int64(cmp.Or(request.Limit, 100))).Query(scanEntries(&listing))
		batch.Queue(sql["totals"], states, users).Query(scanTotals(&listing))
		return conn.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return idempotency.Listing{}, failure("list", err)
	}
	return listing, nil
}
