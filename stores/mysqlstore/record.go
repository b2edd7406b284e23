package mysqlstore

import (
	"database/sql"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// scanRow returns the record of the statement "read", and max_allowed_packet of the server. The columns before those are scanned to
// more.
func scanRow(rows *sql.Rows, more ...any) (r *sqlstore.Row, largest int64, err error) {
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
		others[i] = ignored{} // null without a record
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

// scanCommittedRow is scanRow for a statement whose first column is @@autocommit. If autocommit is off in the session, the error
// wraps ErrEngine, because the writes of the store would never be committed.
func scanCommittedRow(rows *sql.Rows, more ...any) (r *sqlstore.Row, largest int64, err error) {
	var autocommit bool
	r, largest, err = scanRow(rows, append([]any{&autocommit}, more...)...)
	if err == nil && !autocommit {
		err = fmt.Errorf("%w: autocommit is off in the session, so nothing would be committed", ErrEngine)
	}
	return r, largest, err
}

// ignored scans a column and drops the value.
type ignored struct{}

// Scan implements [sql.Scanner].
func (ignored) Scan(any) error { return nil }
