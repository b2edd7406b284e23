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

// Names holds user, endpoint and key as the columns store the names: escaped, and readable for people.
type Names [3]string

// NamesOf returns the escaped names of key.
func NamesOf(key idempotency.Key) Names {
	return Names{EscapeName(key.User), EscapeName(key.Endpoint), EscapeName(key.ID)}
}

// Key returns the key with the names n.
func (n Names) Key() idempotency.Key {
	return idempotency.Key{User: UnescapeName(n[0]), Endpoint: UnescapeName(n[1]), ID: UnescapeName(n[2])}
}

// EscapeName escapes name as [idempotency.Fields] does: visible ASCII characters and spaces stay, and every remaining
// byte, including the backslash, becomes \xHH. The result is ASCII, so every database can store the result with any
// encoding of the server and the client. Different names have different results.
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

// UnescapeName reverses EscapeName. Text without an escape sequence stays unchanged.
func UnescapeName(escaped string) string {
	return escapedByte.ReplaceAllStringFunc(escaped, func(sequence string) string {
		b, _ := hex.DecodeString(sequence[2:]) // the pattern allows only two hexadecimal digits
		return string(b)
	})
}

// Row is a stored record, with the time of reading. Row may hold any values, because every program with access to the
// database can write records. Times are in microseconds since 1970.
type Row struct {
	Found bool  // false: the store has no record, and only Now is set
	Now   int64 // time of reading, by the clock of the store

	Names       Names
	Attempt     int64
	Fingerprint []byte
	Token       []byte // owner token of the latest attempt
	Created     int64
	Lease       sql.NullInt64 // end of the lease; null: no attempt is running the operation
	Expires     int64
	Response    sql.Null[[]byte] // null: the operation is not completed
}

// NewRow returns the row of an attempt, without lease, expiry and response.
func NewRow(names Names, token []byte, of idempotency.Record) *Row {
	return &Row{
		Names: names, Attempt: int64(of.Attempt), Fingerprint: of.Fingerprint[:], Token: token,
		Created: of.Created.UnixMicro(),
	}
}

// Columns returns the destinations for a scan of the stored columns, in the order of the fields.
func (r *Row) Columns() []any {
	return []any{&r.Names[0], &r.Names[1], &r.Names[2], &r.Attempt, &r.Fingerprint, &r.Token, &r.Created, &r.Lease,
		&r.Expires, &r.Response}
}

// Stored encodes resp in two forms: whole, and the smaller omitted, a tombstone for a store without room for whole.
func Stored(resp idempotency.Response) (whole, omitted []byte, err error) {
	if whole, err = resp.MarshalBinary(); err != nil {
		return nil, nil, err
	}
	omitted, err = idempotency.Response{Status: resp.Status, Omitted: true}.MarshalBinary()
	return whole, omitted, err
}

// IsHeldBy reports whether the claim with the token holds the record, which no response ends and no other claim has taken over.
func (r *Row) IsHeldBy(token []byte) bool {
	return r.Counts() && bytes.Equal(r.Token, token) && r.Lease.Valid && !r.Response.Valid
}

// Counts reports whether the record exists, has not expired, and was not freed. A record that does not count leaves the
// key free.
func (r *Row) Counts() bool { return r.Exists() && !r.isFree() }

// Exists reports whether the record exists and has not expired. The rest of a freed record exists as well.
func (r *Row) Exists() bool { return r.Found && r.Expires > r.Now }

// isFree reports whether the row is the rest of a freed record. A free row belongs to no operation.
func (r *Row) isFree() bool { return r.Found && r.Attempt == 0 && !r.Lease.Valid && !r.Response.Valid }

// Held reports whether the record keeps request from claiming the key. If so, Held also returns the record as the
// request sees the record, or an error wrapping idempotency.ErrRecordInvalid.
func (r *Row) Held(asked Names, request *idempotency.ClaimRequest) (bool, idempotency.Record, error) {
	if !r.Counts() {
		return false, idempotency.Record{}, nil
	}
	if err := r.checkRecord(asked, request.Fingerprint); err != nil {
		return true, idempotency.Record{}, err
	}
	if r.mayBeClaimed(request) {
		return false, idempotency.Record{}, nil
	}
	record, err := r.decodeRecord()
	return true, record, err
}

// checkRecord returns an error wrapping idempotency.ErrRecordInvalid unless a store could have written the record for
// the key asked.
func (r *Row) checkRecord(asked Names, by idempotency.Fingerprint) error {
	if r.Names != asked {
		return Invalid("the record belongs to another operation")
	}
	return r.checkValues(by)
}

