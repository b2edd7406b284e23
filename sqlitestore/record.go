package sqlitestore

import (
	"bytes"
	"database/sql"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// names are user, endpoint and key, as people read them in the file. They show whose record it is.
type names [3]string

func namesOf(key idempotency.Key) names {
	return names{printable(key.User), printable(key.Endpoint), printable(key.ID)}
}

// printable returns s as text. The digest tells keys apart that become the same.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// row is a record as it is stored. Anybody who can write to the file may have written it.
type row struct {
	names       names
	operation   []byte
	attempt     int64
	fingerprint []byte
	token       []byte
	created     int64
	lease       sql.NullInt64 // not valid: nobody is running it
	expires     int64
	response    sql.Null[[]byte] // not valid: not completed
}

func (r *row) columns() []any {
	return []any{&r.names[0], &r.names[1], &r.names[2], &r.operation, &r.attempt, &r.fingerprint, &r.token, &r.created,
		&r.lease, &r.expires, &r.response}
}

// read returns the record that a query finds, or nil.
func read(rows *sql.Rows) (r *row, err error) {
	defer func() {
		if closed := rows.Close(); err == nil {
			err = closed
		}
	}()
	if !rows.Next() {
		return nil, rows.Err()
	}
	r = new(row)
	if err := rows.Scan(r.columns()...); err != nil {
		return nil, fmt.Errorf("%w: %w", idempotency.ErrRecordInvalid, err)
	}
	return r, nil
}

// check returns an error that wraps idempotency.ErrRecordInvalid if no store would have written the record for the key.
func (r *row) check(asked names, by idempotency.Fingerprint, now int64) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{idempotency.ErrRecordInvalid}, args...)...)
	}
	var none idempotency.Fingerprint // stands for one that cannot be seen, which is none of a record
	switch {
	case r.names != asked:
		return invalid("made for another key")
	case len(r.operation) != len(uuid.UUID{}):
		return invalid("operation of %d bytes", len(r.operation))
	case len(r.fingerprint) != len(by):
		return invalid("fingerprint of %d bytes", len(r.fingerprint))
	case bytes.Equal(r.fingerprint, none[:]) && by != none:
		return invalid("no fingerprint")
	case r.attempt < 1 || r.attempt >= math.MaxInt32:
		return invalid("attempt %d", r.attempt)
	case r.lease.Valid && r.response.Valid:
		return invalid("completed, with a lease")
	case r.lease.Valid && r.lease.Int64 > now && until(r.lease.Int64, now) == math.MaxInt64:
		return invalid("lease without end")
	}
	return nil
}

func (r *row) expired(now int64) bool { return r.expires <= now }

// claimable reports whether an attempt may claim the key of a record that has not expired.
func (r *row) claimable(request *idempotency.ClaimRequest, now int64) bool {
	if r.response.Valid || !bytes.Equal(r.fingerprint, request.Fingerprint[:]) {
		return false
	}
	return !r.lease.Valid || request.TakeOver && r.lease.Int64 <= now
}

// attempted returns what check has looked at: operation, attempt, fingerprint and creation.
func (r *row) attempted() idempotency.Record {
	return idempotency.Record{
		Operation: uuid.UUID(r.operation), Attempt: int(r.attempt), Fingerprint: idempotency.Fingerprint(r.fingerprint),
		Created: time.UnixMicro(r.created),
	}
}

// record returns the record for others to see, or an error that wraps idempotency.ErrRecordInvalid.
func (r *row) record(now int64) (idempotency.Record, error) {
	rec := r.attempted()
	if r.lease.Valid {
		rec.LeaseLeft = max(0, until(r.lease.Int64, now))
	}
	if !r.response.Valid {
		return rec, nil
	}
	var resp idempotency.Response
	if err := resp.UnmarshalBinary(r.response.V); err != nil {
		return idempotency.Record{}, err
	}
	if !possible(resp.Status) {
		return idempotency.Record{}, fmt.Errorf("%w: status %d", idempotency.ErrRecordInvalid, resp.Status)
	}
	rec.Response, rec.Remaining = &resp, until(r.expires, now)
	return rec, nil
}

// possible reports whether an operation may have been completed with a status. Zero is that of work without HTTP.
func possible(status int) bool {
	return status == 0 || status == http.StatusSwitchingProtocols || status >= 200 && status <= 999
}

// until returns the time from now to then, which are in microseconds, or the longest that there is.
func until(then, now int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	left := then - now
	switch {
	case then > now && (left < 0 || left > most):
		return math.MaxInt64
	case then < now && (left > 0 || left < -most):
		return math.MinInt64
	}
	return time.Duration(left) * time.Microsecond
}

// after returns the time d from now, in whole microseconds, and never earlier.
func after(now int64, d time.Duration) int64 {
	micros := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		micros++
	}
	return now + micros
}
