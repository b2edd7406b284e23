package pgxstore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

var _ idempotency.Resolver = (*Table)(nil)

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

// InspectDigest implements [idempotency.Resolver].
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
		user := sqlstore.EscapeName(request.User)
		users = append(users, user, digested(user))
	}
	after := []any{nil, nil, nil}
	if last := request.After; last != nil {
		after = []any{last.Created, last.Digest[:], last.Size}
	}
	var listing idempotency.Listing
	err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		listing = idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
		var batch pgx.Batch
		batch.Queue(sql["list"], append([]any{states, users, request.Largest, int64(cmp.Or(request.Limit, 100))}, after...)...).
			Query(scanEntries(&listing))
		batch.Queue(sql["totals"], states, users).Query(scanTotals(&listing))
		return conn.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return idempotency.Listing{}, failure("list", err)
	}
	return listing, nil
}
