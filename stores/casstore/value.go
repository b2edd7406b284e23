package casstore

import (
	"bytes"
	"database/sql"
	"encoding/binary"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// A value begins with the version of its form, and with flags for what may be missing. Numbers follow, and then bytes, each behind
// their length. Times are in microseconds since 1970.
const (
	form        = 1
	hasLease    = 1
	hasResponse = 2
)

// encode returns the value of a record.
func encode(r *sqlstore.Seen) []byte {
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
	b = append(b, form, flags)
	for _, n := range []int64{r.Attempt, r.Created, lease, r.Expires} {
		b = binary.AppendVarint(b, n)
	}
	for _, name := range r.Names {
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	for _, part := range [][]byte{r.Fingerprint, r.Token, r.Steps, r.Resolved, response} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return b
}

// decode returns the record of a value. Whatever encode does not write is an error that wraps idempotency.ErrRecordInvalid.
func decode(data []byte) (sqlstore.Seen, error) {
	r := sqlstore.Seen{Row: sqlstore.Row{Found: true}}
	if len(data) < 2 || data[0] != form {
		return r, sqlstore.Invalid("no record of form %d", form)
	}
	d := decoder(data[2:])
	r.Attempt, r.Created, r.Lease.Int64, r.Expires = d.number(), d.number(), d.number(), d.number()
	r.Names = sqlstore.Names{string(d.part()), string(d.part()), string(d.part())}
	r.Fingerprint, r.Token, r.Steps, r.Resolved = d.part(), d.part(), d.part(), d.part()
	r.Lease.Valid = data[1]&hasLease != 0
	r.Response = sql.Null[[]byte]{V: d.part(), Valid: data[1]&hasResponse != 0}
	if !bytes.Equal(encode(&r), data) {
		return r, sqlstore.Invalid("damaged record")
	}
	return r, nil
}

// decoder is what is still to be decoded. What is missing is zero.
type decoder []byte

func (d *decoder) number() int64 {
	n, size := binary.Varint(*d)
	*d = (*d)[max(size, 0):]
	return n
}

func (d *decoder) part() []byte {
	length, size := binary.Uvarint(*d)
	rest := (*d)[max(size, 0):]
	length = min(length, uint64(len(rest)))
	*d = rest[length:]
	return rest[:length:length]
}
