package mysqlstore

import (
	"context"
	"database/sql"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Table)(nil)

// Inspect implements [idempotency.Inspector]. The database user needs only SELECT on the table.
func (t *Table) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return t.InspectOperation(ctx, key.OperationID())
}

// InspectOperation implements [idempotency.Inspector], as Inspect does.
func (t *Table) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	if t.optionFaults != nil {
		return idempotency.Entry{}, t.optionFaults
	}
	return sqlstore.Inspect(ctx, leases{t}, operation)
}

// Forget implements [idempotency.Inspector]. The database user needs SELECT and DELETE on the table. While the
// transaction of a step has the record locked, Forget tries again until the transaction or ctx has ended.
func (t *Table) Forget(ctx context.Context, entry idempotency.Entry) error {
	if t.optionFaults != nil {
		return t.optionFaults
	}
	return sqlstore.Forget(ctx, leases{t}, entry)
}

// Resolve implements [idempotency.Resolver]. The database user needs SELECT and UPDATE on the table. Resolve waits for
// a transaction as Forget does.
func (t *Table) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	if t.optionFaults != nil {
		return t.optionFaults
	}
	return sqlstore.Resolve(ctx, leases{t}, entry, resolution)
}

// List implements [idempotency.Inspector]. The database user needs only SELECT on the table.
//
// List reads the whole table twice, without locks, whatever request asks for: no index has names or times, because each claim
// would pay for the index. For a million records in memory, the server needs 2 to 4 seconds of one core. Large answers (above
// 8 KB), which InnoDB stores outside of their rows, are read for the returned page only.
//
// With request.Each, List reads the table once, including all answers asked for. The server ends the statement if Each blocks for
// longer than net_write_timeout, which is a minute by default.
func (t *Table) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if t.optionFaults != nil {
		return idempotency.Listing{}, t.optionFaults
	}
	if err := request.Validate(); err != nil {
		return idempotency.Listing{}, wrapFailure("list", err)
	}
	lister := sqlstore.Lister{
		Table: t.opts.name(), ScanHint: "USE INDEX ()", AnswerSize: "answer_size",
		Name: func(column string) string { return "CAST(" + column + " AS BINARY)" },
		Text: func(s string) string { return hexLiteral([]byte(s)) },
		Query: func(ctx context.Context, text string) (*sql.Rows, error) {
			return t.db.QueryContext(ctx, forAnySession(text))
		},
	}
	repeat := func(step func() error) error { return t.retryStep(ctx, step) }
	listing, err := sqlstore.RepeatList(request, repeat, func(request idempotency.ListRequest) (idempotency.Listing, error) {
		var now int64
		err := t.db.QueryRowContext(ctx, "SELECT "+sqlstore.Statement(files, "now")+" LIMIT 1").Scan(&now)
		if err != nil {
			return idempotency.Listing{}, err
		}
		return lister.List(ctx, request, now)
	})
	return listing, wrapFailure("list", err)
}
