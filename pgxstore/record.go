package pgxstore

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
)

// row is a record as the statements return it.
type row struct {
	operation   pgtype.UUID
	attempt     int32
	fingerprint []byte
	token       pgtype.UUID
	created     time.Time
	leaseUntil  *time.Time // nil: nobody is running it
	now         time.Time
	status      *int32 // nil: not completed
	header      *string
	trailer     *string
	body        []byte // nil: not kept
}

// scan reads the columns, and what follows them.
func (r *row) scan(from pgx.Row, more ...any) error {
	return from.Scan(append([]any{&r.operation, &r.attempt, &r.fingerprint, &r.token, &r.created, &r.leaseUntil,
		&r.now, &r.status, &r.header, &r.trailer, &r.body}, more...)...)
}

// record returns the record, or an error that wraps idempotency.ErrRecordInvalid.
func (r *row) record() (idempotency.Record, error) {
	rec := idempotency.Record{Operation: r.operation.Bytes, Attempt: int(r.attempt), Created: r.created}
	if copy(rec.Fingerprint[:], r.fingerprint) != len(rec.Fingerprint) {
		return rec, fmt.Errorf("%w: fingerprint of %d bytes", idempotency.ErrRecordInvalid, len(r.fingerprint))
	}
	if r.leaseUntil != nil {
		rec.LeaseLeft = max(0, r.leaseUntil.Sub(r.now))
	}
	if r.status == nil {
		return rec, nil
	}
	resp := &idempotency.Response{Status: int(*r.status), Body: r.body, Omitted: r.body == nil}
	var err error
	if resp.Header, err = decodeHeader(r.header); err != nil {
		return rec, err
	}
	if resp.Trailer, err = decodeHeader(r.trailer); err != nil {
		return rec, err
	}
	rec.Response = resp
	return rec, nil
}

// responseArgs returns the columns status, header, trailer and body.
func responseArgs(resp idempotency.Response) []any {
	body := resp.Body
	switch {
	case resp.Omitted:
		body = nil
	case body == nil:
		body = []byte{}
	}
	return []any{int32(resp.Status), encodeHeader(resp.Header.Header()), encodeHeader(resp.Trailer.Header()), body}
}

// encodeHeader returns h as JSON, or nil if it is empty. Names and values are bytes, which need not be UTF-8 (RFC
// 9110 calls them obs-text), but JSON is made of characters: each byte becomes the character with its number.
func encodeHeader(h http.Header) *string {
	if len(h) == 0 {
		return nil
	}
	chars := make(map[string][]string, len(h))
	for name, values := range h {
		chars[toChars(name)] = mapStrings(values, toChars)
	}
	b, err := json.Marshal(chars)
	if err != nil {
		panic(err) // strings always marshal
	}
	text := string(b)
	return &text
}

func decodeHeader(text *string) (idempotency.Fields, error) {
	if text == nil {
		return "", nil
	}
	var chars map[string][]string
	if err := json.Unmarshal([]byte(*text), &chars); err != nil {
		return "", fmt.Errorf("%w: header: %w", idempotency.ErrRecordInvalid, err)
	}
	h := make(http.Header, len(chars))
	for name, values := range chars {
		h[toBytes(name)] = mapStrings(values, toBytes)
	}
	return idempotency.NewFields(h), nil
}

// mapStrings tells nil, which deletes a field, from empty, as JSON does.
func mapStrings(values []string, f func(string) string) []string {
	if values == nil {
		return nil
	}
	mapped := make([]string, len(values))
	for i, v := range values {
		mapped[i] = f(v)
	}
	return mapped
}

func toChars(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

func toBytes(s string) string {
	if isASCII(s) {
		return s
	}
	b := make([]byte, 0, len(s))
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// printable returns s as PostgreSQL can hold it in a text column. Such columns are for people: what tells keys apart
// is the digest.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func id(u uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: u, Valid: true} }
