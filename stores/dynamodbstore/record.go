package dynamodbstore

import (
	"bytes"
	"compress/gzip"
	"database/sql"
	"io"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// The attributes of an item. None is a word that expressions reserve. Times are in microseconds since 1970, by the clock of
// the process that has written them. An attribute that a record does not need is missing, and so is a name that is empty.
const (
	digestName      = "digest" // the partition key: it spreads
	userName        = "user_id"
	endpointName    = "endpoint"
	keyName         = "idempotency_key"
	attemptName     = "attempt"
	fingerprintName = "fingerprint"
	tokenName       = "claim_token" // of the attempt that claimed the key last
	createdName     = "created"
	leaseName       = "lease"         // when it lapses; missing: nobody is running the operation
	expiresName     = "expires"       // when the record stops to count
	removeName      = "remove_at"     // in seconds: when the service may delete the item
	answerName      = "answer"        // the response; missing: not completed
	sizeName        = "answer_size"   // of the response, before it was compressed
	statusName      = "answer_status" // for listings, as the note
	noteName        = "answer_note"
	stepsName       = "steps" // the checkpoints, one behind the other
	stepsSizeName   = "steps_size"
	resolvedName    = "resolved" // who has resolved the operation, and how
	resolvedSize    = "resolved_size"
)

// value is what an attribute has.
type value = types.AttributeValue

func number(n int64) value { return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)} }

func binary(b []byte) value { return &types.AttributeValueMemberB{Value: b} }

func keyOf(digest []byte) map[string]value { return map[string]value{digestName: binary(digest)} }

// decode returns what people and stores are told of an item. The error wraps idempotency.ErrRecordInvalid.
func decode(item map[string]value, now int64) (*sqlstore.Seen, error) {
	d := decoder{item: item}
	seen := &sqlstore.Seen{
		Row: sqlstore.Row{
			Found: true, Now: now,
			Names:   sqlstore.Names{d.text(userName), d.text(endpointName), d.text(keyName)},
			Attempt: d.number(attemptName), Fingerprint: d.bytes(fingerprintName), Token: d.bytes(tokenName),
			Created: d.number(createdName), Lease: d.optional(leaseName), Expires: d.number(expiresName),
		},
		Steps: d.bytes(stepsName), Resolved: d.bytes(resolvedName),
	}
	if _, completed := item[answerName]; completed {
		seen.Response = sql.Null[[]byte]{V: d.answer(), Valid: true}
	}
	return seen, d.err
}

// decoder reads attributes. It keeps the first fault.
type decoder struct {
	item map[string]value
	err  error
}

func (d *decoder) refuse(name, what string) {
	if d.err == nil {
		d.err = sqlstore.Invalid("the attribute %s is no %s", name, what)
	}
}

func (d *decoder) text(name string) string {
	switch v := d.item[name].(type) {
	case nil:
	case *types.AttributeValueMemberS:
		return v.Value
	default:
		d.refuse(name, "text")
	}
	return ""
}

func (d *decoder) bytes(name string) []byte {
	switch v := d.item[name].(type) {
	case nil:
	case *types.AttributeValueMemberB:
		return v.Value
	default:
		d.refuse(name, "binary value")
	}
	return nil
}

// number returns a number that must be there.
func (d *decoder) number(name string) int64 {
	n := d.optional(name)
	if !n.Valid {
		d.refuse(name, "number")
	}
	return n.Int64
}

func (d *decoder) optional(name string) sql.NullInt64 {
	v, found := d.item[name]
	if !found {
		return sql.NullInt64{}
	}
	if v, ok := v.(*types.AttributeValueMemberN); ok {
		if n, err := strconv.ParseInt(v.Value, 10, 64); err == nil {
			return sql.NullInt64{Int64: n, Valid: true}
		}
	}
	d.refuse(name, "whole number")
	return sql.NullInt64{}
}

// answer returns the stored form of the response, as it was before it was compressed.
func (d *decoder) answer() []byte {
	stored := d.bytes(answerName)
	if bytes.HasPrefix(stored, []byte(recordline.ResponseMagic)) {
		return stored
	}
	size := d.number(sizeName)
	whole, err := unzip(stored, size)
	if err != nil {
		d.refuse(answerName, "response")
	}
	return whole
}

// An answer is compressed if it takes more than one unit of the service, and if that saves a tenth or more. What is larger
// than mostWhole is not kept, however well it could be compressed.
const (
	leastZipped = 1 << 10
	mostWhole   = 64 << 20
)

var writers = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // a level that there is
	return w
}}

// zip returns what is stored of an answer: itself, or the same compressed.
func zip(whole []byte) []byte {
	if len(whole) < leastZipped {
		return whole
	}
	var b bytes.Buffer
	w := writers.Get().(*gzip.Writer)
	defer writers.Put(w)
	w.Reset(&b)
	_, _ = w.Write(whole) // a buffer takes everything
	_ = w.Close()
	if b.Len() > len(whole)-len(whole)/10 {
		return whole
	}
	return b.Bytes()
}

func unzip(stored []byte, size int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(stored))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, min(max(size, 0), mostWhole)+1)) // a response knows its own length
}
