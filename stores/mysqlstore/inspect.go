package mysqlstore

import (
	"context"
	"crypto/sha256"
	"database/sql"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Table)(nil)

// Inspect implements [idempotency.Inspector]. The user of the database needs SELECT on the table, and no more.
func (t *Table) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return t.InspectDigest(ctx, key.Digest())
}

// InspectDigest implements [idempotency.Resolver], as Inspect does.
func (t *Table) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	if t.faults != nil {
		return idempotency.Entry{}, t.faults
	}
	var seen *sqlstore.Seen
	err := t.retry(ctx, func() (err error) {
		seen, err = t.see(ctx, digest[:])
		return err
	})
	if err != nil {
		return idempotency.Entry{Digest: digest}, failure("inspect", err)
	}
	entry, err := seen.Entry(digest)
	return entry, failure("inspect", err)
}

// see returns what people are told of the record with a digest.
func (t *Table) see(ctx context.Context, digest []byte) (*sqlstore.Seen, error) {
	v := values{"{digest}", binary(digest)}
	rows, err := t.db.QueryContext(ctx, v.in(t.opts.statement("see")))
	if err != nil {
		return nil, err
	}
	var checkpoints, resolved []byte
	row, largest, err := scanCommitted(rows, &checkpoints, &resolved)
	if err != nil {
		return nil, err
	}
	t.largest.Store(largest)
	return &sqlstore.Seen{Row: *row, Steps: checkpoints, Resolved: resolved}, nil
}

// Forget implements [idempotency.Inspector]. The user of the database needs SELECT and DELETE on the table. While the
// transaction of a step has the record locked, Forget tries again until the transaction or ctx has ended.
func (t *Table) Forget(ctx context.Context, entry idempotency.Entry) error {
	if t.faults != nil {
		return t.faults
	}
	return sqlstore.Forget(ctx, leases{t}, entry)
}

// Resolve implements [idempotency.Resolver]. The user of the database needs SELECT and UPDATE on the table. Resolve
// waits for a transaction as Forget does.
func (t *Table) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	if t.faults != nil {
		return t.faults
	}
	return sqlstore.Resolve(ctx, leases{t}, entry, resolution)
}

// List implements [idempotency.Inspector]. The user of the database needs SELECT on the table, and no more.
//
// List reads the whole table twice: 2 to 4 seconds of one core of the server for a million records in memory. It locks
// nothing, and waits for nobody. Answers that are stored outside of their rows, as those above 8 KB are, are not read,
// except for those of the page.
func (t *Table) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if t.faults != nil {
		return idempotency.Listing{}, t.faults
	}
	lister := sqlstore.Lister{
		Table: t.opts.name(), Whole: "USE INDEX ()", AnswerSize: "answer_size",
		Name: func(column string) string { return "CAST(" + column + " AS BINARY)" },
		Text: func(s string) string { return binary([]byte(s)) },
		Query: func(ctx context.Context, text string) (*sql.Rows, error) {
			return t.db.QueryContext(ctx, forAnySession(text))
		},
	}
	var listing idempotency.Listing
	err := t.retry(ctx, func() error {
		var now int64
		err := t.db.QueryRowContext(ctx, "SELECT "+sqlstore.Statement(files, "now")+" LIMIT 1").Scan(&now)
		if err == nil {
			listing, err = lister.List(ctx, request, now)
		}
		return err
	})
	return listing, failure("list", err)
}
