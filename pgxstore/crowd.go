package pgxstore

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency"
)

// judge returns the error of a step. It wraps [idempotency.ErrStoreBusy] if the step has run out of time because the pool is
// crowded, although the server was up within the last minute. A pool is crowded where more steps are under way than it has
// connections, and where the step has waited for its connection for longer than it had left then.
func (t *Table) judge(err error, crowded bool) error {
	if err == nil || isAnswer(err) {
		t.replied.Store(int64(time.Since(t.made)))
		return err
	}
	crowded = crowded || t.steps.Load() > t.most
	if crowded && isTimeout(err) && t.wasUp() && !errors.Is(err, idempotency.ErrStoreBusy) {
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
