package pgxstore

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency"
)

// judge returns the error of a step. It wraps [idempotency.ErrStoreBusy] if the step has run out of time while others had
// the whole pool, although the server was up within the last minute: it may have had its connection too late.
func (t *Table) judge(err error, crowded bool) error {
	if err == nil || isAnswer(err) {
		t.replied.Store(int64(time.Since(t.made)))
		return err
	}
	crowded = crowded || t.steps.Load() > t.most
	if crowded && isTimeout(err) && t.wasUp() {
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

func (t *Table) wasUp() bool {
	last := t.replied.Load()
	return last > 0 && time.Since(t.made)-time.Duration(last) < time.Minute
}
