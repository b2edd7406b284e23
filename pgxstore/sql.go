package pgxstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
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
		return tx.bridge.open(tx.handler, tx), true
	case *given:
		return tx.bridge.open(tx.ctx, tx.Tx), true
	}
	return nil, false
}

// bridge is the way from database/sql to a transaction.
type bridge struct {
	once sync.Once
	tx   atomic.Pointer[sql.Tx] // nil: nobody has asked for it
}

// open returns tx for database/sql. It ends with ctx, and the goroutines that database/sql has for it do.
func (b *bridge) open(ctx context.Context, tx pgx.Tx) *sql.Tx {
	b.once.Do(func() {
		lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
		db := sql.OpenDB(&sqlConn{lasting, tx})
		bridged, _ := db.BeginTx(lasting, nil) // sends nothing, and fails only if its context has ended
		b.tx.Store(bridged)
		context.AfterFunc(ctx, func() {
			cancel()
			_ = db.Close()
		})
	})
	return b.tx.Load()
}

// used reports whether somebody has asked for the transaction.
func (b *bridge) used() bool { return b.tx.Load() != nil }

// sqlConn is the transaction as the one connection of a [sql.DB], which connects and begins without a word to the server.
type sqlConn struct {
	ctx context.Context // ends with the transaction
	tx  pgx.Tx
}

var (
	_ driver.Connector         = (*sqlConn)(nil)
	_ driver.ConnBeginTx       = (*sqlConn)(nil)
	_ driver.Tx                = (*sqlConn)(nil)
	_ driver.ExecerContext     = (*sqlConn)(nil)
	_ driver.QueryerContext    = (*sqlConn)(nil)
	_ driver.NamedValueChecker = (*sqlConn)(nil)
	_ driver.StmtExecContext   = sqlStmt{}
	_ driver.StmtQueryContext  = sqlStmt{}
)

func (c *sqlConn) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c *sqlConn) Driver() driver.Driver                        { return nil } // the sql.DB is nobody's
func (c *sqlConn) Close() error                                 { return nil }
func (c *sqlConn) Begin() (driver.Tx, error)                    { return c, nil }

func (c *sqlConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

func (c *sqlConn) Commit() error { return c.tx.Commit(c.ctx) }

// Rollback is also what database/sql does when ctx ends: the transaction is in other hands then.
func (c *sqlConn) Rollback() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	return c.tx.Rollback(c.ctx)
}

// CheckNamedValue leaves arguments as they are: pgx knows more types than database/sql, and those of database/sql too.
func (c *sqlConn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (c *sqlConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	values, err := appendValues(nil, args)
	if err != nil {
		return nil, err
	}
	tag, err := c.tx.Exec(ctx, query, values...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// QueryContext asks for the first row at once: before it has come the columns are unknown, and whether there are any.
func (c *sqlConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	values, err := appendValues([]any{binaryTypes}, args)
	if err != nil {
		return nil, err
	}
	rows, err := c.tx.Query(ctx, query, values...)
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

// Prepare sends nothing: pgx prepares statements when they are used, and knows those that it has prepared.
func (c *sqlConn) Prepare(query string) (driver.Stmt, error) { return sqlStmt{c, query}, nil }

type sqlStmt struct {
	conn  *sqlConn
	query string
}

func (s sqlStmt) Close() error  { return nil }
func (s sqlStmt) NumInput() int { return -1 } // pgx counts

func (s sqlStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip } // database/sql calls those
func (s sqlStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip } // with a context instead

func (s sqlStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

func (s sqlStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
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
