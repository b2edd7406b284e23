package compat_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	_ "modernc.org/sqlite"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// good is a row.
type good struct {
	bun.BaseModel `bun:"table:goods"`

	ID   int64  `bun:",pk,autoincrement" db:"id"`
	Name string `bun:"name" db:"name"`
}

// sqlDatabase is a database with a store.
type sqlDatabase struct {
	db    *sql.DB
	store idempotency.Store
	doTx  func(ctx context.Context, name string, fn func(tx *sql.Tx) (good, error)) (good, error)

	// doInTx runs a step in an existing transaction of a library.
	doInTx func(ctx context.Context, tx any, name string, fn func() (good, error)) (good, error)

	table string // the statement that makes the table of goods
	bind  int    // the placeholder style, for sqlx
	ent   string
	bun   func() schema.Dialect
}

var sqlDatabases = map[string]func(*testing.T) sqlDatabase{
	"PostgreSQL": onPostgres, "SQLite": onSQLite, "MariaDB": onMariaDB,
}

// Libraries on database/sql work in the transaction of a step, and a step works in the transaction of a library.
// Each library inserts a row, and reads the row. The row exists once, with the result of the step, although the
// first request fails after the step.
func TestLibrariesOnSQL(t *testing.T) {
	t.Parallel()
	for name, start := range sqlDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			_, err := d.db.ExecContext(t.Context(), d.table)
			require.NoError(t, err)
			for library, insert := range map[string]func(context.Context, *sql.Tx, string) (good, error){
				"sqlx": d.insertBySqlx, "bun": d.insertByBun,
				"ent": func(ctx context.Context, tx *sql.Tx, name string) (good, error) { return d.insertByEnt(ctx, tx, name) },
			} {
				t.Run(library, func(t *testing.T) {
					d.run(t, func(ctx context.Context, name string) (good, error) {
						return d.doTx(ctx, "insert", func(tx *sql.Tx) (good, error) { return insert(ctx, tx, name) })
					})
				})
			}
			t.Run("in a transaction of sqlx", func(t *testing.T) { d.run(t, d.inTxOfSqlx) })
			t.Run("in a transaction of ent", func(t *testing.T) { d.run(t, d.inTxOfEnt) })
			t.Run("in a transaction of bun", func(t *testing.T) { d.run(t, d.inTxOfBun) })
		})
	}
}

// run makes a handler fail after its step, and then succeed.
func (d sqlDatabase) run(t *testing.T, step func(ctx context.Context, name string) (good, error)) {
	status := http.StatusServiceUnavailable
	var results []good
	m := newMiddleware(t, d.store, idempotency.Options{})
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inserted, err := step(r.Context(), t.Name())
		assert.NoError(t, err)
		results = append(results, inserted)
		w.WriteHeader(status)
	}))
	for _, replayed := range []string{"", "", "true"} {
		r := httptest.NewRequest(http.MethodPost, "/goods", nil)
		r.Header.Set("Idempotency-Key", strings.ReplaceAll(t.Name(), " ", "-"))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, status, w.Code, w.Body)
		require.Equal(t, replayed, w.Header().Get(marker))
		status = http.StatusCreated
	}
	require.Len(t, results, 2)
	require.Equal(t, results[0], results[1])
	require.Equal(t, t.Name(), results[0].Name)
	require.NotZero(t, results[0].ID)
	var count int
	query := sqlx.Rebind(d.bind, "SELECT count(*) FROM goods WHERE name = ?")
	require.NoError(t, d.db.QueryRowContext(t.Context(), query, t.Name()).Scan(&count))
	require.Equal(t, 1, count)
}

func (d sqlDatabase) inTxOfSqlx(ctx context.Context, name string) (inserted good, err error) {
	tx, err := sqlx.NewDb(d.db, "").BeginTxx(ctx, nil)
	if err != nil {
		return good{}, err
	}
	inserted, err = d.doInTx(ctx, tx, "insert", func() (good, error) { return d.insertBySqlx(ctx, tx.Tx, name) })
	if err != nil {
		return good{}, errors.Join(err, tx.Rollback())
	}
	return inserted, tx.Commit()
}

func (d sqlDatabase) inTxOfBun(ctx context.Context, name string) (inserted good, err error) {
	err = bun.NewDB(d.db, d.bun()).RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		inserted, err = d.doInTx(ctx, tx.Tx, "insert", func() (good, error) { return d.insertByBun(ctx, tx.Tx, name) })
		return err
	})
	return inserted, err
}

