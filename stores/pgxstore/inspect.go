package pgxstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Table)(nil)

// statementsForInspection returns the statements, or the faults of the options.
func (t *Table) statementsForInspection(ctx context.Context) (statements, error) {
	if t.optionFaults != nil {
		return nil, t.optionFaults
	}
	return t.loadStatements(ctx)
}

// Inspect implements [idempotency.Inspector]. The role needs only SELECT on the table.
//
// Inspect shows a record before the standbys have it. A replay waits for the standbys, see the package documentation.
func (t *Table) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return t.inspectRecord(ctx, asUUID(key.OperationID()), &key)
}

// InspectOperation implements [idempotency.Inspector].
func (t *Table) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	return t.inspectRecord(ctx, asUUID(operation), nil)
}

// inspectRecord returns the entry of the record of operation. If key is not nil, inspectRecord compares the
// names of the record with key.
func (t *Table) inspectRecord(
	ctx context.Context, operation pgtype.UUID, key *idempotency.Key,
) (entry idempotency.Entry, err error) {
	found := t.newInspectedRecord(operation, key)
	sql, err := t.statementsForInspection(ctx)
	if err == nil {
		err = t.retryOnConn(ctx, new(bool), fromPool, func(conn *pgx.Conn) error {
			*found = *t.newInspectedRecord(operation, key)
			return found.scanRow(conn.QueryRow(ctx, sql["inspect"], operation))
		})
	}
	if err == nil {
		entry, err = found.buildEntry()
	}
	return entry, wrapError("inspect", err)
}

// List implements [idempotency.Inspector]. List reads the whole table except for the answers, or uses an index that you
// have made for the names or times that request asks for. The role needs only SELECT on the table. With DigestNames, List
// finds the records of a user, an endpoint or a key, but the entries have no names.
//
// With request.Each, List reads the table once instead of twice, and keeps a connection and its snapshot until the end.
func (t *Table) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if err := request.Validate(); err != nil {
		return idempotency.Listing{}, wrapError("list", errors.Join(t.optionFaults, err))
	}
	sql, err := t.statementsForInspection(ctx)
	if err != nil {
		return idempotency.Listing{}, wrapError("list", err)
	}
	var conn *pgx.Conn
	repeat := func(step func() error) error {
		return t.retryOnConn(ctx, new(bool), fromPool, func(borrowed *pgx.Conn) error {
			conn = borrowed
			return step()
		})
	}
	listing, err := sqlstore.RepeatList(request, repeat, func(request idempotency.ListRequest) (idempotency.Listing, error) {
		listing := idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
		if request.Each != nil {
			err := streamEntries(ctx, conn, sql["each"], request, &listing)
			return listing, err
		}
		var batch pgx.Batch
		batch.Queue(sql["list"], append(askedFor(request), pageArgs(request)...)...).Query(scanEntries(&listing))
		batch.Queue(sql["totals"], askedFor(request)...).Query(scanTotals(&listing))
		err := conn.SendBatch(ctx, &batch).Close()
		return listing, err
	})
	if err != nil {
		return idempotency.Listing{}, wrapError("list", err)
	}
	return listing, nil
}

// askedFor returns the parameters for {asked_for}.
func askedFor(request idempotency.ListRequest) []any {
	states := make([]string, 0, len(request.States))
	for _, state := range request.States {
		states = append(states, string(state))
	}
	args := make([]any, 9) // null asks for all
	args[0] = states
	names := sqlstore.NamesOf(idempotency.Key{User: request.User, Endpoint: request.Endpoint, ID: request.ID})
	for i, name := range names {
		if name != "" {
			args[1+i], args[4+i] = name, digestName(name)
		}
	}
	for i, bound := range []time.Time{request.Since, request.Before} {
		if !bound.IsZero() {
			args[7+i] = time.UnixMicro(sqlstore.MicrosSince(bound))
		}
	}
	return args
}

