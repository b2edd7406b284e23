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
	tries = 3

	// races bounds how often a step is repeated after a concurrent writer has won. Each repetition sees the record of the winner,
	// so more conflicts mean that row-level security hides the record.
	races = 30
)

// errHidden says that a key cannot be claimed although nobody seems to hold it.
var errHidden = errors.New("pgxstore: a record cannot be seen or cannot be changed, perhaps because of row security")

// retry repeats a step that may be repeated, each time on another connection, until its outcome is known. Claimed reports that
// the server has granted a claim, or may have granted it although its reply was lost. While claimed is true, only the end of ctx
// stops the tries, because giving up would leave the key claimed.
func (t *Table) retry(ctx context.Context, claimed *bool, from source, step func(*pgx.Conn) error) error {
	crowded := t.crowd.Enter()
	defer t.crowd.Leave()
	err := t.repeat(ctx, claimed, func() error {
		began := time.Now()
		conn, err := t.lend(ctx, from)
		if err != nil {
			return err
		}
		defer conn.giveBack(ctx, t)
		crowded = crowded || time.Since(began) > sqlstore.TimeLeft(ctx)
		err = hasten(ctx, conn.Conn, func() error { return step(conn.Conn) })
		*claimed = *claimed || !isAnswer(err)
		if refusesWrites(err) { // the pool may find a server that takes them
			_ = conn.Close(ctx)
		}
		return err
	})
	return t.judge(err, crowded)
}

// repeat is retry for a step that takes its own connection.
func (t *Table) repeat(ctx context.Context, claimed *bool, step func() error) error {
	_, bounded := ctx.Deadline()
	stale, broken, lost := -1, 0, 0
	for {
		err := step()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errOvertaken) && lost == races:
			return fmt.Errorf("%w: %w", errHidden, err)
		case lostRace(err):
			sqlstore.Pause(ctx, sqlstore.Growing(lost-2, time.Millisecond))
			lost++
		case !isBroken(err):
			return t.explain(err)
		case stale != 0 && !isUnreachable(err): // a server that has restarted has left no connection of the pool intact
			if stale < 0 {
				stale = int(t.pool.Stat().TotalConns()) + 1
			}
			stale--
		case broken < tries-1 || *claimed && bounded:
			sqlstore.Pause(ctx, sqlstore.Growing(broken, 10*time.Millisecond))
			broken++
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
func (t *Table) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := t.pool.Acquire(ctx)
	return conn, t.refusal(ctx, err)
}

// refusal returns the error of a pool that has given no connection.
func (t *Table) refusal(ctx context.Context, err error) error {
	if err != nil && (isTooMany(err) || ctx.Err() != nil && t.inUse()) {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return err
}

// inUse reports whether all connections of the pool were in use. A connection that has come back since then went to another
// caller. A pool that is making a connection, and may make more, waits for the server.
func (t *Table) inUse() bool {
	s := t.pool.Stat()
	return s.AcquiredConns() > 0 && s.TotalConns() >= s.MaxConns() || s.TotalConns() > 0 && s.ConstructingConns() == 0
}

// hasten gives a step on conn half of the time that is left, so that a server that falls silent leaves time for
// another try. A deadline of the connection costs less than a context does.
func hasten(ctx context.Context, conn *pgx.Conn, step func() error) error {
	if deadline, ok := ctx.Deadline(); ok {
		wire := conn.PgConn().Conn()
		_ = wire.SetDeadline(time.Now().Add(time.Until(deadline) / 2)) // fails if it is closed,
		defer func() { _ = wire.SetDeadline(time.Time{}) }()           // as the step will notice
	}
	err := step()
	if isForgotten(err) {
		_ = conn.DeallocateAll(ctx) // even if it fails, pgx does not rely on any of them any more
	}
	return err
}

// source says where a step gets its connection.
type source bool

const (
	pooled source = false
	spare  source = true // from the pool, or made for the step if others have all of the pool
)

// loan is a connection for a step.
type loan struct {
	*pgx.Conn
	pooled *pgxpool.Conn // nil: made for the step
}

// lend returns a connection for a step. Handlers may hold all connections of the pool for longer than a lease, which could not be
// renewed then. So for the source spare, lend makes a connection beyond those of the pool, one at a time, which is closed after
// the step.
func (t *Table) lend(ctx context.Context, from source) (loan, error) {
	brief, mayMake := ctx, from == spare && t.isExhausted()
	if mayMake {
		var cancel context.CancelFunc
		brief, cancel = context.WithTimeout(ctx, sqlstore.TimeLeft(ctx)/4)
		defer cancel()
	}
	conn, err := t.acquire(brief)
	switch {
	case err == nil:
		return loan{conn.Conn(), conn}, nil
	case !mayMake || ctx.Err() != nil || brief.Err() == nil || !errors.Is(err, idempotency.ErrStoreBusy):
		return loan{}, err
	}
	select {
	case t.spare <- struct{}{}:
	case <-ctx.Done():
		return loan{}, err
	}
	made, err := t.connect(ctx)
	if err != nil {
		<-t.spare
		if isTooMany(err) || ctx.Err() != nil { // it would not be needed if others had less of the pool
			err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
		}
		return loan{}, err
	}
	return loan{Conn: made}, nil
}

// isExhausted reports whether the pool has no connection free, nor room for one. Asking costs less than a timer. If a handler
// takes the last connection right after that, and keeps it, the step waits for the pool alone.
func (t *Table) isExhausted() bool {
	s := t.pool.Stat()
	return s.AcquiredConns()+s.ConstructingConns() >= s.MaxConns()
}

// connect makes a connection as the pool does.
func (t *Table) connect(ctx context.Context) (*pgx.Conn, error) {
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
	if err := prepare(ctx, conn, config); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// prepare runs the hooks of a pool on a connection.
func prepare(ctx context.Context, conn *pgx.Conn, config *pgxpool.Config) error {
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			return err
		}
	}
	//lint:ignore SA1019 the pool still calls it
	before := config.BeforeAcquire
	fit, err := true, error(nil)
	switch {
	case config.PrepareConn != nil:
		fit, err = config.PrepareConn(ctx, conn)
	case before != nil:
		fit = before(ctx, conn)
	}
	if err == nil && !fit {
		err = errors.New("pgxstore: the hooks of the pool refuse a new connection")
	}
	return err
}

// giveBack ends the loan.
func (l loan) giveBack(ctx context.Context, t *Table) {
	if l.pooled != nil {
		l.pooled.Release()
		return
	}
	_ = l.Close(ctx)
	<-t.spare
}

// judge returns the error of a step. It wraps [idempotency.ErrStoreBusy] if the step has run out of time because the pool is
// crowded and the server has replied within the last minute. A pool is crowded if more steps are under way than it has
// connections, or if the step has waited longer for its connection than the time that it then had left.
func (t *Table) judge(err error, crowded bool) error {
	if err == nil || isAnswer(err) {
		t.crowd.Replied()
		return err
	}
	crowded = crowded || t.crowd.IsCrowded()
	if crowded && isTimeout(err) && t.crowd.WasUp() && !errors.Is(err, idempotency.ErrStoreBusy) {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return err
}

// isTimeout reports whether a step has run out of time, other than by opening a connection: a server to which none can be
// opened is down.
func isTimeout(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return (ok && late.Timeout() || pgconn.Timeout(err)) && !isUnreachable(err)
}
