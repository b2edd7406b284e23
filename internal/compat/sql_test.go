package compat_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
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
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// good is a row.
type good struct {
	bun.BaseModel `bun:"table:goods"`

	ID   int64  `bun:",pk,autoincrement" db:"id"`
	Name string `bun:"name" db:"name"`
}

// sqlDatabase is a database with a transactional store.
type sqlDatabase struct {
	db    *sql.DB
	store idempotency.Store
	tx    func(context.Context) (*sql.Tx, bool)

	table string // makes the table of goods
	bind  int    // how parameters are written, for sqlx
	ent   string
	bun   func() schema.Dialect
}

var sqlDatabases = map[string]func(*testing.T) sqlDatabase{
	"PostgreSQL": onPostgres, "SQLite": onSQLite, "MariaDB": onMariaDB,
}

// What is built on database/sql takes the transaction of the handler. Each library inserts a row and reads it. The row
// is there if the handler answers 201, and is not if it refuses the request.
func TestLibrariesOnSQL(t *testing.T) {
	t.Parallel()
	for name, start := range sqlDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			_, err := d.db.ExecContext(t.Context(), d.table)
			require.NoError(t, err)
			t.Run("sqlx", func(t *testing.T) { d.run(t, d.insertBySqlx) })
			t.Run("ent", func(t *testing.T) { d.run(t, d.insertByEnt) })
			t.Run("bun", func(t *testing.T) { d.run(t, d.insertByBun) })
		})
	}
}

func (d sqlDatabase) run(t *testing.T, insert func(context.Context, *sql.Tx, string) (good, error)) {
	for status, rows := range map[int]int{http.StatusCreated: 1, http.StatusUnprocessableEntity: 0} {
		name := t.Name() + "/" + strconv.Itoa(status)
		m := newMiddleware(t, d.store, idempotency.Options{})
		h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := d.tx(r.Context())
			inserted, err := insert(r.Context(), tx, name)
			assert.NoError(t, err)
			assert.Equal(t, name, inserted.Name)
			assert.NotZero(t, inserted.ID)
			w.WriteHeader(status)
		}))
		for _, replayed := range []string{"", "true"} {
			r := httptest.NewRequest(http.MethodPost, "/goods", nil)
			r.Header.Set("Idempotency-Key", name)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, status, w.Code)
			require.Equal(t, replayed, w.Header().Get(marker))
		}
		var count int
		query := sqlx.Rebind(d.bind, "SELECT count(*) FROM goods WHERE name = ?")
		require.NoError(t, d.db.QueryRowContext(t.Context(), query, name).Scan(&count))
		require.Equal(t, rows, count)
	}
}

func onPostgres(t *testing.T) sqlDatabase {
	pool, err := pgxpool.New(t.Context(), servertest.Postgres(t).URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	return sqlDatabase{
		db: closed(t, stdlib.OpenDBFromPool(pool)), store: pgxstore.NewTx(pool, pgxstore.Options{}), tx: pgxstore.SQLTx,
		table: "CREATE TABLE goods (id bigserial PRIMARY KEY, name text UNIQUE)", bind: sqlx.DOLLAR,
		ent: dialect.Postgres, bun: func() schema.Dialect { return pgdialect.New() },
	}
}

func onSQLite(t *testing.T) sqlDatabase {
	path := filepath.Join(t.TempDir(), "shop.db")
	store, err := sqlitestore.OpenTx(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	return sqlDatabase{
		db: closed(t, db), store: store, tx: sqlitestore.Tx,
		table: "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT UNIQUE)", bind: sqlx.QUESTION,
		ent: dialect.SQLite, bun: func() schema.Dialect { return sqlitedialect.New() },
	}
}

func onMariaDB(t *testing.T) sqlDatabase {
	db, err := sql.Open("mysql", servertest.MariaDB(t).DSN())
	require.NoError(t, err)
	require.NoError(t, mysqlstore.Migrate(t.Context(), closed(t, db), mysqlstore.Options{}))
	return sqlDatabase{
		db: db, store: mysqlstore.NewTx(db, mysqlstore.Options{}), tx: mysqlstore.Tx,
		table: "CREATE TABLE goods (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) UNIQUE)", bind: sqlx.QUESTION,
		ent: dialect.MySQL, bun: func() schema.Dialect { return mysqldialect.New() },
	}
}

// closed returns db, which is closed at the end of the test.
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

// insertByEnt uses the driver that ent.NewClient is given.
func (d sqlDatabase) insertByEnt(ctx context.Context, tx *sql.Tx, name string) (inserted good, err error) {
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
