package pgxstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Table)(nil)

// inspecting returns the statements of an [idempotency.Inspector].
func (t *Table) inspecting(ctx context.Context) (statements, error) {
	if t.faults != nil {
		return nil, t.faults
	}
	return t.located(ctx)
}

// Inspect implements [idempotency.Inspector]. The role needs SELECT on the table, and no more.
//
// It does not wait for standbys as a replay does, see the package documentation.
func (t *Table) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return t.inspect(ctx, key.Digest(), &key)
}

// InspectDigest implements [idempotency.Resolver].
func (t *Table) InspectDigest(ctx context.Context, digest [32]byte) (idempotency.Entry, error) {
	return t.inspect(ctx, digest, nil)
}

func (t *Table) inspect(ctx context.Context, digest [32]byte, key *idempotency.Key) (entry idempotency.Entry, err error) {
	found := t.newSeen(digest, key)
	sql, err := t.inspecting(ctx)
	if err == nil {
		err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
			*found = *t.newSeen(digest, key)
			return found.scan(conn.QueryRow(ctx, sql["inspect"], digest[:]))
		})
	}
	if err == nil {
		entry, err = found.entry()
	}
	return entry, failure("inspect", err)
}

// List implements [idempotency.Inspector]. It reads the whole table, but no answers. The role needs SELECT on the
// table, and no more. With DigestNames, List finds the records of a user, but the entries have no names.
func (t *Table) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if request.Limit < 0 {
		return idempotency.Listing{}, fmt.Errorf("pgxstore: list: Limit is %d, less than zero", request.Limit)
	}
	sql, err := t.inspecting(ctx)
	if err != nil {
		return idempotency.Listing{}, failure("list", err)
	}
	states, users := make([]string, 0, len(request.States)), []string{}
	for _, state := range request.States {
		states = append(states, string(state))
	}
	if request.User != "" { // whichever form the table has it in
		user := sqlstore.EscapeName(request.User)
		users = append(users, user, digested(user))
	}
	after := []any{nil, nil, nil}
	if last := request.After; last != nil {
		after = []any{last.Created, last.Digest[:], last.Size}
	}
	var listing idempotency.Listing
	err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		listing = idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
		var batch pgx.Batch
		batch.Queue(sql["list"], append([]any{states, users, request.Largest, int64(cmp.Or(request.Limit, 100))}, after...)...).
			Query(scanEntries(&listing))
		batch.Queue(sql["totals"], states, users).Query(scanTotals(&listing))
		return conn.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return idempotency.Listing{}, failure("list", err)
	}
	return listing, nil
}

// seen is what inspect.sql tells of a key.
type seen struct {
	digest [32]byte
	key    *idempotency.Key // nil: only the digest is known
	asked  sqlstore.Names   // of the key

	row         row
	stored      sqlstore.Names
	completedAt pgtype.Timestamptz
	size        int64
	state       string
	stepNames   []string
	stepSizes   []int // in the order of the names
	resolved    []byte
}

func (t *Table) newSeen(digest [32]byte, key *idempotency.Key) *seen {
	s := &seen{digest: digest, key: key}
	if key != nil {
		s.asked = t.opts.names(*key)
	}
	return s
}

// scan reads what inspect.sql returns.
func (s *seen) scan(from pgx.Row) error {
	var stored [3]pgtype.Text
	columns := s.row.columns(&s.asked, &s.completedAt, &s.size, &s.state, &s.stepNames, &s.stepSizes, &s.resolved)
	for i := range stored {
		columns[i] = &stored[i]
	}
	switch err := from.Scan(columns...); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	for i := range stored {
		s.stored[i] = stored[i].String
		_ = s.row.names[i].ScanBytes([]byte(stored[i].String)) // never fails
	}
	if _, shown := s.storedKey(); s.key == nil && (shown || areDigests(s.stored)) {
		for i := range s.row.names {
			s.row.names[i].form = equal
		}
	}
	return nil
}

