package sqlstore

import (
	"bytes"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Names are user, endpoint and key as the columns have them, for people to read. They show whose record it is.
type Names [3]string

// NamesOf returns the names of a key.
func NamesOf(key idempotency.Key) Names {
	return Names{EscapeName(key.User), EscapeName(key.Endpoint), EscapeName(key.ID)}
}

// Key returns the key whose names these are.
func (n Names) Key() idempotency.Key {
	return idempotency.Key{User: UnescapeName(n[0]), Endpoint: UnescapeName(n[1]), ID: UnescapeName(n[2])}
}

// EscapeName returns a name in the form that [idempotency.Fields] have: visible ASCII characters and spaces stand for
// themselves, and the other bytes and the backslash are written as \xHH. Every database can store the result, whatever
// its encoding and the encodings of its clients are, because all of them have these characters. Different names stay
// different.
func EscapeName(name string) string {
	const digits = "0123456789abcdef"
	var escaped []byte
	done := 0
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '\\' {
			escaped = append(append(escaped, name[done:i]...), '\\', 'x', digits[c>>4], digits[c&15])
			done = i + 1
		}
	}
	if done == 0 {
		return name
	}
	return string(append(escaped, name[done:]...))
}

var escapedByte = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// UnescapeName returns the name that EscapeName has written. Whatever is no escape sequence stands for itself.
func UnescapeName(escaped string) string {
	return escapedByte.ReplaceAllStringFunc(escaped, func(sequence string) string {
		b, _ := hex.DecodeString(sequence[2:]) // two digits
		return string(b)
	})
}

// Row is a record as it is stored, and the time when it was read. Anybody who can write to the database may have
// written it. Times are in microseconds since 1970.
type Row struct {
	Found bool  // false: there is no record, and only Now counts
	Now   int64 // when it was read, by the clock of the store

	Names       Names
	Attempt     int64
	Fingerprint []byte
	Token       []byte // of the attempt that claimed the key last
	Created     int64
	Lease       sql.NullInt64 // when it lapses; not valid: nobody is running the operation
	Expires     int64
	Response    sql.Null[[]byte] // not valid: not completed
}

// NewRow returns what is stored of an attempt, without lease, expiry and response.
func NewRow(names Names, token []byte, of idempotency.Record) *Row {
	return &Row{
		Names: names, Attempt: int64(of.Attempt), Fingerprint: of.Fingerprint[:], Token: token,
		Created: of.Created.UnixMicro(),
	}
}

// Columns returns where to scan what is stored to, in the order of the fields.
func (r *Row) Columns() []any {
	return []any{&r.Names[0], &r.Names[1], &r.Names[2], &r.Attempt, &r.Fingerprint, &r.Token, &r.Created, &r.Lease,
		&r.Expires, &r.Response}
}

// Stored returns what is stored of a response, and what is stored instead if there is no room for it.
func Stored(resp idempotency.Response) (whole, omitted []byte, err error) {
	if whole, err = resp.MarshalBinary(); err != nil {
		return nil, nil, err
	}
	omitted, err = idempotency.Response{Status: resp.Status, Omitted: true}.MarshalBinary()
	return whole, omitted, err
}

// Counts reports whether there is a record that has not expired, and whose key was not freed.
func (r *Row) Counts() bool { return r.Found && r.Expires > r.Now && !r.isFree() }

// isFree reports whether the row is what is left of a record whose key was freed. It belongs to no operation.
func (r *Row) isFree() bool { return r.Found && r.Attempt == 0 && !r.Lease.Valid && !r.Response.Valid }

// Held reports whether the record keeps a request from claiming the key. If so, it returns the record as others see it,
// or an error that wraps idempotency.ErrRecordInvalid.
func (r *Row) Held(asked Names, request *idempotency.ClaimRequest) (bool, idempotency.Record, error) {
	if !r.Counts() {
		return false, idempotency.Record{}, nil
	}
	if err := r.check(asked, request.Fingerprint); err != nil {
		return true, idempotency.Record{}, err
	}
	if r.claimable(request) {
		return false, idempotency.Record{}, nil
	}
	record, err := r.record()
	return true, record, err
}

