package idempotency

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/idempotency-go/idempotency/internal/recordline"
)

// Record is the state of one operation.
type Record struct {
	// Attempt is the number of the current or last attempt. The first attempt has number 1, and each claim adds one
	// for as long as the store keeps the record.
	Attempt int

	// Fingerprint equals the fingerprint of the request that asks for the record if and only if the request is the
	// same as the first request of the operation. Use Fingerprint only for this comparison, because a store may keep
	// fingerprints secret and return other values.
	Fingerprint Fingerprint

	// Created is the time at which the first attempt began, by the clock of the store or, for a [RedisStore], of the
	// process.
	Created time.Time

	// LeaseLeft is the rest of the current lease, by the clock of the store. Zero means that no attempt is running.
	LeaseLeft time.Duration

	// Remaining is how long the store would still keep the record that Begin has found, by the clock of the store.
	// The value is never too long. Zero means that Begin has found no record, or that the store does not know. For a
	// completed record, a store may return zero unless [ClaimRequest].Remaining is set. If Begin has claimed a
	// further attempt, Remaining belongs to the record that the claim has replaced.
	Remaining time.Duration

	// FromCache reports that the completed record came from a cache in front of the store, such as package cache,
	// which did not ask the store.
	FromCache bool

	// Response is nil until the operation is completed. The Response may be shared, so the caller must not modify the
	// Response.
	Response *Response
}

// Response is the answer of a handler, as far as the store keeps the answer.
type Response struct {
	// Status is the final status code.
	Status int

	// Header has the changes that the handler made to the header it received. A field with values was added or
	// changed. A field without values was deleted, or suppresses a field that net/http adds by default.
	Header Fields

	// Trailer has the fields that the handler set after the body. A field that Header does not declare under
	// "Trailer" has a name with [http.TrailerPrefix].
	Trailer Fields

	// Body is the whole body as the handler wrote the body.
	Body []byte

	// Omitted reports that the store keeps only the status, so the answer cannot be sent again.
	Omitted bool

	// Note is the text that [Annotate] has attached to the operation, at most 255 bytes. Operators see the note in an
	// [Event] and an [Entry]. Clients never receive the note. Middleware and [Runner] set Note, and overwrite a Note
	// set by the work of a Runner.
	Note string
}

// toTombstone returns the tombstone of r: the status alone, with Omitted set.
func (r Response) toTombstone() Response { return Response{Status: r.Status, Omitted: true} }

// Clone returns a copy with a body of its own. The other fields are immutable, so modifying the copy leaves r
// unchanged.
func (r Response) Clone() Response {
	r.Body = bytes.Clone(r.Body)
	return r
}

// The stored form of a response is text if the body is text, so that an operator can read the response in the store:
//
//	response/1 crc=1a2b3c4d 201 header=44 trailer=0 body=8
//	Content-Type: application/json
//	X-Suppressed
//
//	{"id":1}
//
// The first line gives the size of each part in bytes. Header and trailer have the form of [Fields]. The checksum
// (CRC-32C) covers everything after the checksum. An omitted body is written as body=omitted. A note ends the first
// line: body=8 note=payment 17.

var castagnoliTable = crc32.MakeTable(crc32.Castagnoli)

// AppendBinary implements [encoding.BinaryAppender]. AppendBinary appends the stored form of r to b, and never fails.
func (r Response) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, recordline.ResponseMagic+"crc="...)
	sum := len(b)
	b = append(b, "00000000"...)
	start := len(b)
	b = appendNumber(b, " ", r.Status)
	b = appendNumber(b, " header=", len(r.Header))
	b = appendNumber(b, " trailer=", len(r.Trailer))
	body := r.Body
	if r.Omitted {
		b, body = append(b, " body="+recordline.ResponseOmitted...), nil
	} else {
		b = appendNumber(b, " body=", len(body))
	}
	if r.Note != "" {
		b = append(append(b, " note="...), r.Note...)
	}
	b = append(b, '\n')
	b = append(b, r.Header...)
	b = append(b, r.Trailer...)
	b = append(b, '\n')
	b = append(b, body...)
	crc := hexChecksum(b[start:])
	copy(b[sum:], crc[:])
	return b, nil
}

func appendNumber(b []byte, prefix string, n int) []byte {
	return strconv.AppendInt(append(b, prefix...), int64(n), 10)
}

// hexChecksum returns the CRC-32C of b in hexadecimal.
func hexChecksum(b []byte) (digits [8]byte) {
	var crc [4]byte
	binary.BigEndian.PutUint32(crc[:], crc32.Checksum(b, castagnoliTable))
	hex.Encode(digits[:], crc[:])
	return digits
}

// MarshalBinary returns the stored form of r.
func (r Response) MarshalBinary() ([]byte, error) {
	return r.AppendBinary(make([]byte, 0, r.encodedSize()))
}

// encodedSize returns an upper bound for the size of the stored form of r, slightly above the size.
func (r Response) encodedSize() int {
	return len(recordline.ResponseMagic) + 96 + len(r.Note) + len(r.Header) + len(r.Trailer) + len(r.Body)
}

// UnmarshalBinary sets r to the response with the stored form data. The body of r is a slice of data, so the caller
// must not modify data afterwards. The error wraps [ErrRecordInvalid] if data is damaged, or was written by an unknown
// version of this package.
func (r *Response) UnmarshalBinary(data []byte) error {
	if !bytes.HasPrefix(data, []byte(recordline.ResponseMagic)) {
		return fmt.Errorf("%w: the data is no stored response of a known version", ErrRecordInvalid)
	}
	line, rest := recordline.ParseResponse(data)
	sum := hexChecksum(data[min(len(data), len(recordline.ResponseMagic)+len("crc=")+len(line.CRC)):])
	if string(line.CRC) != string(sum[:]) {
		return fmt.Errorf("%w: the checksum of the stored response is wrong", ErrRecordInvalid)
	}
	fields := line.Header + line.Trailer
	if !line.OK || fields < 0 || fields >= int64(len(rest)) || rest[fields] != '\n' {
		return fmt.Errorf("%w: the first line of the stored response is malformed", ErrRecordInvalid)
	}
	fieldText, body := string(rest[:fields]), rest[fields+1:]
	resp := Response{Status: int(line.Status), Omitted: line.Omitted, Note: line.Note}
	if !resp.Omitted {
		if line.Body != int64(len(body)) {
			return fmt.Errorf("%w: the body of the stored response has the wrong length", ErrRecordInvalid)
		}
		resp.Body = body
	}
	var err error
	if resp.Header, err = ParseFields(fieldText[:line.Header]); err != nil {
		return err
	}
	if resp.Trailer, err = ParseFields(fieldText[line.Header:]); err != nil {
		return err
	}
	*r = resp
	return nil
}
