package casstore

import (
	"bytes"
	"database/sql"
	"encoding/binary"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// A value begins with the version of the format, and with flags for optional parts. Numbers follow as varints, and then byte strings
// with their lengths. Times are in microseconds since 1970.
const (
	formatVersion = 1
	hasLease      = 1
	hasResponse   = 2
)

// encodeRecord returns the value of a record.
func encodeRecord(r *sqlstore.Seen) []byte {
	var flags byte
	var lease int64
	var response []byte
	if r.Lease.Valid {
		flags, lease = flags|hasLease, r.Lease.Int64
	}
	if r.Response.Valid {
		flags, response = flags|hasResponse, r.Response.V
	}
	b := make([]byte, 0, 256+len(response)+len(r.Steps)+len(r.Resolved))
	b = append(b, formatVersion, flags)
	for _, n := range []int64{r.Attempt, r.Created, lease, r.Expires} {
		b = binary.AppendVarint(b, n)
	}
	for _, name := range r.Names {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	for _, part := range [][]byte{r.Fingerprint, r.Token, r.Steps, r.Resolved, r.Ended, response} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return b
}

// decodeRecord returns the record of a value. A value that encodeRecord would not write is an error that wraps
// idempotency.ErrRecordInvalid.
func decodeRecord(data []byte) (sqlstore.Seen, error) {
	r := sqlstore.Seen{Row: sqlstore.Row{Found: true}}
	if len(data) < 2 || data[0] != formatVersion {
		return r, sqlstore.Invalid("no record of format %d", formatVersion)
	}
	d := decoder(data[2:])
	r.Attempt, r.Created, r.Lease.Int64, r.Expires = d.nextNumber(), d.nextNumber(), d.nextNumber(), d.nextNumber()
	r.Names = sqlstore.Names{string(d.nextBytes()), string(d.nextBytes()), string(d.nextBytes())}
	r.Fingerprint, r.Token, r.Steps, r.Resolved, r.Ended = d.nextBytes(), d.nextBytes(), d.nextBytes(), d.nextBytes(), d.nextBytes()
	r.Lease.Valid = data[1]&hasLease != 0
	r.Response = sql.Null[[]byte]{V: d.nextBytes(), Valid: data[1]&hasResponse != 0}
	if !bytes.Equal(encodeRecord(&r), data) {
		return r, sqlstore.Invalid("damaged record")
	}
	return r, nil
}

// decoder is the undecoded rest of a value. Missing parts decode as zero.
type decoder []byte

func (d *decoder) nextNumber() int64 {
	n, size := binary.Varint(*d)
	*d = (*d)[max(size, 0):]
	return n
}

func (d *decoder) nextBytes() []byte {
	length, size := binary.Uvarint(*d)
	rest := (*d)[max(size, 0):]
	length = min(length, uint64(len(rest)))
	*d = rest[length:]
	return rest[:length:length]
}
