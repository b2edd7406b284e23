package pgxstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// row is a record in the form that the statements return.
type row struct {
	keyNames          storedNames
	attempt           pgtype.Int4
	fingerprint       []byte
	token             pgtype.UUID
	createdAt         pgtype.Timestamptz
	leaseUntil        pgtype.Timestamptz // null after a release or a completion
	expiresAt         pgtype.Timestamptz
	serverTime        pgtype.Timestamptz
	isCompleted       pgtype.Bool // null without a record
	status            pgtype.Int4 // null until completed
	header            pgtype.Text
	trailer           pgtype.Text
	body              []byte // nil if omitted
	note              pgtype.Text
	needsConfirmation bool // completed, and commits wait for standbys
}

// scanTargets returns the targets to scan a row of {columns} into, followed by the targets more. While the names are
// scanned, they are compared with askedNames.
func (r *row) scanTargets(askedNames *sqlstore.Names, more ...any) []any {
	for i := range askedNames {
		r.keyNames[i].askedName = askedNames[i]
	}
	return append(append(make([]any, 0, 23), &r.keyNames[0], &r.keyNames[1], &r.keyNames[2], &r.attempt, &r.fingerprint,
		&r.token, &r.createdAt, &r.leaseUntil, &r.expiresAt, &r.serverTime, &r.isCompleted, &r.status, &r.header,
		&r.trailer, &r.body, &r.note, &r.needsConfirmation), more...)
}

// isFree reports whether the row is the rest of a record whose key was freed. A freed row belongs to no operation.
func (r *row) isFree() bool {
	return r.attempt.Valid && r.attempt.Int32 == 0 && !r.status.Valid && !r.leaseUntil.Valid
}

// isExpired reports whether the record no longer counts.
func (r *row) isExpired() bool {
	return r.isFree() || r.expiresAt.InfinityModifier != pgtype.Infinity && !r.expiresAt.Time.After(r.serverTime.Time)
}

// remainingTime returns how long the store still keeps the record. Zero means unknown.
func (r *row) remainingTime() time.Duration {
	if r.expiresAt.InfinityModifier != pgtype.Finite {
		return 0
	}
	return r.expiresAt.Time.Sub(r.serverTime.Time)
}

// checkRow returns an error that wraps [idempotency.ErrRecordInvalid] if no store can have written the row for the key,
// for example because somebody else has written to the table.
func (r *row) checkRow(fingerprint idempotency.Fingerprint) error {
	switch {
	case !r.keyNames.matchKey():
		return sqlstore.Invalid("the record belongs to another operation")
	case r.status.Valid != r.isCompleted.Bool:
		return sqlstore.Invalid("the record has a status but no time of completion, or the reverse")
	case r.leaseUntil.InfinityModifier != pgtype.Finite:
		return sqlstore.Invalid("the lease never ends")
	}
	if err := sqlstore.CheckStatus(int(r.status.Int32)); err != nil { // zero without a response
		return err
	}
	return sqlstore.CheckAttempt(r.fingerprint, fingerprint, int64(r.attempt.Int32))
}

// bareRecord returns the record without its response.
func (r *row) bareRecord() idempotency.Record {
	rec := idempotency.Record{Attempt: int(r.attempt.Int32), Created: r.createdAt.Time}
	copy(rec.Fingerprint[:], r.fingerprint)
	rec.LeaseLeft = r.leaseLeft()
	return rec
}

// leaseLeft returns how long the lease still runs. Zero means that no lease runs.
func (r *row) leaseLeft() time.Duration {
	if !r.leaseUntil.Valid {
		return 0
	}
	return max(0, r.leaseUntil.Time.Sub(r.serverTime.Time))
}