// entry returns the entry of the key. The error wraps [idempotency.ErrNoRecord] or [idempotency.ErrRecordInvalid].
func (s *seen) entry() (idempotency.Entry, error) {
	r := &s.row
	if !r.expires.Valid || r.expired() {
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	record, err := r.held(idempotency.Fingerprint{})
	e := s.bare()
	e.Key, _ = s.storedKey()
	copy(e.Fingerprint[:], r.fingerprint)
	for i, name := range s.stepNames {
		e.Steps = append(e.Steps, idempotency.StepSize{Name: name, Bytes: s.stepSizes[i]})
	}
	if err == nil && record.Response != nil {
		e.Response, e.Note = record.Response, record.Response.Note
	}
	var resolved idempotency.Resolved
	if err == nil && s.resolved != nil {
		if err = resolved.UnmarshalBinary(s.resolved); err == nil {
			e.Resolved = &resolved
		}
	}
	return e, err
}

// bare returns the entry without names, fingerprint, note and response.
func (s *seen) bare() idempotency.Entry {
	r := &s.row
	return idempotency.Entry{
		Digest: s.digest, State: idempotency.State(s.state),
		Attempt: int(r.attempt.Int32), Created: r.created.Time, Completed: s.completedAt.Time, LeaseLeft: r.leaseLeft(),
		Remaining: r.left(), Size: s.size, Status: int(r.status.Int32),
	}
}

// reason returns why the record was left alone.
func (s *seen) reason() error {
	entry, err := s.entry()
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return err
	case entry.State == idempotency.StateRunning:
		return idempotency.ErrInProgress
	default:
		return idempotency.ErrEntryChanged
	}
}

// storedKey returns the key of the record, if the names are not digests. Otherwise the key is empty, and shown is false.
func (s *seen) storedKey() (key idempotency.Key, shown bool) {
	key = s.stored.Key()
	if key.Digest() != s.digest || sqlstore.NamesOf(key) != s.stored {
		return idempotency.Key{}, false
	}
	return key, true
}

// areDigests reports whether names may be those of a key that they do not show.
func areDigests(stored sqlstore.Names) bool {
	return !slices.ContainsFunc(stored[:], func(name string) bool {
		sum, err := hex.DecodeString(name)
		return err != nil || len(sum) != sha256.Size
	})
}

// scanEntries reads what list.sql returns.
func scanEntries(listing *idempotency.Listing) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var s seen
		var digest []byte
		r := &s.row
		_, err := pgx.ForEachRow(rows, []any{&digest, &s.stored[0], &s.stored[1], &s.stored[2], &r.attempt, &r.created,
			&r.leaseUntil, &r.expires, &r.now, &s.completedAt, &r.status, &s.size, &s.state, &r.note}, func() error {
			if len(digest) != len(s.digest) {
				return fmt.Errorf("a digest of %d bytes", len(digest))
			}
			s.digest = [32]byte(digest)
			e := s.bare()
			e.Key, _ = s.storedKey()
			e.Note = r.note.String
			listing.Entries = append(listing.Entries, e)
			return nil
		})
		return err
	}
}

// scanTotals reads what totals.sql returns.
func scanTotals(listing *idempotency.Listing) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var state pgtype.Text
		var total idempotency.Total
		_, err := pgx.ForEachRow(rows, []any{&state, &total.Records, &total.Bytes}, func() error {
			if state.Valid {
				listing.Totals[idempotency.State(state.String)] = total
			} else {
				listing.Unreadable = total.Records
			}
			return nil
		})
		return err
	}
}

// UserTotal is what the records of one user are together.
type UserTotal struct {
	// User is the user of the records. With DigestNames, User is the SHA-256 of the user in hexadecimal.
	User string

	idempotency.Total
}

