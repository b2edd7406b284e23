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

// database is the database of a store, in which the steps in a transaction write rows.
type database struct {
	sqlDB        *sql.DB
	runSQLStep   func(ctx context.Context, name string, fn func(tx *sql.Tx) (string, error)) (string, error)
	bookTransfer killtest.Book

	memoryRows *testservice.Rows // replaces the other fields
}

// openDatabases has a function for each kind of store with transactions, which opens the database at a place.
var openDatabases = map[string]func(place string) (*database, error){
	"postgres": func(place string) (*database, error) {
		pool, err := pgxpool.New(context.Background(), place)
		if err != nil {
			return nil, err
		}
		db := stdlib.OpenDBFromPool(pool)
		return &database{sqlDB: db, runSQLStep: pgxstore.DoSQLTx[string], bookTransfer: killtest.Alternate(
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
		return &database{sqlDB: db, runSQLStep: mysqlstore.DoTx[string], bookTransfer: killtest.Alternate(
			killtest.BookTx(mysqlstore.DoTx[string]), killtest.BookInTx(db, mysqlstore.DoInTx[string]),
		)}, nil
	},
	"sqlite": func(place string) (*database, error) {
		db, err := sql.Open("sqlite", "file:"+place+"?_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)&_txlock=immediate")
		if err != nil {
			return nil, err
		}
		return &database{sqlDB: db, runSQLStep: sqlitestore.DoTx[string], bookTransfer: killtest.Alternate(
			killtest.BookTx(sqlitestore.DoTx[string]), killtest.BookInTx(db, sqlitestore.DoInTx[string]),
		)}, nil
	},
}

// close closes the connections, after the last row was written.
func (d *database) close() {
	if d != nil && d.sqlDB != nil {
		_ = d.sqlDB.Close()
	}
}

// createTable creates the table for the rows of [database.runStep].
func (d *database) createTable(ctx context.Context) error {
	if d.memoryRows != nil {
		return nil
	}
	_, err := d.sqlDB.ExecContext(ctx, "CREATE TABLE walked (name VARCHAR(60))")
	return err
}

// runStep runs a step in a transaction, which calls fn. fn calls write to write a row with the given name.
func (d *database) runStep(
	ctx context.Context, name string, fn func(write func(row string) error) (string, error),
) (string, error) {
	if d.memoryRows != nil {
		return step.DoTx(ctx, name, func(tx *testservice.RowTx) (string, error) {
			return fn(func(row string) error { return tx.Write(ctx, row) })
		})
	}
	return d.runSQLStep(ctx, name, func(tx *sql.Tx) (string, error) {
		return fn(func(row string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO walked VALUES ('"+row+"')")
			return err
		})
	})
}

// countRows returns the number of rows with the name row.
func (d *database) countRows(ctx context.Context, row string) (n int, err error) {
	if d.memoryRows != nil {
		return d.memoryRows.Count(ctx, row)
	}
	err = d.sqlDB.QueryRowContext(ctx, "SELECT COUNT(*) FROM walked WHERE name = '"+row+"'").Scan(&n)
	return n, err
}

// newVar returns the Var of a step in a transaction.
func (d *database) newVar() any {
	if d.memoryRows != nil {
		return new(*testservice.RowTx)
	}
	return new(*sql.Tx)
}
