package benchmark

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/pgxstore"
)

// rawSchema is a table with as many bytes in a row as a record has.
const rawSchema = `CREATE TABLE raw_records (
	key bytea PRIMARY KEY, token bytea NOT NULL, fingerprint bytea NOT NULL, response bytea,
	expires timestamptz NOT NULL) WITH (fillfactor=70)`

const (
	rawInsert = `INSERT INTO raw_records (key, token, fingerprint, expires) VALUES ($1, $2, $3, now() + interval '1 day')`
	rawUpdate = `UPDATE raw_records SET response = $2 WHERE key = $1`
	rawSelect = `SELECT response FROM raw_records WHERE key = $1`
)

// The subjects on PostgreSQL.
var (
	// RawPostgres is what a service would send that trusts its luck.
	RawPostgres = Subject{Name: "raw INSERT + UPDATE, SELECT", Role: Raw, Store: InPostgres,
		Lacks: "no HTTP, takeover, token or error handling",
		Open:  func(b *Backends, app *App) (*Target, error) { return rawPostgres(b.Postgres, app.Work), nil }}

	Postgres = Subject{Name: "idempotency, PostgreSQL", Role: Library, Store: InPostgres,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(pgxstore.New(b.Postgres, pgxstore.Options{}), app)
		}}

	PostgresTx = Subject{Name: "idempotency, PostgreSQL, transactional", Role: Library, Store: InPostgres,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(pgxstore.NewTx(b.Postgres, pgxstore.Options{}), app)
		}}
)

func rawPostgres(pool *pgxpool.Pool, work Work) *Target {
	ctx, record := context.Background(), append([]byte(rawHead), work.answer()...)
	token, fingerprint := make([]byte, 16), make([]byte, 32)
	return rawTarget(func(c Call) func(string) error {
		if c.Path == Replay {
			return func(key string) error {
				var response []byte
				return pool.QueryRow(ctx, rawSelect, []byte(key)).Scan(&response)
			}
		}
		return func(key string) error {
			if _, err := pool.Exec(ctx, rawInsert, []byte(key), token, fingerprint); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, rawUpdate, []byte(key), record)
			return err
		}
	})
}