// pageArgs returns the parameters of list.sql behind those of askedFor.
func pageArgs(request idempotency.ListRequest) []any {
	args := []any{string(cmp.Or(request.Order, idempotency.NewestFirst)), int64(cmp.Or(request.Limit, 100)), nil, nil, nil}
	if last := request.After; last != nil {
		args[2], args[3], args[4] = last.Created, asUUID(last.Operation), last.Size
	}
	return args
}

// inspectedRecord is a record with all columns that inspect.sql returns.
type inspectedRecord struct {
	operation  pgtype.UUID
	key        *idempotency.Key // nil if only the operation is known
	askedNames sqlstore.Names   // of the key

	storedRow         row
	storedNames       sqlstore.Names
	completedAt       pgtype.Timestamptz
	byteSize          int64
	state             string
	stepNames         []string
	stepSizes         []int // in bytes, in the order of stepNames
	encodedResolution []byte
}

func (t *Table) newInspectedRecord(operation pgtype.UUID, key *idempotency.Key) *inspectedRecord {
	s := &inspectedRecord{operation: operation, key: key}
	if key != nil {
		s.askedNames = t.opts.keyNames(*key)
	}
	return s
}

// scanRow scans a row of inspect.sql. Without a row, the inspectedRecord remains empty.
func (s *inspectedRecord) scanRow(from pgx.Row) error {
	var stored [3]pgtype.Text
	columns := s.storedRow.scanTargets(&s.askedNames, &s.completedAt, &s.byteSize, &s.state, &s.stepNames, &s.stepSizes,
		&s.encodedResolution)
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
		s.storedNames[i] = stored[i].String
		_ = s.storedRow.keyNames[i].ScanBytes([]byte(stored[i].String)) // ScanBytes always succeeds
	}
	// Without a key, the names are accepted if they belong to the operation, or are digests themselves.
	if _, isShown := s.storedKey(); s.key == nil && (isShown || areDigests(s.storedNames)) {
		for i := range s.storedRow.keyNames {
			s.storedRow.keyNames[i].form = sameName
		}
	}
	return nil
}

// buildEntry returns the record as an entry. The error wraps [idempotency.ErrNoRecord] or [idempotency.ErrRecordInvalid].
func (s *inspectedRecord) buildEntry() (idempotency.Entry, error) {
	r := &s.storedRow
	if !r.expiresAt.Valid || r.isExpired() {
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	record, err := r.decodeRecord(idempotency.Fingerprint{})
	e := s.buildBareEntry()
	e.Key, _ = s.storedKey()
	copy(e.Fingerprint[:], r.fingerprint)
	for i, name := range s.stepNames {
		e.Steps = append(e.Steps, idempotency.StepSize{Name: name, Bytes: s.stepSizes[i]})
	}
	if err == nil && record.Response != nil {
		e.Response, e.Note = record.Response, record.Response.Note
	}
	var resolved idempotency.Resolved
	if err == nil && s.encodedResolution != nil {
		if err = resolved.UnmarshalBinary(s.encodedResolution); err == nil {
			e.Resolved = &resolved
		}
	}
	return e, err
}

// buildBareEntry returns the entry without names, fingerprint, note and response.
func (s *inspectedRecord) buildBareEntry() idempotency.Entry {
	r := &s.storedRow
	e := idempotency.Entry{
		Operation: s.operation.Bytes, State: idempotency.State(s.state),
		Attempt: int(r.attempt.Int32), Created: r.createdAt.Time, Completed: s.completedAt.Time, LeaseLeft: r.leaseLeft(),
		Remaining: r.remainingTime(), Size: s.byteSize, Status: int(r.status.Int32),
	}
	if reason := idempotency.EndReason(r.note.String); e.State != idempotency.StateCompleted && reason.IsValid() {
		e.Ended = reason
	}
	return e
}

// explainUnchanged returns the reason why a statement has not changed the record.
func (s *inspectedRecord) explainUnchanged() error {
	entry, err := s.buildEntry()
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return err
	case entry.State == idempotency.StateRunning:
		return idempotency.ErrInProgress
	default:
		return idempotency.ErrEntryChanged
	}
}

