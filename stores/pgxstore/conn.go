package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

const (
	// maxTries bounds the tries on connections that break, apart from connections that are older than the first try.
	maxTries = 3

	// maxConflicts bounds the tries after lost races. See retryUntilKnown.
	maxConflicts = 30
)

// errRecordHidden reports that a key can be neither claimed nor read, although each try sees no holder of the key.
var errRecordHidden = errors.New("pgxstore: the role cannot see or change a record, perhaps because of row security")

// retryOnConn calls send until its outcome is known. Each try borrows a connection. The statement of send must have the
// same effect when it is sent twice.
//
// mayHoldClaim reports that the server has granted a claim, or may have granted the claim although the reply was lost.
// While mayHoldClaim is true and ctx has a deadline, only the end of ctx stops the tries, because giving up would leave
// the key claimed.
func (t *Table) retryOnConn(ctx context.Context, mayHoldClaim *bool, from connSource, send func(*pgx.Conn) error) error {
	isCrowded := t.crowd.Enter()
	defer t.crowd.Leave()
	err := t.retryUntilKnown(ctx, mayHoldClaim, func() error {
		startedAt := time.Now()
		conn, err := t.borrowConn(ctx, from)
		if err != nil {
			return err
		}
		defer conn.returnConn(ctx, t)
		isCrowded = isCrowded || time.Since(startedAt) > sqlstore.TimeLeft(ctx)
		err = runWithDeadline(ctx, conn.Conn, func() error { return send(conn.Conn) })
		*mayHoldClaim = *mayHoldClaim || !isAnswer(err)
		if refusesWrites(err) { // the pool may then connect to the new primary
			_ = conn.Close(ctx)
		}
		return err
	})
	return t.wrapBusyError(err, isCrowded)
}

// retryUntilKnown is retryOnConn for a try that takes its own connection. A failed try is repeated as follows:
//
//   - A lost race is repeated after a pause. Each repetition sees the record of the winner, so maxConflicts lost claims
//     in a row mean that row-level security hides the record.
//   - A broken connection may be one of many, because a restart of the server breaks every connection of the pool.
//     retryUntilKnown therefore tries as many connections as the pool had at the first failure, without a pause, before
//     the tries count for maxTries.
//   - Any other error is final.
func (t *Table) retryUntilKnown(ctx context.Context, mayHoldClaim *bool, try func() error) error {
	_, hasDeadline := ctx.Deadline()
	staleConns, brokenTries, conflicts := -1, 0, 0
	for {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errOvertaken) && conflicts == maxConflicts:
			return fmt.Errorf("%w: %w", errRecordHidden, err)
		case isLostRace(err):
			sqlstore.Pause(ctx, sqlstore.Growing(conflicts-2, time.Millisecond))
			conflicts++
		case !isBroken(err):
			return t.explainMissing(err)
		case staleConns != 0 && !isUnreachable(err): // perhaps a connection from before a restart
			if staleConns < 0 {
				staleConns = int(t.pool.Stat().TotalConns()) + 1
			}
			staleConns--
		case brokenTries < maxTries-1 || *mayHoldClaim && hasDeadline:
			sqlstore.Pause(ctx, sqlstore.Growing(brokenTries, 10*time.Millisecond))
			brokenTries++
		default:
			return err
		}
		if ctx.Err() != nil {
			return err // a further try would replace err by the end of ctx
		}
	}
}

// acquireConn takes a connection from the pool. The error wraps [idempotency.ErrStoreBusy] if all connections of the pool
// or of the server are in use.
func (t *Table) acquireConn(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := t.pool.Acquire(ctx)
	return conn, t.wrapAcquireError(ctx, err)
}

