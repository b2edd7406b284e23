package pgxstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

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
	locked      bool // a session has the advisory lock of the key
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
	columns := s.row.columns(&s.asked, &s.completedAt, &s.size, &s.state, &s.locked, &s.stepNames, &s.stepSizes,
		&s.resolved)
	for i := range stored {
		columns[i] = &stored[i]
	}
	if err := from.Scan(columns...); err != nil {
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
	counts := r.expires.Valid && !r.expired()
	holds := counts && (r.status.Valid || s.state == string(idempotency.StateRunning))
	switch {
	case s.locked && !holds: // nothing else of a transaction can be seen before its commit
		return idempotency.Entry{Digest: s.digest, State: idempotency.StateRunning}, nil
	case !counts:
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
