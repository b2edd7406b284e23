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
	// Attempt is 1 for the first attempt and grows by one with each claim, for as long as the store has the record.
	Attempt int

	// Fingerprint equals the fingerprint of the request that asks for the record if and only if that request is the same as the
	// first one. Nothing else follows from Fingerprint, because a store may keep fingerprints secret.
	Fingerprint Fingerprint

	// Created is when the first attempt began, by the clock of the store or, in a [RedisStore], of the process.
	Created time.Time

	// LeaseLeft is how long the current lease still runs, by the store's clock. Zero means that nobody is running the
	// operation.
	LeaseLeft time.Duration

	// Remaining is how long the record that Begin has found would still be kept, by the store's clock. It is never too long. Zero
	// means that Begin has found no record, or that the store does not know. For a completed record, a store may leave Remaining out
	// unless [ClaimRequest].Remaining asks for it. In a claim to a further attempt, it is that of the replaced record.
	Remaining time.Duration

	// FromCache says that a cache in front of a store, as in package cache, had the completed record and did not ask the store.
	FromCache bool

	// Response is nil until the operation is completed. It is shared: nobody modifies it.
	Response *Response
}

// Response is what a handler answered, or what is kept of it.
type Response struct {
	// Status is the final status code.
	Status int

	// Header has the changes that the handler made to the header it was given. A field with values was added or changed. A
	// field without values was deleted or, if net/http adds it by itself, suppressed.
	Header Fields

	// Trailer holds what is set after the body. Fields that Header does not declare under "Trailer" carry
	// [http.TrailerPrefix].
	Trailer Fields

	// Body is the whole body as the handler wrote it.
	Body []byte

	// Omitted says that the answer was not kept, so that it cannot be sent again. Only its status is known.
	Omitted bool

	// Note is what [Annotate] has attached to the operation: at most 255 bytes. [Event] and [Entry] show it to operators.
	// It is never sent to a client. Middleware and [Runner] set it, and overwrite what the work of a Runner has set.
	Note string
}

// tombstone returns what is stored of a response that is not kept.
func (r Response) toTombstone() Response { return Response{Status: r.Status, Omitted: true} }

// Clone returns a copy that shares no memory with r that could be modified.
func (r Response) Clone() Response {
	r.Body = bytes.Clone(r.Body)
	return r
}

// The stored form of a response is text as far as its body is text, so that an operator can read it in the store:
//
//	response/1 crc=1a2b3c4d 201 header=44 trailer=0 body=8
//	Content-Type: application/json
//	X-Suppressed
//
//	{"id":1}
//
// Header and trailer are as in [Fields]; the first line says how many bytes each part has. The checksum (CRC-32C) covers
// all that follows it. A body that was not kept is written as body=omitted. If there is a note, it ends the first line:
// body=8 note=payment 17.

var castagnoliTable = crc32.MakeTable(crc32.Castagnoli)

// AppendBinary appends the stored form of r to b. It never fails; it implements [encoding.BinaryAppender].
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

// checksum returns the CRC-32C of b in hexadecimal.
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

// encodedSize returns no less than how many bytes the stored form of r has, and hardly more.
func (r Response) encodedSize() int {
	return len(recordline.ResponseMagic) + 96 + len(r.Note) + len(r.Header) + len(r.Trailer) + len(r.Body)
}

// UnmarshalBinary sets r to the response whose stored form is data. The body of r is a part of data, which must not be
// modified afterwards. The error wraps [ErrRecordInvalid] if data is damaged, or was written by a version of this
// package that this one does not know.
func (r *Response) UnmarshalBinary(data []byte) error {
	if !bytes.HasPrefix(data, []byte(recordline.ResponseMagic)) {
		return fmt.Errorf("%w: no response, or of an unknown version", ErrRecordInvalid)
	}
	line, rest := recordline.ParseResponse(data)
	sum := hexChecksum(data[min(len(data), len(recordline.ResponseMagic)+len("crc=")+len(line.CRC)):])
	if string(line.CRC) != string(sum[:]) {
		return fmt.Errorf("%w: checksum of the response", ErrRecordInvalid)
	}
	fields := line.Header + line.Trailer
	if !line.OK || fields < 0 || fields >= int64(len(rest)) || rest[fields] != '\n' {
		return fmt.Errorf("%w: first line of the response", ErrRecordInvalid)
	}
	text, body := string(rest[:fields]), rest[fields+1:]
	resp := Response{Status: int(line.Status), Omitted: line.Omitted, Note: line.Note}
	if !resp.Omitted {
		if line.Body != int64(len(body)) {
			return fmt.Errorf("%w: length of the response", ErrRecordInvalid)
		}
		resp.Body = body
	}
	var err error
	if resp.Header, err = ParseFields(text[:line.Header]); err != nil {
		return err
	}
	if resp.Trailer, err = ParseFields(text[line.Header:]); err != nil {
		return err
	}
	*r = resp
	return nil
}
