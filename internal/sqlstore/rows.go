package sqlstore

import (
	"database/sql"
	"database/sql/driver"
	"io"
	"reflect"
)

// bridgeRows are rows that end their statement when they are closed.
type bridgeRows struct {
	rows    *sql.Rows
	use     *use
	columns []*sql.ColumnType
	row     []any // pointers to values
	values  []any
}

var (
	_ driver.RowsColumnTypeDatabaseTypeName = (*bridgeRows)(nil)
	_ driver.RowsColumnTypeLength           = (*bridgeRows)(nil)
	_ driver.RowsColumnTypeNullable         = (*bridgeRows)(nil)
	_ driver.RowsColumnTypeScanType         = (*bridgeRows)(nil)
	_ driver.RowsColumnTypePrecisionScale   = (*bridgeRows)(nil)
)

func bridged(rows *sql.Rows, use *use, err error) (driver.Rows, error) {
	var columns []*sql.ColumnType
	if err == nil {
		columns, err = rows.ColumnTypes()
	}
	if err != nil {
		use.done(err)
		return nil, err
	}
	r := &bridgeRows{rows, use, columns, make([]any, len(columns)), make([]any, len(columns))}
	for i := range r.row {
		r.row[i] = &r.values[i]
	}
	return r, nil
}

func (r *bridgeRows) Columns() []string {
	names := make([]string, len(r.columns))
	for i, column := range r.columns {
		names[i] = column.Name()
	}
	return names
}

func (r *bridgeRows) Close() error {
	closed := r.rows.Close()
	err := r.rows.Err()
	if err == nil {
		err = closed
	}
	r.use.done(err)
	return err
}

func (r *bridgeRows) Next(dest []driver.Value) error {
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	if err := r.rows.Scan(r.row...); err != nil {
		return err
	}
	for i, value := range r.values {
		dest[i] = value
	}
	return nil
}

func (r *bridgeRows) ColumnTypeDatabaseTypeName(i int) string { return r.columns[i].DatabaseTypeName() }

func (r *bridgeRows) ColumnTypeScanType(i int) reflect.Type { return r.columns[i].ScanType() }

func (r *bridgeRows) ColumnTypeLength(i int) (int64, bool) { return r.columns[i].Length() }

func (r *bridgeRows) ColumnTypeNullable(i int) (nullable, ok bool) { return r.columns[i].Nullable() }

func (r *bridgeRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return r.columns[i].DecimalSize()
}
