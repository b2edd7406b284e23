package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// WithTx returns a context from which [Tx] returns tx, and [SQLTx] the same for database/sql, until ctx ends. It is for tests
// of a handler without the middleware. There is no store: Commit is that of tx, and so is all else.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, &given{Tx: tx, ctx: ctx})
}

// given is a transaction that no store has begun.
type given struct {
	pgx.Tx
	ctx    context.Context
	bridge bridge
}
