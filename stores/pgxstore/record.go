package pgxstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// row is a record as the statements return it.
type row struct {
	keyNames          storedNames
	attempt           pgtype.Int4
	fingerprint       []byte
	token             pgtype.UUID
	createdAt         pgtype.Timestamptz
	leaseUntil        pgtype.Timestamptz // null: nobody is running it
	expiresAt         pgtype.Timestamptz
	serverTime        pgtype.Timestamptz
	isCompleted       pgtype.Bool // null: there is no record
	status            pgtype.Int4 // null: not completed
	header            pgtype.Text
	trailer           pgtype.Text
	body              []byte // nil: not kept
	note              pgtype.Text
	needsConfirmation bool // it is completed, and commits wait for standbys
}

// columns returns where to scan the columns of a record to that is asked for by names, and what a statement returns
// besides.
func (r *row) scanTargets(asked *sqlstore.Names, more ...any) []any {
	for i := range asked {
		r.keyNames[i].askedName = asked[i]
	}
	return append(append(make([]any, 0, 23), &r.keyNames[0], &r.keyNames[1], &r.keyNames[2], &r.attempt, &r.fingerprint,
		&r.token, &r.createdAt, &r.leaseUntil, &r.expiresAt, &r.serverTime, &r.isCompleted, &r.status, &r.header,
		&r.trailer, &r.body, &r.note, &r.needsConfirmation), more...)
}

// isFree reports whether the row is what is left of a record whose key was freed. It belongs to no operation.
func (r *row) isFree() bool {
	return r.attempt.Valid && r.attempt.Int32 == 0 && !r.status.Valid && !r.leaseUntil.Valid
}

// expired reports whether the record does not count any more.
func (r *row) isExpired() bool {
	return r.isFree() || r.expiresAt.InfinityModifier != pgtype.Infinity && !r.expiresAt.Time.After(r.serverTime.Time)
}

// left returns how long the record would still be kept; zero if it is not known.
func (r *row) remainingTime() time.Duration {
	if r.expiresAt.InfinityModifier != pgtype.Finite {
		return 0
	}
	return r.expiresAt.Time.Sub(r.serverTime.Time)
}

// check returns an error that wraps idempotency.ErrRecordInvalid if the store would never have written the record for
// the key. Whoever can write to the table may have.
func (r *row) checkRow(fingerprint idempotency.Fingerprint) error {
	switch {
	case !r.keyNames.matchKey():
		return sqlstore.Invalid("made for another key")
	case r.status.Valid != r.isCompleted.Bool:
		return sqlstore.Invalid("half completed")
	case r.leaseUntil.InfinityModifier != pgtype.Finite:
		return sqlstore.Invalid("impossible lease")
	}
	if err := sqlstore.CheckStatus(int(r.status.Int32)); err != nil { // zero if there is none
		return err
	}
	return sqlstore.CheckAttempt(r.fingerprint, fingerprint, int64(r.attempt.Int32))
}

// record returns the record without its response.
func (r *row) bareRecord() idempotency.Record {
	rec := idempotency.Record{Attempt: int(r.attempt.Int32), Created: r.createdAt.Time}
	copy(rec.Fingerprint[:], r.fingerprint)
	rec.LeaseLeft = r.leaseLeft()
	return rec
}

// leaseLeft returns how long the lease still runs; zero if there is none.
func (r *row) leaseLeft() time.Duration {
	if !r.leaseUntil.Valid {
		return 0
	}
	return max(0, r.leaseUntil.Time.Sub(r.serverTime.Time))
}

// held returns the record for an attempt whose key it holds, or an error that wraps idempotency.ErrRecordInvalid.
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
		return rec, sqlstore.Invalid("note")
	}
	rec.Remaining = r.remainingTime()
	rec.Response = &idempotency.Response{
		Status: int(r.status.Int32), Header: header, Trailer: trailer, Body: r.body, Omitted: r.body == nil,
		Note: r.note.String,
	}
	return rec, nil
}

// responseArgs returns args and the columns status, header, trailer, body and note.
func responseArgs(resp idempotency.Response, args ...any) []any {
	body := resp.Body
	switch {
	case resp.Omitted:
		body = nil
	case body == nil:
		body = []byte{}
	}
	var note any // null: none
	if resp.Note != "" {
		note = resp.Note
	}
	return append(args, int32(resp.Status), string(resp.Header), string(resp.Trailer), body, note)
}

// countReplay counts that a record was replayed to an attempt that found it, if it was and is to be counted. The replay
// is right whether or not it is counted.
func (t *Table) countReplay(ctx context.Context, sql statements, digest [32]byte, storedRow *row, request idempotency.ClaimRequest) {
	isReplayed := storedRow.status.Valid && storedRow.body != nil && bytes.Equal(storedRow.fingerprint, request.Fingerprint[:])
	if isReplayed && t.opts.CountReplays {
		_, _ = t.pool.Exec(ctx, sql["count"], digest[:], storedRow.token)
	}
}

// newUUID returns a random UUID, of version 4.
func newUUID() pgtype.UUID {
	id := pgtype.UUID{Valid: true}
	rand.Read(id.Bytes[:]) // never fails
	id.Bytes[6] = id.Bytes[6]&0x0F | 0x40
	id.Bytes[8] = id.Bytes[8]&0x3F | 0x80
	return id
}

// names returns the names of a key as the columns user_id, endpoint and key have them. A record whose names are not those of
// the key was not made for it.
func (o Options) keyNames(key idempotency.Key) sqlstore.Names {
	n := sqlstore.NamesOf(key)
	if o.DigestNames {
		for i := range n {
			n[i] = digestName(n[i])
		}
	}
	return n
}

func digestName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// storedName is compared to the name that is asked for while it is scanned, which saves a copy.
type storedName struct {
	askedName string
	form      nameForm
}

// form says how the name in a record relates to the one that is asked for.
type nameForm int

const (
	differentName nameForm = iota
	sameName               // both are names, or both are digests
	storedPlain            // the digest of the one in the record is asked for
	storedDigest           // the one in the record is the digest of what is asked for
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

// storedNames are the names in a record.
type storedNames [3]storedName

// match reports whether all are those that are asked for, in one form. The form may be another one than the store
// writes: the setting may have been changed since. The statement that claims says the same in SQL.
func (n *storedNames) matchKey() bool {
	return n[0].form != differentName && n[0].form == n[1].form && n[1].form == n[2].form
}
