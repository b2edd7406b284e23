package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// WithTx returns a context from which [Tx] returns tx, until ctx ends. [SQLTx] returns the same transaction for
// database/sql. WithTx is for tests of a handler without the middleware. No store has a part in it: Commit is that of
// tx, and so is all else.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, &given{bridged: bridged{tx}, ctx: ctx})
}

// given is a transaction that no store has begun.
type given struct {
	bridged
	ctx    context.Context
	bridge sqlstore.Bridge
}
