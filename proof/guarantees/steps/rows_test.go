package steps_test

import (
	"context"
	"database/sql"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// database is where a step in a transaction writes rows.
type database struct {
	sql  *sql.DB
	doTx func(ctx context.Context, name string, fn func(tx *sql.Tx) (string, error)) (string, error)
	book killtest.Book

	memory *testservice.Rows // instead of the others
}

// databases open the database of a store of a kind, at a place. Redis has none.
var databases = map[string]func(place string) (*database, error){
	"postgres": func(place string) (*database, error) {
		pool, err := pgxpool.New(context.Background(), place)
		if err != nil {
			return nil, err
		}
		db := stdlib.OpenDBFromPool(pool)
		return &database{sql: db, doTx: pgxstore.DoSQLTx[string], book: killtest.Alternate(
			killtest.BookTx(pgxstore.DoSQLTx[string]), killtest.BookInTx(db, pgxstore.DoInSQLTx[string]),
		)}, nil
	},
	"mysql": func(place string) (*database, error) {
		db, err := sql.Open("mysql", place)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
		return &database{sql: db, doTx: mysqlstore.DoTx[string], book: killtest.Alternate(
			killtest.BookTx(mysqlstore.DoTx[string]), killtest.BookInTx(db, mysqlstore.DoInTx[string]),
		)}, nil
	},
	"sqlite": func(place string) (*database, error) {
		db, err := sql.Open("sqlite", "file:"+place+"?_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)&_txlock=immediate")
		if err != nil {
			return nil, err
		}
		return &database{sql: db, doTx: sqlitestore.DoTx[string], book: killtest.Alternate(
			killtest.BookTx(sqlitestore.DoTx[string]), killtest.BookInTx(db, sqlitestore.DoInTx[string]),
		)}, nil
	},
}

// close is called when no more rows are written.
func (d *database) close() {
	if d != nil && d.sql != nil {
		_ = d.sql.Close()
	}
}

// create creates the table of the rows of [database.do].
func (d *database) create(ctx context.Context) error {
	if d.memory != nil {
		return nil
	}
	_, err := d.sql.ExecContext(ctx, "CREATE TABLE walked (name VARCHAR(60))")
	return err
}

// do calls fn in a step in a transaction, and fn calls write to write a row of a name.
func (d *database) do(
	ctx context.Context, name string, fn func(write func(row string) error) (string, error),
) (string, error) {
	if d.memory != nil {
		return step.DoTx(ctx, name, func(tx *testservice.RowTx) (string, error) {
			return fn(func(row string) error { return tx.Write(ctx, row) })
		})
	}
	return d.doTx(ctx, name, func(tx *sql.Tx) (string, error) {
		return fn(func(row string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO walked VALUES ('"+row+"')")
			return err
		})
	})
}

// count returns how many rows of a name there are.
func (d *database) count(ctx context.Context, row string) (n int, err error) {
	if d.memory != nil {
		return d.memory.Count(ctx, row)
	}
	err = d.sql.QueryRowContext(ctx, "SELECT COUNT(*) FROM walked WHERE name = '"+row+"'").Scan(&n)
	return n, err
}

// newVar returns what a step in a transaction has as its Var.
func (d *database) newVar() any {
	if d.memory != nil {
		return new(*testservice.RowTx)
	}
	return new(*sql.Tx)
}
