package mysqlstore

import (
	"database/sql"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// scan returns the record that the statement "read" finds, and the largest packet that the server takes. More is where
// to scan the columns in front of these to.
func scan(rows *sql.Rows, more ...any) (r *sqlstore.Row, largest int64, err error) {
	defer func() {
		if closed := rows.Close(); err == nil {
			err = closed
		}
	}()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return nil, 0, err
		}
		return nil, 0, fmt.Errorf("the statement returned no row")
	}
	r = new(sqlstore.Row)
	columns := r.Columns()
	first := append(more, &r.Now, &largest, &r.Found)
	others := make([]any, len(columns))
	for i := range others {
		others[i] = ignored{} // null, if there is no record
	}
	if err := rows.Scan(append(first, others...)...); err != nil || !r.Found {
		return r, largest, err
	}
	for i := range first {
		first[i] = ignored{}
	}
	if err := rows.Scan(append(first, columns...)...); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", idempotency.ErrRecordInvalid, err)
	}
	return r, largest, nil
}

// ignored is a column that is of no interest.
type ignored struct{}

// Scan implements [sql.Scanner].
func (ignored) Scan(any) error { return nil }
