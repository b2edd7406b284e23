package kept

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func openSQLite(int) (*Target, error) {
	t := &Target{}
	dir, err := os.MkdirTemp("", "idempotency-kept-")
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "records")
	store, err := sqlitestore.Open(context.Background(), file, sqlitestore.Options{})
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, func() { _ = store.Close() })
	t.Store = store
	t.Size = func() (bytes int64, err error) {
		files, err := os.ReadDir(dir)
		for _, file := range files {
			info, err := file.Info()
			if err != nil {
				return 0, err
			}
			bytes += info.Size()
		}
		return bytes, err
	}
	t.Copy = func(ctx context.Context, key idempotency.Key, n int, end time.Time) error {
		db, err := sql.Open("sqlite", file)
		if err != nil {
			return err
		}
		defer db.Close()
		digest := key.Digest()
		_, err = db.ExecContext(ctx, copyInSQLite, digest[:], n, end.UnixMicro())
		return err
	}
	return t.opened(nil)
}

// A table that is ordered by digest is filled in that order, which takes a fraction of the time.
const copyInSQLite = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
	INSERT INTO idempotency_records
	SELECT CAST(unhex(printf('%014x', i * (0xffffffffffffff / ?2))) || randomblob(25) AS BLOB), user_id, endpoint, key, attempt,
		fingerprint, token, created, lease, ?3, response, steps, resolved
	FROM n, (SELECT * FROM idempotency_records WHERE digest = ?1)`

func openPostgres(connections int) (*Target, error) {
	t := &Target{}
	server, err := servertest.StartPostgres("max_connections=600", "shared_buffers=1GB", "max_wal_size=8GB")
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, server.Close)
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return t.opened(err)
	}
	config.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, pool.Close)
	store := pgxstore.New(pool, pgxstore.Options{})
	t.Store, t.Maintain = store, store.Maintain
	t.Size = func() (bytes int64, err error) {
		err = pool.QueryRow(context.Background(),
			"SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables").Scan(&bytes)
		return bytes, err
	}
	t.Copy = func(ctx context.Context, key idempotency.Key, n int, end time.Time) error {
		digest := key.Digest()
		_, err := pool.Exec(ctx, copyInPostgres, digest[:], n, end)
		return err
	}
	return t.opened(pgxstore.Migrate(context.Background(), pool, pgxstore.Options{}))
}

const copyInPostgres = `INSERT INTO idempotency_records
	SELECT sha256(uuid_send(gen_random_uuid())), user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until,
		$3::timestamptz, date_bin('1 minute', $3::timestamptz, 'epoch'), completed_at, status, header, trailer, body, note,
		replays, step_names, step_results, resolved
	FROM generate_series(1, $2::integer), (SELECT * FROM idempotency_records WHERE digest = $1::bytea) original`

func openMariaDB(connections int) (*Target, error) {
	t := &Target{}
	server, err := servertest.StartMariaDB("max_connections=600", "innodb_buffer_pool_size=1G",
		"innodb_flush_log_at_trx_commit=0", "innodb_doublewrite=0", "innodb_log_file_size=1G") // to be faster
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, server.Close)
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, func() { _ = db.Close() })
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	store := mysqlstore.New(db, mysqlstore.Options{})
	t.Store, t.Maintain = store, store.Maintain
	t.Size = func() (bytes int64, err error) {
		err = db.QueryRow("SELECT sum(file_size) FROM information_schema.innodb_sys_tablespaces WHERE name LIKE concat(database(), '/%')").
			Scan(&bytes)
		return bytes, err
	}
	t.Copy = func(ctx context.Context, key idempotency.Key, n int, end time.Time) error {
		digest := key.Digest()
		_, err := db.ExecContext(ctx, copyInMariaDB, n, end.UnixMicro(), digest[:], n)
		return err
	}
	return t.opened(mysqlstore.Migrate(context.Background(), db, mysqlstore.Options{}))
}

// The sequence engine of MariaDB counts to the largest number of records.
const copyInMariaDB = "INSERT INTO idempotency_records " +
	"SELECT concat(unhex(lpad(hex(seq * (0xffffffffffffff DIV ?)), 14, '0')), random_bytes(25)), user_id, endpoint, `key`, attempt, " +
	"fingerprint, token, created, lease, ?, response, answer_size, steps, resolved " +
	"FROM seq_1_to_10000000, (SELECT * FROM idempotency_records WHERE digest = ?) original WHERE seq <= ?"