// decodeRecord returns the record for a request with the given fingerprint. If the row is invalid, the error wraps
// [idempotency.ErrRecordInvalid].
func (r *row) decodeRecord(fingerprint idempotency.Fingerprint) (idempotency.Record, error) {
	if err := r.checkRow(fingerprint); err != nil {
		return idempotency.Record{}, err
	}
	rec := r.bareRecord()
	if !r.status.Valid {
		return rec, nil
	}
	header, err := idempotency.ParseFields(r.header.String)
	if err != nil {
		return rec, err
	}
	trailer, err := idempotency.ParseFields(r.trailer.String)
	if err != nil {
		return rec, err
	}
	if strings.ContainsFunc(r.note.String, func(c rune) bool { return c < ' ' || c > '~' }) {
		return rec, sqlstore.Invalid("the note has characters other than visible ASCII")
	}
	rec.Remaining = r.remainingTime()
	rec.Response = &idempotency.Response{
		Status: int(r.status.Int32), Header: header, Trailer: trailer, Body: r.body, Omitted: r.body == nil,
		Note: r.note.String,
	}
	return rec, nil
}

// responseArgs appends the values of the columns status, header, trailer, body and note to args.
func responseArgs(resp idempotency.Response, args ...any) []any {
	body := resp.Body
	switch {
	case resp.Omitted:
		body = nil
	case body == nil:
		body = []byte{}
	}
	var note any // null without a note
	if resp.Note != "" {
		note = resp.Note
	}
	return append(args, int32(resp.Status), string(resp.Header), string(resp.Trailer), body, note)
}

// countReplay counts the replay of storedRow to request, if CountReplays is set and the request gets the stored answer.
// countReplay ignores errors, because the replay is correct without the count.
func (t *Table) countReplay(
	ctx context.Context, sql statements, operation pgtype.UUID, storedRow *row, request idempotency.ClaimRequest,
) {
	isReplayed := storedRow.status.Valid && storedRow.body != nil && bytes.Equal(storedRow.fingerprint, request.Fingerprint[:])
	if isReplayed && t.opts.CountReplays {
		_, _ = t.pool.Exec(ctx, sql["count"], operation, storedRow.token)
	}
}

// asUUID returns id as a parameter of a statement.
func asUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// newUUID returns a random UUID of version 4.
func newUUID() pgtype.UUID {
	id := pgtype.UUID{Valid: true}
	rand.Read(id.Bytes[:]) // crypto/rand.Read always succeeds
	id.Bytes[6] = id.Bytes[6]&0x0F | 0x40
	id.Bytes[8] = id.Bytes[8]&0x3F | 0x80
	return id
}

// keyNames returns the values of the columns user_id, endpoint and key for key. A record with different values was made
// for a different key.
func (o Options) keyNames(key idempotency.Key) sqlstore.Names {
	n := sqlstore.NamesOf(key)
	if o.DigestNames {
		for i := range n {
			n[i] = digestName(n[i])
		}
	}
	return n
}

// digestName returns the SHA-256 of name in hexadecimal.
func digestName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// storedName is a name that is compared with askedName during the scan, so that the stored name need not be copied.
type storedName struct {
	askedName string
	form      nameForm
}

// nameForm says how a stored name relates to the asked name. Either of them can be a digest, see [Options].DigestNames.
type nameForm int

const (
	differentName nameForm = iota
	sameName               // the stored name equals the asked name
	storedPlain            // the asked name is the digest of the stored name
	storedDigest           // the stored name is the digest of the asked name
)

// ScanBytes implements [pgtype.BytesScanner].
func (n *storedName) ScanBytes(stored []byte) error {
	switch {
	case stored == nil:
		n.form = differentName
	case string(stored) == n.askedName:
		n.form = sameName
	case digestName(string(stored)) == n.askedName:
		n.form = storedPlain
	case string(stored) == digestName(n.askedName):
		n.form = storedDigest
	default:
		n.form = differentName
	}
	return nil
}

// storedNames are the user, endpoint and key of a record.
type storedNames [3]storedName

// matchKey reports whether all three names are the asked names, in the same form. The form can differ from the form of
// new records, because DigestNames may have been changed since. madeForKeySQL is the same condition in SQL.
func (n *storedNames) matchKey() bool {
	return n[0].form != differentName && n[0].form == n[1].form && n[1].form == n[2].form
}
