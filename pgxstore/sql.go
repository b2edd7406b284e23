package pgxstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// SQLTx returns the transaction of [Tx] for package database/sql, and so for GORM, sqlx, ent, bun and the code that
// sqlc generates for database/sql. Both can be used side by side. SQLTx returns false where Tx does.
//
// All rules of Tx hold: Commit returns [ErrCommit], Rollback undoes the changes of the handler, errors of the server
// are of type [*pgconn.PgError], and the transaction ends with the handler. Commit and Rollback end the [sql.Tx] in any
// case. A savepoint is made in SQL, as GORM does it. There are the same round trips as with Tx. Prepare takes none,
// because pgx prepares statements when they are used.
//
// Package database/sql does not send a statement whose context has ended. If that is the context of the handler,
// nothing is committed or stored, as with Tx. If it is a context that the handler has derived, the store does not know
// of the statement. The handler must not answer then as if the database had refused it.
func SQLTx(ctx context.Context) (*sql.Tx, bool) {
	switch tx := ctx.Value(txKey{}).(type) {
	case *transaction:
		return tx.Bridge.Open(tx.Handler, &tx.bridged), true
	case *given:
		context.AfterFunc(tx.ctx, func() { tx.bridge.Close(false) })
		return tx.bridge.Open(tx.ctx, &tx.bridged), true
	}
	return nil, false
}

// bridged is a transaction for database/sql. An argument may be of any type that pgx knows.
type bridged struct{ pgx.Tx }

var _ sqlstore.Bridged = (*bridged)(nil)

// Prepare implements [sqlstore.Bridged]. It sends nothing: pgx prepares statements when they are used, and knows those that
// it has prepared.
func (b *bridged) Prepare(context.Context, string) (*sql.Stmt, error) { return nil, nil }

// Exec implements [sqlstore.Bridged].
func (b *bridged) Exec(ctx context.Context, query string, _ *sql.Stmt, args []driver.NamedValue) (driver.Result, error) {
	values, err := appendValues(nil, args)
	if err != nil {
		return nil, err
	}
	tag, err := b.Tx.Exec(ctx, query, values...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// Query implements [sqlstore.Bridged]. It asks for the first row at once: before it has come the columns are unknown, and
// whether there are any.
func (b *bridged) Query(ctx context.Context, query string, _ *sql.Stmt, args []driver.NamedValue) (driver.Rows, error) {
	values, err := appendValues([]any{binaryTypes}, args)
	if err != nil {
		return nil, err
	}
	rows, err := b.Tx.Query(ctx, query, values...)
	if err != nil {
		return nil, err
	}
	more := rows.Next()
	if err := rows.Err(); err != nil {
		rows.Close()
		return nil, err
	}
	return &sqlRows{rows, more}, nil
}

// appendValues appends the values of args, which have places and no names in PostgreSQL.
func appendValues(values []any, args []driver.NamedValue) ([]any, error) {
	for _, arg := range args {
		if arg.Name != "" {
			return nil, fmt.Errorf("pgxstore: argument %q: PostgreSQL has no named arguments", arg.Name)
		}
		values = append(values, arg.Value)
	}
	return values, nil
}

// sqlRows are rows of which the first one may have been asked for already.
type sqlRows struct {
	rows  pgx.Rows
	ahead bool
}

func (r *sqlRows) Columns() []string {
	fields := r.rows.FieldDescriptions()
	names := make([]string, len(fields))
	for i := range fields {
		names[i] = fields[i].Name
	}
	return names
}

func (r *sqlRows) Close() error {
	r.rows.Close()
	return r.rows.Err()
}

func (r *sqlRows) Next(dest []driver.Value) error {
	more := r.ahead || r.rows.Next()
	r.ahead = false
	if !more {
		return cmp.Or(r.rows.Err(), io.EOF)
	}
	types, fields := r.rows.Conn().TypeMap(), r.rows.FieldDescriptions()
	for i, raw := range r.rows.RawValues() {
		value, err := sqlValue(types, &fields[i], raw)
		if err != nil {
			return fmt.Errorf("pgxstore: column %s: %w", fields[i].Name, err)
		}
		dest[i] = value
	}
	return nil
}

// sqlValue returns a value as one of the types that database/sql knows, the same one as package stdlib of pgx.
func sqlValue(types *pgtype.Map, field *pgconn.FieldDescription, raw []byte) (driver.Value, error) {
	if raw == nil {
		return nil, nil
	}
	t, ok := types.TypeForOID(field.DataTypeOID)
	if !ok {
		return string(raw), nil
	}
	return t.Codec.DecodeDatabaseSQLValue(types, field.DataTypeOID, field.Format, raw)
}

// binaryTypes are read in their binary form. All others are text for database/sql.
var binaryTypes = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: pgx.BinaryFormatCode, pgtype.ByteaOID: pgx.BinaryFormatCode,
	pgtype.Int2OID: pgx.BinaryFormatCode, pgtype.Int4OID: pgx.BinaryFormatCode, pgtype.Int8OID: pgx.BinaryFormatCode,
	pgtype.Float4OID: pgx.BinaryFormatCode, pgtype.Float8OID: pgx.BinaryFormatCode,
	pgtype.DateOID:      pgx.BinaryFormatCode,
	pgtype.TimestampOID: pgx.BinaryFormatCode, pgtype.TimestamptzOID: pgx.BinaryFormatCode,
}
