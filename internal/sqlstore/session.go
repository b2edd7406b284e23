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

// session is the transaction as the handler has it. A handler may leave goroutines behind that still use it.
type session struct {
	dialect *Dialect
	attempt Attempt
	handler context.Context
	bridge  bridge

	mu     sync.Mutex // held while the attempt is asked whether it is alive, or undone
	uses   int        // statements that run, and rows that are open
	used   bool       // by the handler
	kept   bool       // by KeepEffects
	ended  bool       // the handler has returned
	undone error      // why it must not be committed
	failed error      // why it could not begin

	undoneByHandler bool  // and what it did is rolled back
	passing         error // of a statement that failed for a reason that may pass
}

var (
	errBusy    = errors.New("the transaction is in use: a statement runs, or rows are open")
	errEnded   = errors.New("the transaction has ended")
	errRolled  = errors.New("the handler has rolled its transaction back")
	errPassing = errors.New("a statement of the handler has failed for a reason that may pass")
)

// use is one statement of the handler. It lasts until its rows are closed, which may be after the call that begins it.
type use struct {
	of    *session
	asked context.Context // that the handler has given
	ctx   context.Context // ends with asked, with the use, and with the transaction
	end   context.CancelFunc
	over  bool
}

func (s *session) use(ctx, transaction context.Context) *use {
	u := &use{of: s, asked: ctx}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(transaction, cancel)
	u.ctx, u.end = ctx, func() { stop(); cancel() }
	return u
}

// enter begins a statement in a transaction, and returns the connection that it is to run on.
func (s *session) enter(ctx, transaction context.Context, query string) (*sql.Conn, *use, error) {
	if err := s.dialect.Refuse(query); err != nil {
		return nil, nil, err
	}
	if err := s.admit(); err != nil {
		return nil, nil, err
	}
	u := s.use(ctx, transaction)
	conn, err := s.attempt.Conn(u.ctx)
	if err != nil {
		s.fail(err)
		u.done(err)
		return nil, nil, err
	}
	return conn, u, nil
}

// admit counts a statement, if one may run.
func (s *session) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = true
	switch {
	case s.ended:
		return sql.ErrTxDone
	case s.undone != nil:
		return s.undone
	case s.dialect.Exclusive && s.uses > 0:
		return errBusy
	}
	s.uses++
	return nil
}

// fail notes that there is no transaction to be committed.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
	s.undone = s.failed
}

// done ends a statement. If it has failed and its context is over, the transaction is undone: the handler may believe
// that the statement was executed, or that the database has refused it.
func (u *use) done(err error) {
	s := u.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.over {
		return
	}
	u.over = true
	u.end()
	s.uses--
	if err == nil {
		return
	}
	outcome := s.dialect.Judge(err)
	if u.asked.Err() != nil {
		outcome = Ended
	}
	if outcome != Stands {
		s.passing = err
	}
	if outcome == Ended && s.undone == nil {
		s.undone = fmt.Errorf("%w: %w", errEnded, err)
	}
}

func (s *session) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = true
}

// rollback undoes the transaction for the handler. Even if it fails nothing is committed: the handler, which cannot do
// more than ask, relies on that.
func (s *session) rollback(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.undone != nil {
		return sql.ErrTxDone
	}
	s.used, s.undone = true, errRolled
	if s.uses > 0 {
		return errBusy
	}
	err := s.attempt.Undo(ctx)
	s.undoneByHandler = err == nil
	return err
}

// end takes the transaction from the handler, and reports whether nobody is using it.
func (s *session) end() bool {
	s.mu.Lock()
	s.ended = true
	late := s.handler != nil && s.handler.Err() != nil
	if s.bridge.isOpen() && late && s.undone == nil { // database/sql may have kept statements back
		s.undone = fmt.Errorf("%w: %w", errEnded, context.Cause(s.handler))
		s.passing = s.undone
	}
	free := s.uses == 0
	s.mu.Unlock()
	s.bridge.close(free)
	return free
}

// isAlive reports whether the transaction can still be committed. While a statement runs, the connection is not asked:
// the statement itself will notice.
func (s *session) isAlive(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	return s.uses > 0 || s.attempt.Alive(ctx)
}

// judge says whether what the handler did must be undone before its response is stored. It returns an error if nothing
// is to be stored.
func (s *session) judge(resp *idempotency.Response) (undo bool, err error) {
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
	case s.undoneByHandler && refuses:
		return false, nil
	case s.undone != nil:
		return false, RolledBack(s.undone)
	}
	return s.used && refuses, nil
}
