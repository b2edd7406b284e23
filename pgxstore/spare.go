package pgxstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

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

// lend lets a lease be renewed although handlers hold all connections of the pool, for longer than the lease. One connection
// at a time is made beyond those of the pool, and closed after the step.
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

// isExhausted reports whether the pool has no connection free, nor room for one. To ask costs less than a timer. If a handler
// takes the last connection in the next moment, and keeps it, the step waits for the pool alone.
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
