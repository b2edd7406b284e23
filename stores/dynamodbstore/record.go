package dynamodbstore

import (
	"bytes"
	"compress/gzip"
	"database/sql"
	"io"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// The attributes of an item. Expressions use the names directly, because DynamoDB reserves none of the names. Times are in
// microseconds since 1970, by the clock of the writing process. The store leaves out attributes that a record does not need,
// and empty names.
const (
	attrOperation    = "operation" // partition key: the ID as text; IDs spread evenly
	attrUser         = "user_id"
	attrEndpoint     = "endpoint"
	attrKey          = "idempotency_key"
	attrAttempt      = "attempt"
	attrFingerprint  = "fingerprint"
	attrToken        = "claim_token" // owner token of the latest attempt
	attrCreated      = "created"
	attrLease        = "lease"         // end of the lease; missing: no attempt is running the operation
	attrExpires      = "expires"       // end of the record
	attrRemoveAt     = "remove_at"     // in seconds: the service may delete the item after this time
	attrAnswer       = "answer"        // encoded response, compressed or not; missing: the operation is not completed
	attrAnswerSize   = "answer_size"   // size of the encoded response before compression
	attrAnswerStatus = "answer_status" // status and note are for listings
	attrAnswerNote   = "answer_note"
	attrSteps        = "steps" // encoded checkpoints
	attrStepsSize    = "steps_size"
	attrResolved     = "resolved" // encoded idempotency.Resolved; missing: no operator has resolved the operation
	attrResolvedSize = "resolved_size"
	attrEnded        = "ended" // the idempotency.EndReason of a Release; missing: none
)

// value is the value of an attribute.
type value = types.AttributeValue

func numberValue(n int64) value { return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)} }

func binaryValue(b []byte) value { return &types.AttributeValueMemberB{Value: b} }

func itemKey(operation uuid.UUID) map[string]value {
	return map[string]value{attrOperation: &types.AttributeValueMemberS{Value: operation.String()}}
}

// decodeRecord returns the record of an item, read at the time now. The error wraps idempotency.ErrRecordInvalid.
func decodeRecord(item map[string]value, now int64) (*sqlstore.Seen, error) {
	d := decoder{item: item}
	seen := &sqlstore.Seen{
		Row: sqlstore.Row{
			Found: true, Now: now,
			Names:   sqlstore.Names{d.readText(attrUser), d.readText(attrEndpoint), d.readText(attrKey)},
			Attempt: d.readNumber(attrAttempt), Fingerprint: d.readBytes(attrFingerprint), Token: d.readBytes(attrToken),
			Created: d.readNumber(attrCreated), Lease: d.readOptional(attrLease), Expires: d.readNumber(attrExpires),
		},
		Steps: d.readBytes(attrSteps), Resolved: d.readBytes(attrResolved), Ended: []byte(d.readText(attrEnded)),
	}
	if _, completed := item[attrAnswer]; completed {
		seen.Response = sql.Null[[]byte]{V: d.readResponse(), Valid: true}
	}
	return seen, d.err
}

// decoder reads attributes, and keeps the first error.
type decoder struct {
	item map[string]value
	err  error
}

func (d *decoder) reportInvalid(name, what string) {
	if d.err == nil {
		d.err = sqlstore.Invalid("the attribute %s is not %s", name, what)
	}
}

func (d *decoder) readText(name string) string {
	switch v := d.item[name].(type) {
	case nil:
	case *types.AttributeValueMemberS:
		return v.Value
	default:
		d.reportInvalid(name, "text")
	}
	return ""
}

func (d *decoder) readBytes(name string) []byte {
	switch v := d.item[name].(type) {
	case nil:
	case *types.AttributeValueMemberB:
		return v.Value
	default:
		d.reportInvalid(name, "a binary value")
	}
	return nil
}

// readNumber reads a required number.
func (d *decoder) readNumber(name string) int64 {
	n := d.readOptional(name)
	if !n.Valid {
		d.reportInvalid(name, "a number")
	}
	return n.Int64
}

func (d *decoder) readOptional(name string) sql.NullInt64 {
	v, found := d.item[name]
	if !found {
		return sql.NullInt64{}
	}
	if v, ok := v.(*types.AttributeValueMemberN); ok {
		if n, err := strconv.ParseInt(v.Value, 10, 64); err == nil {
			return sql.NullInt64{Int64: n, Valid: true}
		}
	}
	d.reportInvalid(name, "a whole number")
	return sql.NullInt64{}
}

// readResponse returns the encoded response, decompressed.
func (d *decoder) readResponse() []byte {
	stored := d.readBytes(attrAnswer)
	if bytes.HasPrefix(stored, []byte(recordline.ResponseMagic)) {
		return stored
	}
	size := d.readNumber(attrAnswerSize)
	whole, err := decompressResponse(stored, size)
	if err != nil {
		d.reportInvalid(attrAnswer, "a response")
	}
	return whole
}

// minCompressed is one unit of the service: smaller responses stay uncompressed. maxUncompressed also bounds the memory
// for decompression: the store keeps no larger response, however small the compressed form would be.
const (
	minCompressed   = 1 << 10
	maxUncompressed = 64 << 20
)

var gzipWriters = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for invalid levels
	return w
}}

// compressResponse returns the compressed form of an encoded response, or whole if compression saves less than a tenth.
func compressResponse(whole []byte) []byte {
	if len(whole) < minCompressed {
		return whole
	}
	var b bytes.Buffer
	w := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(w)
	w.Reset(&b)
	_, _ = w.Write(whole) // writes to a bytes.Buffer cannot fail
	_ = w.Close()
	if b.Len() > len(whole)-len(whole)/10 {
		return whole
	}
	return b.Bytes()
}

func decompressResponse(stored []byte, size int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(stored))
	if err != nil {
		return nil, err
	}
	limit := min(max(size, 0), maxUncompressed)
	return io.ReadAll(io.LimitReader(r, limit+1)) // a response that is too long fails later, because it contains its length
}