// inTxOfEnt uses the driver of the ent client.
func (d sqlDatabase) inTxOfEnt(ctx context.Context, name string) (inserted good, err error) {
	tx, err := entsql.OpenDB(d.ent, d.db).BeginTx(ctx, nil)
	if err != nil {
		return good{}, err
	}
	own := tx.(*entsql.Tx)
	inserted, err = d.doInTx(ctx, own, "insert", func() (good, error) { return d.insertByEnt(ctx, own.ExecQuerier, name) })
	if err != nil {
		return good{}, errors.Join(err, own.Rollback())
	}
	return inserted, own.Commit()
}

func onPostgres(t *testing.T) sqlDatabase {
	pool, err := pgxpool.New(t.Context(), servertest.Postgres(t).URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	return sqlDatabase{
		db: closed(t, stdlib.OpenDBFromPool(pool)), store: pgxstore.New(pool, pgxstore.Options{}),
		doTx: pgxstore.DoSQLTx[good],
		doInTx: func(ctx context.Context, tx any, name string, fn func() (good, error)) (good, error) {
			return pgxstore.DoInSQLTx(ctx, tx.(pgxstore.SQLQuerier), name, fn)
		},
		table: "CREATE TABLE goods (id bigserial PRIMARY KEY, name text UNIQUE)", bind: sqlx.DOLLAR,
		ent: dialect.Postgres, bun: func() schema.Dialect { return pgdialect.New() },
	}
}

func onSQLite(t *testing.T) sqlDatabase {
	path := filepath.Join(t.TempDir(), "shop.db")
	store, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	require.NoError(t, err)
	return sqlDatabase{
		db: closed(t, db), store: store, doTx: sqlitestore.DoTx[good],
		doInTx: func(ctx context.Context, tx any, name string, fn func() (good, error)) (good, error) {
			return sqlitestore.DoInTx(ctx, tx.(sqlitestore.Querier), name, fn)
		},
		table: "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT UNIQUE)", bind: sqlx.QUESTION,
		ent: dialect.SQLite, bun: func() schema.Dialect { return sqlitedialect.New() },
	}
}

func onMariaDB(t *testing.T) sqlDatabase {
	db, err := sql.Open("mysql", servertest.MariaDB(t).DSN())
	require.NoError(t, err)
	require.NoError(t, mysqlstore.Migrate(t.Context(), closed(t, db), mysqlstore.Options{}))
	return sqlDatabase{
		db: db, store: mysqlstore.New(db, mysqlstore.Options{}), doTx: mysqlstore.DoTx[good],
		doInTx: func(ctx context.Context, tx any, name string, fn func() (good, error)) (good, error) {
			return mysqlstore.DoInTx(ctx, tx.(mysqlstore.Querier), name, fn)
		},
		table: "CREATE TABLE goods (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) UNIQUE)", bind: sqlx.QUESTION,
		ent: dialect.MySQL, bun: func() schema.Dialect { return mysqldialect.New() },
	}
}

// closed returns db, and closes db at the end of the test.
func closed(t *testing.T, db *sql.DB) *sql.DB {
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func (d sqlDatabase) insertBySqlx(ctx context.Context, tx *sql.Tx, name string) (inserted good, err error) {
	db := sqlx.Tx{Tx: tx, Mapper: reflectx.NewMapperFunc("db", sqlx.NameMapper)}
	if _, err := db.ExecContext(ctx, sqlx.Rebind(d.bind, "INSERT INTO goods (name) VALUES (?)"), name); err != nil {
		return good{}, err
	}
	err = db.GetContext(ctx, &inserted, sqlx.Rebind(d.bind, "SELECT id, name FROM goods WHERE name = ?"), name)
	return inserted, err
}

func (d sqlDatabase) insertByBun(ctx context.Context, tx *sql.Tx, name string) (inserted good, err error) {
	db := bun.NewDB(d.db, d.bun())
	if _, err := db.NewInsert().Conn(tx).Model(&good{Name: name}).Exec(ctx); err != nil {
		return good{}, err
	}
	err = db.NewSelect().Conn(tx).Model(&inserted).Where("name = ?", name).Scan(ctx)
	return inserted, err
}

// insertByEnt uses the driver of the ent client.
func (d sqlDatabase) insertByEnt(ctx context.Context, tx entsql.ExecQuerier, name string) (inserted good, err error) {
	db, builder := entsql.NewDriver(d.ent, entsql.Conn{ExecQuerier: tx}), entsql.Dialect(d.ent)
	query, args := builder.Insert("goods").Columns("name").Values(name).Query()
	if err := db.Exec(ctx, query, args, nil); err != nil {
		return good{}, err
	}
	goods := entsql.Table("goods")
	query, args = builder.Select("id", "name").From(goods).Where(entsql.EQ("name", name)).Query()
	var rows entsql.Rows
	if err := db.Query(ctx, query, args, &rows); err != nil {
		return good{}, err
	}
	defer rows.Close()
	rows.Next()
	err = rows.Scan(&inserted.ID, &inserted.Name)
	return inserted, err
}
