package pgxstore

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// names returns the names of a key as the columns user_id, endpoint and key have them. A record whose names are not those of
// the key was not made for it.
func (o Options) names(key idempotency.Key) sqlstore.Names {
	n := sqlstore.NamesOf(key)
	if o.DigestNames {
		for i := range n {
			n[i] = digested(n[i])
		}
	}
	return n
}

func digested(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// storedName is compared to the name that is asked for while it is scanned, which saves a copy.
type storedName struct {
	asked string
	form  form
}

// form says how the name in a record relates to the one that is asked for.
type form int

const (
	other    form = iota
	equal         // both are names, or both are digests
	clear         // the digest of the one in the record is asked for
	digestOf      // the one in the record is the digest of what is asked for
)

// ScanBytes implements [pgtype.BytesScanner].
func (n *storedName) ScanBytes(stored []byte) error {
	switch {
	case stored == nil:
		n.form = other
	case string(stored) == n.asked:
		n.form = equal
	case digested(string(stored)) == n.asked:
		n.form = clear
	case string(stored) == digested(n.asked):
		n.form = digestOf
	default:
		n.form = other
	}
	return nil
}

// storedNames are the names in a record.
type storedNames [3]storedName

// match reports whether all are those that are asked for, in one form. The form may be another one than the store
// writes: the setting may have been changed since. The statement that claims says the same in SQL.
func (n *storedNames) match() bool {
	return n[0].form != other && n[0].form == n[1].form && n[1].form == n[2].form
}
