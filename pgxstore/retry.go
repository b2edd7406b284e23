package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

const (
	// tries is how often a step is begun while connections break that are not older than the first try.
	tries = 3

	// races is how often a step may be overtaken. Each time one of the others has won, and what it has made is seen the
	// next time, unless it is hidden.
	races = 30
)

// errHidden says that a key cannot be claimed although nobody seems to hold it.
var errHidden = errors.New("pgxstore: a record cannot be seen or cannot be changed, perhaps because of row security")

// retry repeats a step that may be repeated, each time on another connection, until its outcome is known. Claimed says
// that there is a claim, or may be one because the answer to a try was lost: a failure would leave it behind. Only the
// end of ctx ends the tries then.
func (t *Table) retry(ctx context.Context, claimed *bool, from source, step func(*pgx.Conn) error) error {
	crowded := t.steps.Add(1) > t.most
	defer t.steps.Add(-1)
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

// acquire returns a connection of the pool. The error wraps [idempotency.ErrStoreBusy] if others have them all, those
// of the pool or those of the server.
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

// inUse reports whether others had all connections of the pool. One that has come back since then had somebody else waiting
// for it. Where the pool makes one, and may make more, it waits for the server.
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
