package mysqlstore

import (
	"database/sql"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// txStatements are the statements of a [TxStore]. Their values are literals: a statement with parameters takes one
// more round trip, unless the driver interpolates them.
type txStatements struct{ look, lock, insert, replace, answer, end, outcome string }

func expandTx(o Options) txStatements {
	return txStatements{
		look: o.statement("tx_look"), lock: o.statement("tx_lock"), insert: o.statement("tx_insert"),
		replace: o.statement("tx_replace"), answer: o.statement("tx_answer"), end: o.statement("tx_end"),
		outcome: o.statement("tx_outcome"),
	}
}

// values are what a statement is completed with, in pairs: the name of a place, and what stands there.
type values []string

func (v values) in(statement string) string { return strings.NewReplacer(v...).Replace(statement) }

// binary returns a literal that every SQL mode reads alike.
func binary(b []byte) string { return "x'" + hex.EncodeToString(b) + "'" }

func text(s string) string { return "_utf8mb4 " + binary([]byte(s)) }

func integer(n int64) string { return strconv.FormatInt(n, 10) }

func nullable(n sql.NullInt64) string {
	if !n.Valid {
		return "NULL"
	}
	return integer(n.Int64)
}

func boolean(b bool) string {
	if b {
		return "TRUE"
	}
	return "FALSE"
}

// seenValues are what a record is compared with before it is replaced.
func seenValues(seen *sqlstore.Row) values {
	return values{"{seen_token}", binary(seen.Token), "{seen_lease}", nullable(seen.Lease),
		"{seen_expires}", integer(seen.Expires), "{seen_open}", boolean(!seen.Response.Valid)}
}
