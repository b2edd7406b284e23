package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// TxStore keeps records in MySQL or MariaDB, for handlers whose effects are in the same database. The claim is a
// transaction, which the handler gets from [Tx]. Its commit makes effects and record permanent together, so each
// operation takes effect exactly once, whatever breaks. The exception is a handler that commits by a statement that
// cannot be refused (see [Tx]): what it did before is permanent then, and it does not run again. An answer of 400 or
// more is kept without the effects (see [KeepEffects]). It is safe for concurrent use.
//
// A claim has no lease. It ends with its session: at once if the process dies while no statement runs, and after
// [Options].IdleTimeout if the session falls silent.
//
// What the handler does in other systems is no part of the transaction. After a rollback or a commit that has failed, the
// next attempt has the same [idempotency.Operation.DownstreamKey]. So a system that compares these keys acts once.
//
// Attempt of [idempotency.Operation] counts the claims that are in the record. A rollback leaves none. So Attempt is 1,
// unless a [Store] has released the key before, or has let its lease lapse.
type TxStore struct {
	*Table
	sql txStatements
}

var _ idempotency.Store = (*TxStore)(nil)

// NewTx returns a store on db. The caller closes db. Each operation holds one of its connections while it runs.
// Requests that wait for the operation hold none. [Migrate] makes the table. Faults of opts are errors of Begin, Check
// and Maintain, which report all of them together.
func NewTx(db *sql.DB, opts Options) *TxStore {
	table := NewTable(db, opts)
	table.by = byTxStore
	return &TxStore{table, expandTx(opts)}
}

// Transactional tells idempotency.New that no handler may run without its transaction.
func (s *TxStore) Transactional() bool { return true }

// Begin implements [idempotency.Store]. If a connection breaks, it starts again on another one.
func (s *TxStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.faults != nil {
		return idempotency.Record{}, nil, s.faults
	}
	if err := s.admit(ctx); err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	a := &attempt{store: s, digest: key.Digest(), names: sqlstore.NamesOf(key), request: &request}
	found, err := s.begin(ctx, a)
	switch {
	case err != nil:
		return idempotency.Record{}, nil, failure("claim", err)
	case found != nil:
		return *found, nil, nil
	}
	return a.record, sqlstore.NewTxClaim(dialect, a), nil
}

// begin visits the key until it is claimed, or a record is found that holds it. A session whose connection has broken
// keeps its lock until the server notices. So begin goes on for a while after such a failure: the lock that it meets
// may be its own.
func (s *TxStore) begin(ctx context.Context, a *attempt) (found *idempotency.Record, err error) {
	var giveUp time.Time
	for {
		err = s.retry(ctx, func() (err error) {
			found, err = s.visit(ctx, a)
			if err != nil && isBroken(err) {
				giveUp = time.Now().Add(sqlstore.TimeLeft(ctx) / 2)
			}
			return err
		})
		if refusesWrites(err) {
			s.dropReadOnly(ctx)
		}
		if err != nil || found != &running || time.Now().After(giveUp) {
			return found, err
		}
		sqlstore.Pause(ctx, 5*time.Millisecond)
	}
}

// running is all that can be known of a transaction that goes on.
var running = idempotency.Record{NoLease: true}

// visit tries to claim the key on a connection of its own. It keeps that if it has claimed it.
func (s *TxStore) visit(ctx context.Context, a *attempt) (*idempotency.Record, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := half(ctx)
	defer cancel()
	a.begin(conn)
	found, err := a.claim(ctx)
	if err == nil && found == nil {
		return nil, nil
	}
	failed := err
	if errors.Is(err, idempotency.ErrRecordInvalid) {
		failed = nil // it was read
	}
	if unclean := a.giveBack(ctx, failed); err == nil {
		err = unclean
	}
	return found, err
}

// half returns a context with half of the time that is left, so that a server that falls silent leaves time for
// another try.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return context.WithCancel(ctx)
}

var (
	errAutocommit = errors.New("the session has autocommit off: it must be on when a connection is given back to the " +
		"pool")
	errUncommitted = errors.New("the session reads what is not committed: its isolation level must be higher than " +
		"READ UNCOMMITTED")
	errEnded = errors.New("the transaction was ended, or committed in part, by a statement of the handler")
)
