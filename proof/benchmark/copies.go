package benchmark

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// A store is filled with copies of one record, because claims would take too long to fill a store with ten million records.
// Each copy has a random ID, so an index treats copies as it treats records.

// These are the numbers of copies that one statement and one script make.
const (
	statementBatch = 100_000
	scriptBatch    = 1_000
)

// copySQL has the parts of a statement that differ among databases.
type copySQL struct {
	columns string // a query for the names of the columns, without operation
	newID   string // an expression for a random ID
	series  string // a table with as many rows as the third argument of Sprintf says
}

var (
	copyPostgres = copySQL{
		columns: `SELECT string_agg(attname, ', ') FROM pg_attribute
			WHERE attrelid = 'idempotency_records'::regclass AND attnum > 0 AND attname <> 'operation'`,
		newID: "gen_random_uuid()", series: "generate_series(1, %[3]d) series",
	}
	copyMariaDB = copySQL{
		columns: "SELECT GROUP_CONCAT('`', COLUMN_NAME, '`') FROM information_schema.COLUMNS " +
			"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'idempotency_records' AND COLUMN_NAME <> 'operation'",
		newID: "RANDOM_BYTES(16)", series: "seq_1_to_%[3]d",
	}
	copySQLite = copySQL{
		columns: "SELECT group_concat(name, ', ') FROM pragma_table_info('idempotency_records') WHERE name <> 'operation'",
		newID:   "randomblob(16)",
		series: "(WITH RECURSIVE series(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < %[3]d) " +
			"SELECT i FROM series)",
	}
)

// copyRows returns the function Copy of a store in db.
func copyRows(db *sql.DB, c copySQL) func(n int) error {
	return func(n int) error {
		var columns string
		if err := db.QueryRow(c.columns).Scan(&columns); err != nil {
			return err
		}
		for made := 0; made < n; made += statementBatch {
			_, err := db.Exec(fmt.Sprintf("INSERT INTO idempotency_records (operation, %s) SELECT %s, %[1]s "+
				"FROM (SELECT * FROM idempotency_records LIMIT 1) record, "+c.series, columns, c.newID, min(statementBatch, n-made)))
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// copyScript sets ARGV[1] copies of the record KEYS[1] to names that follow from ARGV[3] and the prefix ARGV[2].
const copyScript = `
local record, ttl = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
for i = 1, ARGV[1] do
  local hash = redis.sha1hex(ARGV[3] .. i)
  local id = table.concat({hash:sub(1, 8), hash:sub(9, 12), hash:sub(13, 16), hash:sub(17, 20), hash:sub(21, 32)}, '-')
  redis.call('SET', ARGV[2] .. '{' .. id .. '}', record, 'PX', ttl)
end
return 'OK'`

// copyRedisRecords turns off the append-only file, which would be several times larger than the records.
func (b *Backends) copyRedisRecords(n int) error {
	ctx := context.Background()
	if err := b.Redis.ConfigSet(ctx, "appendonly", "no").Err(); err != nil {
		return err
	}
	name, err := b.Redis.RandomKey(ctx).Result()
	if err != nil {
		return err
	}
	prefix, _, _ := strings.Cut(name, "{")
	for made := 0; made < n; made += scriptBatch {
		err := b.Redis.Eval(ctx, copyScript, []string{name}, min(scriptBatch, n-made), prefix, uuid.NewString()).Err()
		if err != nil {
			return err
		}
	}
	return nil
}
