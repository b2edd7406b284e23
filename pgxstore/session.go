package pgxstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// session is the connection as the handler has it.
type session struct {
	conn       *pgx.Conn
	handler    context.Context
	state      atomic.Int32
	checking   sync.Mutex // held while the state is checked
	savepoints atomic.Int64
	bridge     bridge
	id         string // of the transaction, for PostgreSQL; empty: not asked for

	used            atomic.Bool // by the handler
	undone          atomic.Bool // the transaction must not be committed
	undoneByHandler atomic.Bool // and is rolled back
	passing         atomic.Bool // a statement has failed for a reason that may pass
	kept            atomic.Bool // by KeepEffects
	lent            atomic.Bool // there is a way to the connection that is not watched
	raw             atomic.Bool // and the handler has it by Conn
	readOnly        atomic.Bool // a statement was refused because it writes
}

// The states of a session.
const (
	idle int32 = iota
	busy
	checked // whether it is alive
	ended
)

// errBusy is what two goroutines get that use a transaction at the same time, or one that has left rows open.
var errBusy = errors.New("pgxstore: the transaction is in use: another goroutine uses it, or rows are open")

// acquire makes the caller the only user of the connection, until release.
func (s *session) acquire() error {
	s.used.Store(true)
	if s.state.CompareAndSwap(idle, busy) {
		return nil
	}
	switch s.state.Load() {
	case ended:
		return pgx.ErrTxClosed
	case busy:
		return errBusy
	default: // it is checked, or was when this call began
		s.awaitCheck()
		return s.acquire()
	}
}

func (s *session) release() { s.state.CompareAndSwap(busy, idle) }

// end takes the connection from the handler, and reports whether nobody was using it.
func (s *session) end() bool {
	s.checking.Lock()
	defer s.checking.Unlock()
	free := s.state.Swap(ended) == idle
	if s.bridge.used() && s.handler.Err() != nil { // database/sql may have kept statements back
		s.undone.Store(true)
		s.passing.Store(true)
	}
	return free
}

// use is one call of the handler. It may outlast the method that begins it, by the rows that are still to be read.
type use struct {
	of   *session
	ctx  context.Context
	over bool
}

// done ends the call. One that was not made because its context is over undoes the transaction, as one does that was
// interrupted: the handler may believe it was made, or take it for a refusal by the database.
func (u *use) done(err error) {
	if u.over {
		return
	}
	u.over = true
	if over := u.ctx.Err(); over != nil && errors.Is(err, over) {
		u.of.undone.Store(true)
		u.of.passing.Store(true)
	}
	if mayPass(err) {
		u.of.passing.Store(true)
	}
	if refusesWrites(err) {
		u.of.readOnly.Store(true)
	}
	u.of.release()
}

// mayPass reports whether the server has refused a statement for a reason that is not in the statement or in the data:
// a conflict with other transactions, a lock, a lack of resources, an intervention, or a fault of the server.
func mayPass(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(e.Code) != 5 {
		return false
	}
	return e.Code == "55P03" || slices.Contains([]string{"40", "53", "57", "58", "XX"}, e.Code[:2])
}

// openRows end the call that asked for them when they are closed.
type openRows struct {
	pgx.Rows
	use
}

func (r *openRows) Close() {
	r.Rows.Close()
	r.done(r.Err())
}

func (r *openRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.done(r.Err())
	}
	return more
}

// Scan closes the rows if it fails, as that of pgx does.
func (r *openRows) Scan(dest ...any) error { return r.closeIf(r.Rows.Scan(dest...)) }

func (r *openRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	return values, r.closeIf(err)
}

func (r *openRows) closeIf(err error) error {
	if err != nil {
		r.Close()
	}
	return err
}

// openRow ends the call when it is scanned.
type openRow struct {
	pgx.Row
	use
}

func (r *openRow) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	r.done(err)
	return err
}

// openBatch ends the call when it is closed.
type openBatch struct {
	pgx.BatchResults
	use
}

func (b *openBatch) Close() error {
	err := b.BatchResults.Close()
	b.done(err)
	return err
}

// refusedRows are the rows of a query that was not asked.
type refusedRows struct {
	pgx.Rows
	err error
}

func (r refusedRows) Err() error        { return r.err }
func (r refusedRows) Close()            {}
func (r refusedRows) Next() bool        { return false }
func (r refusedRows) Scan(...any) error { return r.err }

func (r refusedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// refusedBatch are the results of a batch that was not sent.
type refusedBatch struct {
	pgx.BatchResults
	err error
}

func (b refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b refusedBatch) Query() (pgx.Rows, error)         { return refusedRows{err: b.err}, b.err }
func (b refusedBatch) QueryRow() pgx.Row                { return refusedRows{err: b.err} }
func (b refusedBatch) Close() error                     { return b.err }