// checkValues is checkRecord without the comparison of names.
func (r *Row) checkValues(by idempotency.Fingerprint) error {
	switch {
	case r.Lease.Valid && r.Response.Valid:
		return Invalid("the record is completed, but has a lease")
	case r.Lease.Valid && r.Lease.Int64 > r.Now && durationUntil(r.Lease.Int64, r.Now) == math.MaxInt64:
		return Invalid("the lease never ends")
	}
	return CheckAttempt(r.Fingerprint, by, r.Attempt)
}

// CheckAttempt returns an error wrapping idempotency.ErrRecordInvalid unless a store could have written the fingerprint
// and the attempt number of a record. The fingerprint by comes from the request that found the record.
func CheckAttempt(fingerprint []byte, by idempotency.Fingerprint, number int64) error {
	var none idempotency.Fingerprint // stands for an unknown fingerprint; a stored record always has a fingerprint
	switch {
	case len(fingerprint) != len(by):
		return Invalid("the fingerprint has %d bytes", len(fingerprint))
	case bytes.Equal(fingerprint, none[:]) && by != none:
		return Invalid("the fingerprint is missing")
	case number < 1 || number >= math.MaxInt32:
		return Invalid("the attempt number is %d", number)
	}
	return nil
}

// CheckStatus returns an error wrapping idempotency.ErrRecordInvalid if status cannot be the status of a completed
// operation. Zero is the status of work without HTTP.
func CheckStatus(status int) error {
	if status == 0 || status == http.StatusSwitchingProtocols || status >= 200 && status <= 999 {
		return nil
	}
	return Invalid("the status is %d", status)
}

// Invalid returns an error wrapping idempotency.ErrRecordInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{idempotency.ErrRecordInvalid}, args...)...)
}

// mayBeClaimed reports whether request may claim the key of a record that counts.
func (r *Row) mayBeClaimed(request *idempotency.ClaimRequest) bool {
	if r.Response.Valid || !bytes.Equal(r.Fingerprint, request.Fingerprint[:]) {
		return false
	}
	return !r.Lease.Valid || request.TakeOver && r.Lease.Int64 <= r.Now
}

// Next returns the record of the attempt made by request, without a lease. The row must not hold the key against
// request.
func (r *Row) Next(request *idempotency.ClaimRequest) idempotency.Record {
	record := idempotency.Record{Created: time.UnixMicro(r.Now)}
	if r.Counts() {
		record = r.attemptRecord()
		record.Remaining = durationUntil(r.Expires, r.Now)
	}
	record.Attempt++
	record.Fingerprint = request.Fingerprint
	return record
}

// attemptRecord returns a record with attempt, fingerprint and creation time. The caller has called checkRecord.
func (r *Row) attemptRecord() idempotency.Record {
	return idempotency.Record{
		Attempt: int(r.Attempt), Fingerprint: idempotency.Fingerprint(r.Fingerprint), Created: time.UnixMicro(r.Created),
	}
}

// decodeRecord returns the record as a request sees the record, or an error wrapping idempotency.ErrRecordInvalid.
func (r *Row) decodeRecord() (idempotency.Record, error) {
	rec := r.attemptRecord()
	if r.Lease.Valid {
		rec.LeaseLeft = max(0, durationUntil(r.Lease.Int64, r.Now))
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
	rec.Response, rec.Remaining = &resp, durationUntil(r.Expires, r.Now)
	return rec, nil
}

// durationUntil returns the time between now and then, both in microseconds. A difference too large for a time.Duration
// becomes the largest or the smallest duration.
func durationUntil(then, now int64) time.Duration {
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

// Micros returns d in microseconds, rounded up, so that a lease is at least as long as asked for.
func Micros(d time.Duration) int64 {
	micros := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		micros++
	}
	return micros
}

// MicrosSince returns the time then in microseconds since 1970, rounded up. A record has a time of creation in
// microseconds, which is at or after then if and only if the time of creation is at or after MicrosSince.
func MicrosSince(then time.Time) int64 { return then.Add(time.Microsecond - 1).UnixMicro() }

// NewToken returns a random owner token.
func NewToken() []byte {
	token := make([]byte, 16)
	rand.Read(token) // never fails
	return token
}

// HasChanged reports whether a statement has changed a record. The arguments are the results of ExecContext.
func HasChanged(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
