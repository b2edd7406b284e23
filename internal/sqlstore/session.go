package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/idempotency-go/idempotency"
)

// Session is the transaction of a claim, as the handler has it. A handler may leave goroutines behind that still use it.
type Session struct {
	// Handler is the context of the handler; nil: there is none yet.
	Handler context.Context

	// Bridge is the way to the transaction by package database/sql.
	Bridge Bridge

	// Exclusive says that no statement can run while another one does, or has rows that are open.
	Exclusive bool

	attempt Attempt

	mu      sync.Mutex // held while the attempt is asked whether it is alive, or undone
	uses    int        // statements that run, and rows that are open
	used    bool       // by the handler
	kept    bool       // by KeepEffects
	ended   bool       // the handler has returned
	undone  error      // why it must not be committed
	failed  error      // why it could not begin
	passing error      // of a statement that failed for a reason that may pass
}

// ErrBusy says that somebody uses a transaction that only one can use, or that nobody must use any more.
var ErrBusy = errors.New("the transaction is in use: a statement runs, or rows are open")

var (
	errEnded   = errors.New("the transaction has ended")
	errRolled  = errors.New("the handler has rolled its transaction back")
	errPassing = errors.New("a statement of the handler has failed for a reason that may pass")
)

// Enter counts a statement of the handler, if one may run. The statement lasts until Leave, which may be after the call that
// begins it, because of its rows.
func (s *Session) Enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = true
	switch {
	case s.ended:
		return sql.ErrTxDone
	case s.undone != nil:
		return s.undone
	case s.Exclusive && s.uses > 0:
		return ErrBusy
	}
	s.uses++
	return nil
}

// Leave ends a statement. Err is what has come of it, and outcome is what that means.
func (s *Session) Leave(outcome Outcome, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses--
	switch {
	case outcome == MayPass || outcome == Ended:
		s.passing = err
	case outcome == Recovered && s.undone == nil:
		s.passing = nil
	}
	if outcome == Ended && s.undone == nil {
		s.undone = fmt.Errorf("%w: %w", errEnded, err)
	}
}

// Spoil has nothing committed, because of an error.
func (s *Session) Spoil(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undone == nil {
		s.undone = err
	}
}

// fail notes that there is no transaction to be committed.
func (s *Session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
	s.undone = s.failed
}

// Keep is KeepEffects of a store: what the handler did is committed whatever the status of the answer is.
func (s *Session) Keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = true
}

// Renounce undoes the transaction for the handler. Even if it fails nothing is committed: the handler, which cannot do more
// than ask, relies on that.
func (s *Session) Renounce(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.undone != nil {
		return sql.ErrTxDone
	}
	s.used, s.undone = true, errRolled
	if s.uses > 0 {
		return ErrBusy
	}
	return s.attempt.Undo(ctx)
}

// end takes the transaction from the handler, and reports whether nobody is using it.
func (s *Session) end() bool {
	s.mu.Lock()
	s.ended = true
	late := s.Handler != nil && s.Handler.Err() != nil
	if s.Bridge.isOpen() && late && s.undone == nil { // database/sql may have kept statements back
		s.undone = fmt.Errorf("%w: %w", errEnded, context.Cause(s.Handler))
		s.passing = s.undone
	}
	free := s.uses == 0
	s.mu.Unlock()
	s.Bridge.Close(free)
	return free
}

// isAlive reports whether the transaction can still be committed. While a statement runs, the connection is not asked:
// the statement itself will notice. Nor is it while the transaction is committed.
func (s *Session) isAlive(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.uses > 0 || s.attempt.Alive(ctx)
}

// judge says whether what the handler did must be undone before its response is stored. It returns an error if nothing
// is to be stored.
func (s *Session) judge(resp *idempotency.Response) (undo bool, err error) {
	s.mu.Lock() // a goroutine that is left behind may still ask for something
	defer s.mu.Unlock()
	refuses := resp.Status >= http.StatusBadRequest && !s.kept
	switch {
	case errors.Is(s.failed, idempotency.ErrClaimLost):
		return false, s.failed
	case s.failed != nil:
		return false, RolledBack(s.failed)
	case s.passing != nil && (s.undone != nil || refuses):
		return false, RolledBack(fmt.Errorf("%w: %w", errPassing, s.passing))
	case s.undone != nil && !refuses:
		return false, RolledBack(s.undone)
	}
	return s.used && refuses, nil
}
