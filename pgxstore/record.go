package pgxstore

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
)

// row is a record as the statements return it.
type row struct {
	operation   pgtype.UUID
	attempt     pgtype.Int4
	fingerprint []byte
	token       pgtype.UUID
	created     pgtype.Timestamptz
	leaseUntil  pgtype.Timestamptz // null: nobody is running it
	now         pgtype.Timestamptz
	status      pgtype.Int4 // null: not completed
	header      pgtype.Text
	trailer     pgtype.Text
	body        []byte // nil: not kept
}

// columns returns where to scan the columns to, and what a statement returns besides.
func (r *row) columns(more ...any) []any {
	return append(append(make([]any, 0, 13), &r.operation, &r.attempt, &r.fingerprint, &r.token, &r.created,
		&r.leaseUntil, &r.now, &r.status, &r.header, &r.trailer, &r.body), more...)
}

// claimable reports whether an attempt may claim the key of a record that has not expired. The statements of [Store] say
// the same in SQL.
func (r *row) claimable(by idempotency.Fingerprint, reach reach) bool {
	if r.status.Valid || !bytes.Equal(r.fingerprint, by[:]) {
		return false
	}
	if !r.leaseUntil.Valid {
		return reach >= released
	}
	return reach >= lapsed && !r.leaseUntil.Time.After(r.now.Time)
}

// record returns the record, or an error that wraps idempotency.ErrRecordInvalid.
func (r *row) record() (idempotency.Record, error) {
	rec := idempotency.Record{Operation: r.operation.Bytes, Attempt: int(r.attempt.Int32), Created: r.created.Time}
	if copy(rec.Fingerprint[:], r.fingerprint) != len(rec.Fingerprint) {
		return rec, fmt.Errorf("%w: fingerprint of %d bytes", idempotency.ErrRecordInvalid, len(r.fingerprint))
	}
	if r.leaseUntil.Valid {
		rec.LeaseLeft = max(0, r.leaseUntil.Time.Sub(r.now.Time))
	}
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
	rec.Response = &idempotency.Response{
		Status: int(r.status.Int32), Header: header, Trailer: trailer, Body: r.body, Omitted: r.body == nil,
	}
	return rec, nil
}

// responseArgs returns args and the columns status, header, trailer and body.
func responseArgs(resp idempotency.Response, args ...any) []any {
	body := resp.Body
	switch {
	case resp.Omitted:
		body = nil
	case body == nil:
		body = []byte{}
	}
	return append(args, int32(resp.Status), string(resp.Header), string(resp.Trailer), body)
}

// countReplay counts that a record was replayed to an attempt that found it, if it was and is to be counted. The replay
// is right whether or not it is counted.
func (t *Table) countReplay(ctx context.Context, sql string, digest [32]byte, found *row, by idempotency.ClaimRequest) {
	replayed := found.status.Valid && found.body != nil && bytes.Equal(found.fingerprint, by.Fingerprint[:])
	if replayed && t.opts.CountReplays {
		_, _ = t.pool.Exec(ctx, sql, digest[:], found.token)
	}
}

// printable returns s as PostgreSQL can hold it in a text column. Such columns are for people: what tells keys apart
// is the digest.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func id(u uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: u, Valid: true} }
