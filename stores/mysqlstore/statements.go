package mysqlstore

import (
	"context"
	"database/sql"
	"embed"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

//go:embed sql
var files embed.FS

// waiting is a suffix of file names: the statement waits for locks of other transactions instead of skipping locked records.
const waiting = " waiting"

// statement returns the statement of a file in directory sql, for the table.
func (o Options) statement(file string) string {
	skip := "SKIP LOCKED"
	file, waits := strings.CutSuffix(file, waiting)
	if waits {
		skip = ""
	}
	operations := strings.Repeat(bytesOfDigits+", ", deleteBatch-1) + bytesOfDigits
	text := strings.NewReplacer("{records}", o.name(), "{now}", sqlstore.Statement(files, "now"),
		"{bytes}", bytesOfDigits, "{bytes_or_null}", bytesOrNull, "{operations}", operations, "{batch}", strconv.Itoa(deleteBatch),
		"{skip_locked}", skip, expiryKey, expiryKey+o.userKey(),
	).Replace(sqlstore.Statement(files, file))
	if readsMany[file] {
		text = forAnySession(text)
	}
	return text
}

// expiryKey is the last index in CREATE TABLE. The file of the migration has no placeholder for the index of MaxUserRecords, because
// other tools use the file.
const expiryKey = "KEY expires (expires)"

// userKey returns the index for MaxUserRecords as a further part of CREATE TABLE, or nothing without the option.
func (o Options) userKey() string {
	if o.MaxUserRecords == 0 {
		return ""
	}
	return ",\n    " + sqlstore.Statement(files, "user_key")
}

// Bytes are sent as hexadecimal digits (see hexDigits), because the server reads a parameter as text in the character set of the
// session. CONVERT makes the digits ASCII, because the session may use several bytes for each digit. COALESCE restores an empty
// value, because the mode EMPTY_STRING_IS_NULL of MariaDB turns an empty parameter into null.
const (
	bytesOrNull   = "UNHEX(CONVERT(? USING ascii))"
	bytesOfDigits = "COALESCE(" + bytesOrNull + ", x'')"
)

// readsMany has the statements that may read many records.
var readsMany = map[string]bool{"find_expired": true, "lock_expired": true, "delete_expired": true}

// forAnySession returns the statement with settings that allow many rows, in spite of max_join_size and sql_safe_updates of the
// session. MariaDB changes settings for one statement by SET STATEMENT, and MySQL by a hint. Each server reads the form of the
// other server as a comment.
func forAnySession(statement string) string {
	verb, rest, _ := strings.Cut(statement, " ")
	return "/*M!100102 SET STATEMENT sql_big_selects = 1, sql_safe_updates = 0 FOR */ " + verb +
		" /*+ SET_VAR(sql_big_selects = 1) SET_VAR(sql_safe_updates = 0) */ " + rest
}

// hexDigits returns b in hexadecimal digits, the form of every parameter except numbers. Nil is null.
func hexDigits(b []byte) []byte {
	if b == nil {
		return nil
	}
	return hex.AppendEncode(make([]byte, 0, hex.EncodedLen(len(b))), b)
}

// preparedStatements caches prepared statements, because an unprepared statement with parameters takes two round trips, unless the
// driver interpolates parameters. Package database/sql prepares each statement once on each connection.
type preparedStatements struct {
	db    *sql.DB
	opts  Options
	stmts sync.Map // *sql.Stmt by file
}

// prepare returns the prepared statement of a file. Two goroutines may prepare the same statement concurrently, so that no goroutine
// waits for the connection of another goroutine.
func (p *preparedStatements) prepare(ctx context.Context, file string) (*sql.Stmt, error) {
	if stmt, ok := p.stmts.Load(file); ok {
		return stmt.(*sql.Stmt), nil
	}
	stmt, err := p.db.PrepareContext(ctx, p.opts.statement(file))
	if err != nil {
		return nil, err
	}
	first, loaded := p.stmts.LoadOrStore(file, stmt)
	if loaded {
		_ = stmt.Close()
	}
	return first.(*sql.Stmt), nil
}

// values are pairs of a placeholder and the literal for the placeholder. The statements of a step have literals, because a statement
// with parameters takes one more round trip in a transaction, unless the driver interpolates parameters. Each literal has the same
// meaning in every session, whatever the settings are.
type values []string

func (v values) fillIn(statement string) string { return strings.NewReplacer(v...).Replace(statement) }

func hexLiteral(b []byte) string { return "x'" + hex.EncodeToString(b) + "'" }

func intLiteral(n int64) string { return strconv.FormatInt(n, 10) }