// storedKey returns the key of the record. isShown is false if the names are digests, or do not belong to the
// operation.
func (s *inspectedRecord) storedKey() (key idempotency.Key, isShown bool) {
	key = s.storedNames.Key()
	if key.OperationID() != s.operation.Bytes || sqlstore.NamesOf(key) != s.storedNames {
		return idempotency.Key{}, false
	}
	return key, true
}

// areDigests reports whether all stored names look like digests.
func areDigests(stored sqlstore.Names) bool {
	return !slices.ContainsFunc(stored[:], func(name string) bool {
		sum, err := hex.DecodeString(name)
		return err != nil || len(sum) != sha256.Size
	})
}

// listTargets returns the targets for the columns of list.sql.
func (s *inspectedRecord) listTargets() []any {
	r := &s.storedRow
	return []any{&s.operation, &s.storedNames[0], &s.storedNames[1], &s.storedNames[2], &r.attempt, &r.createdAt,
		&r.leaseUntil, &r.expiresAt, &r.serverTime, &s.completedAt, &r.status, &s.byteSize, &s.state, &r.note}
}

// buildListedEntry returns the entry of a record that was scanned to listTargets.
func (s *inspectedRecord) buildListedEntry() idempotency.Entry {
	e := s.buildBareEntry()
	e.Key, _ = s.storedKey()
	if e.State == idempotency.StateCompleted {
		e.Note = s.storedRow.note.String
	}
	return e
}

// scanEntries returns a function that appends the rows of list.sql to listing.
func scanEntries(listing *idempotency.Listing) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var s inspectedRecord
		_, err := pgx.ForEachRow(rows, s.listTargets(), func() error {
			listing.Entries = append(listing.Entries, s.buildListedEntry())
			return nil
		})
		return err
	}
}

// streamEntries calls request.Each with the records that each.sql returns, and counts the records in listing.
func streamEntries(
	ctx context.Context, conn *pgx.Conn, sql string, request idempotency.ListRequest, listing *idempotency.Listing,
) error {
	_ = conn.PgConn().Conn().SetDeadline(time.Time{}) // runWithDeadline has left time for another try
	ctx, cancel := context.WithCancel(ctx)
	rows, _ := conn.Query(ctx, sql, askedFor(request)...) // Err returns the error
	defer rows.Close()
	defer cancel() // before Close, which would read all remaining rows after an error of Each
	var s inspectedRecord
	var isReadable bool
	targets := append(s.listTargets(), &isReadable)
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		if !isReadable {
			listing.Unreadable++
			continue
		}
		e := s.buildListedEntry()
		sqlstore.AddTotal(listing, e)
		if err := request.Each(e); err != nil {
			return err
		}
	}
	return rows.Err()
}

// scanTotals returns a function that adds the rows of totals.sql to listing.
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

// UserTotal is the number and the size of all records of a user.
type UserTotal struct {
	// User is the user of the records. With DigestNames, User is the SHA-256 of the user in hexadecimal.
	User string

	idempotency.Total
}