// check returns an error that wraps idempotency.ErrRecordInvalid if no store would have written the record for the key.
func (r *Row) check(asked Names, by idempotency.Fingerprint) error {
	if r.Names != asked {
		return Invalid("made for another key")
	}
	return r.checkValues(by)
}

// checkValues is check without the names.
func (r *Row) checkValues(by idempotency.Fingerprint) error {
	switch {
	case r.Lease.Valid && r.Response.Valid:
		return Invalid("completed, with a lease")
	case r.Lease.Valid && r.Lease.Int64 > r.Now && until(r.Lease.Int64, r.Now) == math.MaxInt64:
		return Invalid("lease without end")
	}
	return CheckAttempt(r.Fingerprint, by, r.Attempt)
}

// CheckAttempt returns an error that wraps idempotency.ErrRecordInvalid if no store would have written the fingerprint or
// the number of an attempt, in a record that was found by a request with another fingerprint or the same.
func CheckAttempt(fingerprint []byte, by idempotency.Fingerprint, number int64) error {
	var none idempotency.Fingerprint // stands for one that cannot be seen, which is none of a record
	switch {
	case len(fingerprint) != len(by):
		return Invalid("fingerprint of %d bytes", len(fingerprint))
	case bytes.Equal(fingerprint, none[:]) && by != none:
		return Invalid("no fingerprint")
	case number < 1 || number >= math.MaxInt32:
		return Invalid("attempt %d", number)
	}
	return nil
}

// CheckStatus returns an error that wraps idempotency.ErrRecordInvalid if no operation can have been completed with a
// status. Zero is that of work without HTTP.
func CheckStatus(status int) error {
	if status == 0 || status == http.StatusSwitchingProtocols || status >= 200 && status <= 999 {
		return nil
	}
	return Invalid("status %d", status)
}

// Invalid returns an error that wraps idempotency.ErrRecordInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{idempotency.ErrRecordInvalid}, args...)...)
}

// claimable reports whether an attempt may claim the key of a record that has not expired.
func (r *Row) claimable(request *idempotency.ClaimRequest) bool {
	if r.Response.Valid || !bytes.Equal(r.Fingerprint, request.Fingerprint[:]) {
		return false
	}
	return !r.Lease.Valid || request.TakeOver && r.Lease.Int64 <= r.Now
}

// Next returns the record of the attempt that claims the key, without a lease. It is for a row that does not hold the
// key against the request.
func (r *Row) Next(request *idempotency.ClaimRequest) idempotency.Record {
	record := idempotency.Record{Created: time.UnixMicro(r.Now)}
	if r.Counts() {
		record = r.attempted()
		record.Remaining = until(r.Expires, r.Now)
	}
	record.Attempt++
	record.Fingerprint = request.Fingerprint
	return record
}

// attempted returns what check has looked at: attempt, fingerprint and creation.
func (r *Row) attempted() idempotency.Record {
	return idempotency.Record{
		Attempt: int(r.Attempt), Fingerprint: idempotency.Fingerprint(r.Fingerprint), Created: time.UnixMicro(r.Created),
	}
}

// record returns the record for others to see, or an error that wraps idempotency.ErrRecordInvalid.
func (r *Row) record() (idempotency.Record, error) {
	rec := r.attempted()
	if r.Lease.Valid {
		rec.LeaseLeft = max(0, until(r.Lease.Int64, r.Now))
	}
	if !r.Response.Valid {
		return rec, nil
	}
	var resp idempotency.Response
	if err := resp.UnmarshalBinary(r.Response.V); err != nil {
		return idempotency.Record{}, err
	}
	if err := CheckStatus(resp.Status); err != nil {
		return idempotency.Record{}, err
	}
	rec.Response, rec.Remaining = &resp, until(r.Expires, r.Now)
	return rec, nil
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

// Micros returns d in whole microseconds, and never less than d.
func Micros(d time.Duration) int64 {
	micros := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		micros++
	}
	return micros
}

// NewToken returns a random token.
func NewToken() []byte {
	token := make([]byte, 16)
	rand.Read(token) // never fails
	return token
}