// wrapAcquireError adds [idempotency.ErrStoreBusy] to the error of the pool if all connections are in use.
func (t *Table) wrapAcquireError(ctx context.Context, err error) error {
	if err != nil && (isTooMany(err) || ctx.Err() != nil && t.isPoolInUse()) {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return err
}

// isPoolInUse reports whether all connections of the pool were in use when an acquisition failed. A connection that was
// returned since then went to another waiter. A pool that is opening a connection, and has room for more, is waiting for
// the server instead.
func (t *Table) isPoolInUse() bool {
	s := t.pool.Stat()
	return s.AcquiredConns() > 0 && s.TotalConns() >= s.MaxConns() || s.TotalConns() > 0 && s.ConstructingConns() == 0
}

// runWithDeadline calls send with a deadline of half the time that ctx has left, so that a silent server leaves time for
// another try. runWithDeadline sets the deadline on the connection, because a derived context costs more.
func runWithDeadline(ctx context.Context, conn *pgx.Conn, send func() error) error {
	if deadline, ok := ctx.Deadline(); ok {
		netConn := conn.PgConn().Conn()
		_ = netConn.SetDeadline(time.Now().Add(time.Until(deadline) / 2)) // on a closed connection, SetDeadline fails,
		defer func() { _ = netConn.SetDeadline(time.Time{}) }()           // and send fails with the better error
	}
	err := send()
	if isStatementForgotten(err) {
		_ = conn.DeallocateAll(ctx) // even if it fails, pgx prepares all statements again
	}
	return err
}

// connSource says where a statement gets its connection.
type connSource bool

const (
	fromPool        connSource = false
	fromPoolOrSpare connSource = true // a spare connection if the pool is exhausted
)

// borrowedConn is a connection for one statement.
type borrowedConn struct {
	*pgx.Conn
	pooledConn *pgxpool.Conn // nil for the spare connection
}

// borrowConn returns a connection for one statement. Handlers may hold all connections of the pool for longer than a
// lease, and the lease could not be renewed then. For that case, the source fromPoolOrSpare lets borrowConn open a spare
// connection beyond those of the pool. A Table has at most one spare connection at a time. returnConn closes it.
func (t *Table) borrowConn(ctx context.Context, from connSource) (borrowedConn, error) {
	poolCtx, mayOpenSpare := ctx, from == fromPoolOrSpare && t.isPoolExhausted()
	if mayOpenSpare {
		var cancel context.CancelFunc
		poolCtx, cancel = context.WithTimeout(ctx, sqlstore.TimeLeft(ctx)/4)
		defer cancel()
	}
	conn, err := t.acquireConn(poolCtx)
	switch {
	case err == nil:
		return borrowedConn{conn.Conn(), conn}, nil
	case !mayOpenSpare || ctx.Err() != nil || poolCtx.Err() == nil || !errors.Is(err, idempotency.ErrStoreBusy):
		return borrowedConn{}, err
	}
	select {
	case t.spareSlot <- struct{}{}:
	case <-ctx.Done():
		return borrowedConn{}, err
	}
	spareConn, err := t.openConn(ctx)
	if err != nil {
		<-t.spareSlot
		// The spare connection is needed only because the pool is exhausted. The network may notice the deadline of ctx before
		// ctx does.
		if isTooMany(err) || ctx.Err() != nil || sqlstore.TimeLeft(ctx) <= 0 {
			err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
		}
		return borrowedConn{}, err
	}
	return borrowedConn{Conn: spareConn}, nil
}

// isPoolExhausted reports whether the pool has neither an idle connection nor room for a new one. borrowConn asks first,
// because the timer of poolCtx costs more. If a handler takes the last connection right after the question, the statement
// waits for the pool alone.
func (t *Table) isPoolExhausted() bool {
	s := t.pool.Stat()
	return s.AcquiredConns()+s.ConstructingConns() >= s.MaxConns()
}

// openConn opens a connection with the configuration and the hooks of the pool.
func (t *Table) openConn(ctx context.Context) (*pgx.Conn, error) {
	config := t.pool.Config()
	if before := config.BeforeConnect; before != nil {
		if err := before(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	if err := runPoolHooks(ctx, conn, config); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// runPoolHooks runs the hooks that a pool runs on a new connection and before each use.
func runPoolHooks(ctx context.Context, conn *pgx.Conn, config *pgxpool.Config) error {
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			return err
		}
	}
	//lint:ignore SA1019 the pool still calls it
	before := config.BeforeAcquire
	isFit, err := true, error(nil)
	switch {
	case config.PrepareConn != nil:
		isFit, err = config.PrepareConn(ctx, conn)
	case before != nil:
		isFit = before(ctx, conn)
	}
	if err == nil && !isFit {
		err = errors.New("pgxstore: the hooks of the pool have refused a new connection")
	}
	return err
}

// returnConn returns a connection to the pool, or closes the spare connection.
func (b borrowedConn) returnConn(ctx context.Context, t *Table) {
	if b.pooledConn != nil {
		b.pooledConn.Release()
		return
	}
	_ = b.Close(ctx)
	<-t.spareSlot
}

// wrapBusyError adds [idempotency.ErrStoreBusy] to a timeout that a crowded pool explains: the pool is crowded, and the
// server has replied within the last minute. A pool is crowded if more statements are under way than it has connections,
// or if a statement waited longer for its connection than the time that was left afterwards.
func (t *Table) wrapBusyError(err error, isCrowded bool) error {
	if err == nil || isAnswer(err) {
		t.crowd.Replied()
		return err
	}
	isCrowded = isCrowded || t.crowd.IsCrowded()
	if isCrowded && isTimeout(err) && t.crowd.WasUp() && !errors.Is(err, idempotency.ErrStoreBusy) {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return err
}

// isTimeout reports whether a statement has timed out. A timeout while a connection is opened does not count, because
// such a server is down.
func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return (ok && netErr.Timeout() || pgconn.Timeout(err)) && !isUnreachable(err)
}