// LargestUsers returns up to limit users with the largest total size of records, largest first. LargestUsers reads the
// whole table except for the answers. The role needs only SELECT on the table.
func (t *Table) LargestUsers(ctx context.Context, limit int) (users []UserTotal, err error) {
	sql, err := t.statementsForInspection(ctx)
	if err != nil {
		return nil, wrapError("users", err)
	}
	err = t.retryOnConn(ctx, new(bool), fromPool, func(conn *pgx.Conn) error {
		users = nil
		rows, _ := conn.Query(ctx, sql["users"], int64(limit)) // ForEachRow returns the error
		var u UserTotal
		_, err := pgx.ForEachRow(rows, []any{&u.User, &u.Records, &u.Bytes}, func() error {
			u.User = sqlstore.UnescapeName(u.User)
			users = append(users, u)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, wrapError("users", err)
	}
	return users, nil
}

// Forget implements [idempotency.Inspector]. The role needs SELECT and DELETE on the table.
//
// If a step of the operation (see [DoTx]) locks the record for longer than a second, Forget returns
// [idempotency.ErrInProgress].
func (t *Table) Forget(ctx context.Context, entry idempotency.Entry) error {
	sql, err := t.statementsForInspection(ctx)
	if err != nil {
		return wrapError("forget", err)
	}
	found, err := t.changeEntry(ctx, sql, "forget", entry, string(entry.State))
	if err == nil && !found.isChanged {
		err = found.explainUnchanged()
	}
	if found.isReplyLost && errors.Is(err, idempotency.ErrNoRecord) { // an earlier try has deleted the record
		return nil
	}
	return wrapError("forget", err)
}

// Resolve implements [idempotency.Resolver]. The role needs SELECT and UPDATE on the table. Resolve waits for the lock of
// a step as Forget does.
//
// If a reply of the server is lost, Resolve asks again, and recognises its own token in the record. If another attempt
// has begun by then, Resolve cannot tell whether its resolution made that attempt possible. It then returns an error that
// says so, and that wraps none of the errors of the interface.
func (t *Table) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	return wrapError("resolve", t.resolveEntry(ctx, entry, resolution))
}

func (t *Table) resolveEntry(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	sql, err := t.statementsForInspection(ctx)
	if err := errors.Join(err, t.checkTTL(resolution.TTL)); err != nil {
		return err
	}
	entry.State = idempotency.StateAbandoned // resolve.sql changes only abandoned records
	token := newUUID()
	resolved, err := resolution.Resolved(entry).MarshalBinary()
	if err != nil {
		return err
	}
	openMarks := append([]string{}, entry.OpenMarks()...) // an empty array, because the parameter must not be null
	args := []any{token, resolution.TTL.Microseconds(), resolved, openMarks}
	if resp := resolution.Response; resp != nil {
		args = responseArgs(*resp, args...)
	} else {
		args = append(args, nil, nil, nil, nil, nil)
	}
	found, err := t.changeEntry(ctx, sql, "resolve", entry, args...)
	if err != nil || found.isChanged {
		return err
	}
	if found.storedRow.token == token { // an earlier try has resolved the record
		return t.confirmRecord(ctx, sql, asUUID(entry.Operation), token, resolution.Response != nil)
	}
	if _, damage := found.buildEntry(); errors.Is(damage, idempotency.ErrRecordInvalid) {
		return damage
	}
	if found.isReplyLost && found.storedRow.attempt.Int32 != int32(entry.Attempt) {
		return fmt.Errorf("in doubt, because a reply of the server was lost; by now: %v", found.explainUnchanged())
	}
	return found.explainUnchanged()
}

// changeResult is the result of changeEntry, with the record as it was read after the change.
type changeResult struct {
	*inspectedRecord
	isChanged   bool // the statement has changed the record
	isReplyLost bool // an earlier try may have changed the record as well
}

// changeEntry runs the statement name, which changes the record of entry unless the record has changed since entry was
// read. Then changeEntry reads the record.
func (t *Table) changeEntry(
	ctx context.Context, sql statements, name string, entry idempotency.Entry, more ...any,
) (changeResult, error) {
	f := changeResult{inspectedRecord: t.newInspectedRecord(asUUID(entry.Operation), nil)}
	args := append([]any{asUUID(entry.Operation), entry.Created, int32(entry.Attempt)}, more...)
	err := t.retryOnConn(ctx, &f.isReplyLost, fromPool, func(conn *pgx.Conn) error {
		*f.inspectedRecord = *t.newInspectedRecord(asUUID(entry.Operation), nil)
		var batch pgx.Batch
		batch.Queue(beginReadCommitted)
		batch.Queue("set local lock_timeout = '1s'")
		batch.Queue(sql[name], args...).Exec(func(tag pgconn.CommandTag) error {
			f.isChanged = tag.RowsAffected() == 1
			return nil
		})
		batch.Queue(sql["inspect"], asUUID(entry.Operation)).QueryRow(f.scanRow)
		batch.Queue("commit")
		return conn.SendBatch(ctx, &batch).Close()
	})
	if isLockTimeout(err) {
		err = fmt.Errorf("%w: %w", idempotency.ErrInProgress, err)
	}
	return f, err
}
