package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// attempt implements [sqlstore.SQLAttempt]. It begins with a marker: its record, in front of what the handler does, as
// it is to be read if a statement of the handler commits. It is that of an operation that was completed, and whose
// answer is not known. The response takes its place before the commit.
type attempt struct {
	store   *TxStore
	digest  [32]byte
	names   sqlstore.Names
	request *idempotency.ClaimRequest

	conn    *sql.Conn
	changed bool   // the session is not as it was
	wait    int64  // wait_timeout of the session, before
	lock    string // name of that of the key
	largest int64  // packet that the server takes
	seen    *sqlstore.Row

	record        idempotency.Record
	marker, token []byte
	undone        bool // there is no marker any more
}

var _ sqlstore.SQLAttempt = (*attempt)(nil)

// begin gives the attempt another connection.
func (a *attempt) begin(conn *sql.Conn) {
	a.conn, a.changed = conn, false
	a.marker, a.token = sqlstore.NewToken(), sqlstore.NewToken() // nobody knows what became of earlier ones
}

// claim claims the key, or returns the record that holds it.
func (a *attempt) claim(ctx context.Context) (*idempotency.Record, error) {
	for n := 0; ; n++ {
		found, err := a.look(ctx)
		if found != nil || err != nil {
			return found, err
		}
		marked, err := a.mark(ctx)
		if marked || err != nil && !isDuplicate(err) {
			return nil, err
		}
		if err := a.end(ctx); err != nil {
			return nil, err
		}
		// Another session was faster. The next look finds what it has made.
		if !sqlstore.Pause(ctx, sqlstore.Growing(n, time.Millisecond)) {
			return nil, ctx.Err()
		}
	}
}

// look returns the record that holds the key, or none if it can be claimed.
func (a *attempt) look(ctx context.Context) (*idempotency.Record, error) {
	v := values{"{digest}", binary(a.digest[:]), "{table}", text(a.store.opts.table())}
	rows, err := a.conn.QueryContext(ctx, v.in(a.store.sql.look))
	if err != nil {
		return nil, err
	}
	var autocommit, uncommitted bool
	var free sql.NullBool
	a.seen, a.largest, err = scan(rows, &autocommit, &uncommitted, &a.wait, &a.lock, &free)
	switch {
	case err != nil:
		return nil, err
	case !autocommit:
		return nil, errAutocommit
	case uncommitted:
		return nil, errUncommitted
	}
	isHeld, record, err := a.seen.Held(a.names, a.request)
	switch {
	case isHeld:
		return &record, err
	case free.Valid && !free.Bool:
		return &running, nil
	}
	return nil, nil
}

// mark locks the key and makes the marker. It does not if another session was faster.
func (a *attempt) mark(ctx context.Context) (bool, error) {
	a.record = a.seen.Next(a.request)
	a.record.NoLease = true
	a.changed = true
	idle := values{"{idle}", integer(a.store.opts.idleSeconds()), "{lock}", text(a.lock)}
	if err := a.run(ctx, idle.in(a.store.sql.lock)); err != nil {
		return false, err
	}
	unknown, err := idempotency.Response{Omitted: true}.MarshalBinary()
	if err != nil {
		return false, err
	}
	ttl := max(a.request.TTL, a.request.Lease)
	return a.put(ctx, a.marker, unknown, ttl, "@idempotency_lock = 1")
}

// put makes the record of the attempt, on a condition, and reports whether it has.
func (a *attempt) put(ctx context.Context, token, response []byte, ttl time.Duration, locked string) (bool, error) {
	place, arg := placed(response)
	v := values{
		"{digest}", binary(a.digest[:]),
		"{user}", text(a.names[0]), "{endpoint}", text(a.names[1]), "{key}", text(a.names[2]),
		"{attempt}", integer(int64(a.record.Attempt)), "{fingerprint}", binary(a.record.Fingerprint[:]),
		"{token}", binary(token), "{created}", integer(a.record.Created.UnixMicro()),
		"{ttl}", integer(sqlstore.Micros(ttl)), "{response}", place, "{answer_size}", integer(int64(len(response))),
		"{locked}", locked,
	}
	if !a.seen.Found {
		return a.change(ctx, v.in(a.store.sql.insert), arg...)
	}
	return a.change(ctx, append(v, seenValues(a.seen)...).in(a.store.sql.replace), arg...)
}

// Conn implements [sqlstore.SQLAttempt].
func (a *attempt) Conn(context.Context) (*sql.Conn, error) { return a.conn, nil }

// Undo implements [sqlstore.Attempt]. The session keeps the lock of the key.
func (a *attempt) Undo(ctx context.Context) error {
	err := a.run(ctx, "ROLLBACK")
	a.undone = a.undone || err == nil
	return err
}

// Alive implements [sqlstore.Attempt]. It asks the server, which takes that for a sign of life: a handler may take
// longer than the session may be silent.
func (a *attempt) Alive(ctx context.Context) bool { return a.conn.PingContext(ctx) == nil }

// Rollback implements [sqlstore.Attempt].
func (a *attempt) Rollback(ctx context.Context) error {
	if err := a.run(ctx, "ROLLBACK"); err != nil { // to leave the session as it was would commit
		a.drop()
		return failure("release", err)
	}
	return failure("release", a.giveBack(ctx, nil))
}