// LargestUsers returns the users whose records are the largest together, at most limit of them, the largest first. It reads
// the whole table, but no answers. The role needs SELECT on the table, and no more.
func (t *Table) LargestUsers(ctx context.Context, limit int) (users []UserTotal, err error) {
	sql, err := t.inspecting(ctx)
	if err != nil {
		return nil, failure("users", err)
	}
	err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		users = nil
		rows, _ := conn.Query(ctx, sql["users"], int64(limit)) // the rows have its error, too
		var u UserTotal
		_, err := pgx.ForEachRow(rows, []any{&u.User, &u.Records, &u.Bytes}, func() error {
			u.User = sqlstore.UnescapeName(u.User)
			users = append(users, u)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, failure("users", err)
	}
	return users, nil
}

// Forget implements [idempotency.Inspector]. The role needs SELECT and DELETE on the table.
//
// If a step of the operation, see [DoTx], keeps the lock of the row for longer than a second, the error is
// [idempotency.ErrInProgress].
func (t *Table) Forget(ctx context.Context, entry idempotency.Entry) error {
	sql, err := t.inspecting(ctx)
	if err != nil {
		return failure("forget", err)
	}
	found, err := t.change(ctx, sql, "forget", entry, string(entry.State))
	if err == nil && !found.changed {
		err = found.reason()
	}
	if found.lost && errors.Is(err, idempotency.ErrNoRecord) { // a try before has deleted it
		return nil
	}
	return failure("forget", err)
}

// Resolve implements [idempotency.Resolver]. The role needs SELECT and UPDATE on the table. Resolve waits for
// the lock of the row as Forget does.
//
// If an answer of the server is lost, Resolve asks again, and recognises its own token. If another attempt has begun by
// then, nobody can tell whether that was because of this resolution: the error says so, and is none of those of the
// interface.
func (t *Table) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	return failure("resolve", t.resolve(ctx, entry, resolution))
}

func (t *Table) resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	sql, err := t.inspecting(ctx)
	if err := errors.Join(err, t.mayKeep(resolution.TTL)); err != nil {
		return err
	}
	entry.State = idempotency.StateAbandoned // nothing else is resolved
	token := newUUID()
	resolved, err := resolution.Resolved(entry).MarshalBinary()
	if err != nil {
		return err
	}
	args := []any{token, resolution.TTL.Microseconds(), resolved, append([]string{}, entry.OpenMarks()...)} // not null
	if resp := resolution.Response; resp != nil {
		args = responseArgs(*resp, args...)
	} else {
		args = append(args, nil, nil, nil, nil, nil)
	}
	found, err := t.change(ctx, sql, "resolve", entry, args...)
	if err != nil || found.changed {
		return err
	}
	if found.row.token == token { // by a try that was not answered
		return t.confirm(ctx, sql, entry.Digest, token, resolution.Response != nil)
	}
	if _, damage := found.entry(); errors.Is(damage, idempotency.ErrRecordInvalid) {
		return damage
	}
	if found.lost && found.row.attempt.Int32 != int32(entry.Attempt) {
		return fmt.Errorf("in doubt: an answer of the server was lost, and by now: %v", found.reason())
	}
	return found.reason()
}

// found is what a change has found.
type found struct {
	*seen
	changed bool // the record was as it was shown, and is changed
	lost    bool // a try was not answered: it may have changed the record
}

// change runs a statement that changes the record of an entry unless the record has changed since, and reads the record after that.
func (t *Table) change(ctx context.Context, sql statements, name string, entry idempotency.Entry, more ...any) (found, error) {
	f := found{seen: t.newSeen(entry.Digest, nil)}
	args := append([]any{entry.Digest[:], entry.Created, int32(entry.Attempt)}, more...)
	err := t.retry(ctx, &f.lost, pooled, func(conn *pgx.Conn) error {
		*f.seen = *t.newSeen(entry.Digest, nil)
		var batch pgx.Batch
		batch.Queue(beginReadCommitted)
		batch.Queue("set local lock_timeout = '1s'")
		batch.Queue(sql[name], args...).Exec(func(tag pgconn.CommandTag) error {
			f.changed = tag.RowsAffected() == 1
			return nil
		})
		batch.Queue(sql["inspect"], entry.Digest[:]).QueryRow(f.scan)
		batch.Queue("commit")
		return conn.SendBatch(ctx, &batch).Close()
	})
	if isLockTimeout(err) {
		err = fmt.Errorf("%w: %w", idempotency.ErrInProgress, err)
	}
	return f, err
}
