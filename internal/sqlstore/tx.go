package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Attempt is the transaction of a claim, as a database has it. One goroutine at a time calls it, except that HangUp may
// be called while Conn runs.
type Attempt interface {
	// Conn returns the connection that a statement of the handler runs on. The transaction may begin with the first
	// call. An error that wraps idempotency.ErrClaimLost says that the key is somebody else's by now.
	Conn(ctx context.Context) (*sql.Conn, error)

	// Undo rolls back what the handler did. The key stays claimed, and Commit or Rollback follows.
	Undo(ctx context.Context) error

	// Commit stores the record with its response, commits, and gives back what the attempt holds, whatever comes of it.
	// Its errors are those of Complete of [idempotency.Claim].
	Commit(ctx context.Context, resp idempotency.Response, ttl time.Duration) error

	// Rollback undoes everything, and gives back what the attempt holds.
	Rollback(ctx context.Context) error

	// HangUp takes the place of Rollback if somebody still uses the connection. It closes the connection, because nothing
	// else stops that user. The contexts of all statements have ended before.
	HangUp()

	// Alive reports whether the transaction can still be committed, as far as is known.
	Alive(ctx context.Context) bool
}

// Dialect is what the transaction of a handler must know of a database.
type Dialect struct {
	// Key is the key of the transaction in a context.
	Key any

	// ErrCommit is what the handler's Commit returns.
	ErrCommit error

	// Exclusive says that no statement can run while the rows of another one are open.
	Exclusive bool

	// Refuse returns an error for a statement that would end the transaction. That statement is not sent.
	Refuse func(query string) error

	// Judge says what the error of a statement means for the transaction.
	Judge func(err error) Outcome
}

// Outcome is what the error of a statement means for its transaction.
type Outcome int

const (
	// Stands means that the transaction goes on, and that the statement would fail again.
	Stands Outcome = iota

	// MayPass means that the transaction goes on, and that the statement has failed for a reason that is neither in it
	// nor in the data: a lock, a lack of resources, an intervention.
	MayPass

	// Ended means that the database has rolled the transaction back.
	Ended
)

// Tx returns the transaction in a context, and whether there is one.
func (d *Dialect) Tx(ctx context.Context) (*sql.Tx, bool) {
	switch tx := ctx.Value(d.Key).(type) {
	case *session:
		return tx.bridge.open(tx), true
	case *sql.Tx:
		return tx, true
	}
	return nil, false
}

// WithTx returns a context with a transaction that no store has begun.
func (d *Dialect) WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, d.Key, tx)
}

// KeepEffects has the transaction in a context committed whatever the status of the answer is. It returns false if the
// context has no transaction of a store.
func (d *Dialect) KeepEffects(ctx context.Context) bool {
	s, ok := ctx.Value(d.Key).(*session)
	if ok {
		s.keep()
	}
	return ok
}
