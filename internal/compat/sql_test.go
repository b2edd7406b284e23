package compat_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// good is a row.
type good struct {
	bun.BaseModel `bun:"table:goods"`

	ID   int64  `bun:",pk,autoincrement" db:"id"`
	Name string `bun:"name" db:"name"`
}

// What is built on database/sql takes the transaction of the handler. Each library inserts a row and reads it.
func TestLibrariesOnSQL(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servertest.Postgres(t).URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	_, err = pool.Exec(t.Context(), "CREATE TABLE goods (id bigserial PRIMARY KEY, name text UNIQUE)")
	require.NoError(t, err)
	conns := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { assert.NoError(t, conns.Close()) })
	for name, insert := range map[string]func(context.Context, *sql.Tx, string) (good, error){
		"sqlx": insertBySqlx, "ent": insertByEnt,
		"bun": func(ctx context.Context, tx *sql.Tx, name string) (good, error) {
			return insertByBun(ctx, bun.NewDB(conns, pgdialect.New()), tx, name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMiddleware(t, pgxstore.NewTx(pool, pgxstore.Options{}), idempotency.Options{})
			h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tx, _ := pgxstore.SQLTx(r.Context())
				inserted, err := insert(r.Context(), tx, name)
				assert.NoError(t, err)
				assert.Equal(t, name, inserted.Name)
				assert.NotZero(t, inserted.ID)
				w.WriteHeader(http.StatusCreated)
			}))
			for _, replayed := range []string{"", "true"} {
				r := httptest.NewRequest(http.MethodPost, "/goods", nil)
				r.Header.Set("Idempotency-Key", name)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				require.Equal(t, http.StatusCreated, w.Code)
				require.Equal(t, replayed, w.Header().Get(marker))
			}
			var count int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM goods WHERE name = $1", name).Scan(&count))
			require.Equal(t, 1, count)
		})
	}
}

func insertBySqlx(ctx context.Context, tx *sql.Tx, name string) (inserted good, err error) {
	db := sqlx.Tx{Tx: tx, Mapper: reflectx.NewMapperFunc("db", sqlx.NameMapper)}
	if _, err := db.ExecContext(ctx, "INSERT INTO goods (name) VALUES ($1)", name); err != nil {
		return good{}, err
	}
	err = db.GetContext(ctx, &inserted, "SELECT id, name FROM goods WHERE name = $1", name)
	return inserted, err
}

func insertByBun(ctx context.Context, db *bun.DB, tx *sql.Tx, name string) (inserted good, err error) {
	if _, err := db.NewInsert().Conn(tx).Model(&good{Name: name}).Exec(ctx); err != nil {
		return good{}, err
	}
	err = db.NewSelect().Conn(tx).Model(&inserted).Where("name = ?", name).Scan(ctx)
	return inserted, err
}

// insertByEnt uses the driver that ent.NewClient is given.
func insertByEnt(ctx context.Context, tx *sql.Tx, name string) (inserted good, err error) {
	db := entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})
	query, args := entsql.Dialect(dialect.Postgres).Insert("goods").Columns("name").Values(name).Returning("id", "name").Query()
	var rows entsql.Rows
	if err := db.Query(ctx, query, args, &rows); err != nil {
		return good{}, err
	}
	defer rows.Close()
	rows.Next()
	err = rows.Scan(&inserted.ID, &inserted.Name)
	return inserted, err
}