// HangUp implements [sqlstore.Attempt]. The contexts of the statements that run have ended before.
func (a *attempt) HangUp() { a.drop() }

// Commit implements [sqlstore.Attempt]. Half of the time is for finding out what became of a commit that is not
// answered.
func (a *attempt) Commit(ctx context.Context, resp idempotency.Response, ttl time.Duration, undo bool) error {
	step, cancel := half(ctx)
	defer cancel()
	var err error
	if undo && !a.undone {
		err = a.Undo(step)
	}
	if err == nil {
		err = a.settle(step, resp, ttl)
	}
	if err != nil {
		_ = a.Rollback(step) // if it fails the connection is closed
		return sqlstore.RolledBack(err)
	}
	if err = a.giveBack(step, nil); err == nil {
		return nil
	}
	return a.resolve(ctx, err)
}

// settle makes the record with its response.
func (a *attempt) settle(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	whole, tombstone, err := sqlstore.Stored(resp)
	if err != nil {
		return err
	}
	if !fits(len(whole), a.largest) { // the server closes the connection on which it is sent more
		whole = tombstone
	}
	stored, err := a.answer(ctx, whole, ttl)
	if isTooLarge(err) {
		stored, err = a.answer(ctx, tombstone, ttl)
	}
	if err == nil && !stored {
		err = errEnded
	}
	return err
}

// answer stores a response, and reports whether there was a place for it.
func (a *attempt) answer(ctx context.Context, response []byte, ttl time.Duration) (bool, error) {
	if a.undone {
		return a.answerAnew(ctx, response, ttl)
	}
	place, arg := placed(response)
	v := values{"{digest}", binary(a.digest[:]), "{marker}", binary(a.marker), "{token}", binary(a.token),
		"{ttl}", integer(sqlstore.Micros(ttl)), "{response}", place, "{answer_size}", integer(int64(len(response)))}
	return a.change(ctx, v.in(a.store.sql.answer), arg...)
}

// answerAnew stores a response in a transaction of its own.
func (a *attempt) answerAnew(ctx context.Context, response []byte, ttl time.Duration) (stored bool, err error) {
	for n := 0; ; n++ {
		stored, err = a.put(ctx, a.token, response, ttl, "TRUE")
		if !isConflict(err) || !sqlstore.Pause(ctx, sqlstore.Growing(n, time.Millisecond)) {
			break
		}
	}
	if isDuplicate(err) { // the marker was committed, or another session was faster
		return false, nil
	}
	return stored, err
}

// inline is the largest response that is a literal. A parameter takes a round trip more.
const inline = 16 << 10

// placed returns what stands for a response in a statement, and its parameter if that is one.
func placed(response []byte) (string, []any) {
	if len(response) <= inline {
		return binary(response), nil
	}
	return "UNHEX(?)", []any{digits(response)}
}

// end commits what there is to commit, and leaves the session as it was.
func (a *attempt) end(ctx context.Context) error {
	err := a.run(ctx, values{"{wait}", integer(a.wait), "{lock}", text(a.lock)}.in(a.store.sql.end))
	a.changed = err != nil
	return err
}

// giveBack gives the connection back to the pool, after a statement that has returned an error. It closes one that
// may not be as it was.
func (a *attempt) giveBack(ctx context.Context, failed error) (err error) {
	if a.changed && isAnswer(failed) {
		err = a.end(ctx)
	}
	if a.changed || !isAnswer(failed) {
		a.drop()
		return err
	}
	return a.conn.Close()
}

// drop closes the connection. The server rolls back.
func (a *attempt) drop() {
	_ = a.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = a.conn.Close()
}

// resolve finds out what became of a commit that was not answered, or refused.
func (a *attempt) resolve(ctx context.Context, cause error) error {
	for {
		token, err := a.outcome(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows), err == nil && a.isBefore(token):
			return sqlstore.RolledBack(cause)
		case err == nil && string(token) == string(a.token):
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause)
		case !sqlstore.Pause(ctx, 20*time.Millisecond):
			return sqlstore.RolledBack(fmt.Errorf("in doubt: %w", cause))
		}
	}
}

// isBefore reports whether a record with a token has not got the response: it is the marker, or the one in its place.
func (a *attempt) isBefore(token []byte) bool {
	return bytes.Equal(token, a.marker) || a.seen.Found && bytes.Equal(token, a.seen.Token)
}

// outcome returns the token of the record when no transaction has it any more.
func (a *attempt) outcome(ctx context.Context) (token []byte, err error) {
	ctx, cancel := half(ctx)
	defer cancel()
	query := values{"{digest}", binary(a.digest[:])}.in(a.store.sql.outcome)
	err = a.store.db.QueryRowContext(ctx, query).Scan(&token)
	return token, err
}

func (a *attempt) run(ctx context.Context, statement string) error {
	_, err := a.conn.ExecContext(ctx, statement)
	return err
}

// change runs a statement that changes a record, and reports whether it has. A parameter is not left to the driver to
// interpolate, which makes it larger.
func (a *attempt) change(ctx context.Context, statement string, parameters ...any) (bool, error) {
	if len(parameters) == 0 {
		return changed(a.conn.ExecContext(ctx, statement))
	}
	stmt, err := a.conn.PrepareContext(ctx, statement)
	if err != nil {
		return false, err
	}
	defer stmt.Close()
	return changed(stmt.ExecContext(ctx, parameters...))
}

func changed(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}
