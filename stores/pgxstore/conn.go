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
	// tries is how often a step is begun while connections break that are not older than the first try.
	maxTries = 3

	// races bounds how often a step is repeated after a concurrent writer has won. Each repetition sees the record of the winner,
	// so more conflicts mean that row-level security hides the record.
	maxConflicts = 30
)

// errHidden says that a key cannot be claimed although nobody seems to hold it.
var errRecordHidden = errors.New("pgxstore: a record cannot be seen or cannot be changed, perhaps because of row security")

// retry repeats a step that may be repeated, each time on another connection, until its outcome is known. Claimed reports that
// the server has granted a claim, or may have granted it although its reply was lost. While claimed is true, only the end of ctx
// stops the tries, because giving up would leave the key claimed.
func (t *Table) retryOnConn(ctx context.Context, mayHoldClaim *bool, from connSource, step func(*pgx.Conn) error) error {
	isCrowded := t.crowd.Enter()
	defer t.crowd.Leave()
	err := t.retryStep(ctx, mayHoldClaim, func() error {
		began := time.Now()
		conn, err := t.borrowConn(ctx, from)
		if err != nil {
			return err
		}
		defer conn.returnConn(ctx, t)
		isCrowded = isCrowded || time.Since(began) > sqlstore.TimeLeft(ctx)
		err = runWithDeadline(ctx, conn.Conn, func() error { return step(conn.Conn) })
		*mayHoldClaim = *mayHoldClaim || !isAnswer(err)
		if refusesWrites(err) { // the pool may find a server that takes them
			_ = conn.Close(ctx)
		}
		return err
	})
	return t.wrapBusyError(err, isCrowded)
}

// repeat is retry for a step that takes its own connection.
func (t *Table) retryStep(ctx context.Context, mayHoldClaim *bool, step func() error) error {
	_, hasDeadline := ctx.Deadline()
	staleConns, brokenTries, conflicts := -1, 0, 0
	for {
		err := step()
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
		case staleConns != 0 && !isUnreachable(err): // a server that has restarted has left no connection of the pool intact
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
			return err // the next one would only say that the time is over
		}
	}
}

// acquire returns a connection of the pool. The error wraps [idempotency.ErrStoreBusy] if all connections
// of the pool or of the server are in use.
func (t *Table) acquireConn(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := t.pool.Acquire(ctx)
	return conn, t.wrapAcquireError(ctx, err)
}

// refusal returns the error of a pool that has given no connection.
func (t *Table) wrapAcquireError(ctx context.Context, err error) error {
	if err != nil && (isTooMany(err) || ctx.Err() != nil && t.isPoolInUse()) {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return err
}

// inUse reports whether all connections of the pool were in use. A connection that has come back since then went to another
// caller. A pool that is making a connection, and may make more, waits for the server.
func (t *Table) isPoolInUse() bool {
	s := t.pool.Stat()
	return s.AcquiredConns() > 0 && s.TotalConns() >= s.MaxConns() || s.TotalConns() > 0 && s.ConstructingConns() == 0
}

// hasten gives a step on conn half of the time that is left, so that a server that falls silent leaves time for
// another try. A deadline of the connection costs less than a context does.
func runWithDeadline(ctx context.Context, conn *pgx.Conn, step func() error) error {
	if deadline, ok := ctx.Deadline(); ok {
		wire := conn.PgConn().Conn()
		_ = wire.SetDeadline(time.Now().Add(time.Until(deadline) / 2)) // fails if it is closed,
		defer func() { _ = wire.SetDeadline(time.Time{}) }()           // as the step will notice
	}
	err := step()
	if isStatementForgotten(err) {
		_ = conn.DeallocateAll(ctx) // even if it fails, pgx does not rely on any of them any more
	}
	return err
}

// source says where a step gets its connection.
type connSource bool

const (
	fromPool        connSource = false
	fromPoolOrSpare connSource = true // from the pool, or made for the step if others have all of the pool
)

// loan is a connection for a step.
type borrowedConn struct {
	*pgx.Conn
	pooledConn *pgxpool.Conn // nil: made for the step
}

// lend returns a connection for a step. Handlers may hold all connections of the pool for longer than a lease, which could not be
// renewed then. So for the source spare, lend makes a connection beyond those of the pool, one at a time, which is closed after
// the step.
func (t *Table) borrowConn(ctx context.Context, from connSource) (borrowedConn, error) {
	poolCtx, mayMake := ctx, from == fromPoolOrSpare && t.isPoolExhausted()
	if mayMake {
		var cancel context.CancelFunc
		poolCtx, cancel = context.WithTimeout(ctx, sqlstore.TimeLeft(ctx)/4)
		defer cancel()
	}
	conn, err := t.acquireConn(poolCtx)
	switch {
	case err == nil:
		return borrowedConn{conn.Conn(), conn}, nil
	case !mayMake || ctx.Err() != nil || poolCtx.Err() == nil || !errors.Is(err, idempotency.ErrStoreBusy):
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
		if isTooMany(err) || ctx.Err() != nil { // it would not be needed if others had less of the pool
			err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
		}
		return borrowedConn{}, err
	}
	return borrowedConn{Conn: spareConn}, nil
}

// isExhausted reports whether the pool has no connection free, nor room for one. Asking costs less than a timer. If a handler
// takes the last connection right after that, and keeps it, the step waits for the pool alone.
func (t *Table) isPoolExhausted() bool {
	s := t.pool.Stat()
	return s.AcquiredConns()+s.ConstructingConns() >= s.MaxConns()
}

// connect makes a connection as the pool does.
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

// prepare runs the hooks of a pool on a connection.
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
		err = errors.New("pgxstore: the hooks of the pool refuse a new connection")
	}
	return err
}

// giveBack ends the loan.
func (b borrowedConn) returnConn(ctx context.Context, t *Table) {
	if b.pooledConn != nil {
		b.pooledConn.Release()
		return
	}
	_ = b.Close(ctx)
	<-t.spareSlot
}

// judge returns the error of a step. It wraps [idempotency.ErrStoreBusy] if the step has run out of time because the pool is
// crowded and the server has replied within the last minute. A pool is crowded if more steps are under way than it has
// connections, or if the step has waited longer for its connection than the time that it then had left.
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

// isTimeout reports whether a step has run out of time, other than by opening a connection: a server to which none can be
// opened is down.
func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return (ok && netErr.Timeout() || pgconn.Timeout(err)) && !isUnreachable(err)
}
