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

// waiting, behind the name of a file, stands for the statement that waits for what others have locked.
const waiting = " waiting"

// statement returns a file of the directory sql for the table.
func (o Options) statement(file string) string {
	skip := "SKIP LOCKED"
	file, waits := strings.CutSuffix(file, waiting)
	if waits {
		skip = ""
	}
	digests := strings.Repeat(bytesOfDigits+", ", deleteBatch-1) + bytesOfDigits
	text := strings.NewReplacer("{records}", o.name(), "{now}", sqlstore.Statement(files, "now"),
		"{bytes}", bytesOfDigits, "{bytes_or_null}", bytesOrNull, "{digests}", digests, "{batch}", strconv.Itoa(deleteBatch),
		"{skip_locked}", skip,
	).Replace(sqlstore.Statement(files, file))
	if readsMany[file] {
		text = forAnySession(text)
	}
	return text
}

// A value of several bytes is sent in hexadecimal digits (see digits), because the server takes a parameter for text in
// the character set of the session. CONVERT makes ASCII of the digits, because that character set may have several bytes
// for each digit. COALESCE makes an empty value of null, because the mode EMPTY_STRING_IS_NULL of MariaDB makes null of
// an empty parameter.
const (
	bytesOrNull   = "UNHEX(CONVERT(? USING ascii))"
	bytesOfDigits = "COALESCE(" + bytesOrNull + ", x'')"
)

// readsMany are the statements that may look at many records.
var readsMany = map[string]bool{"find_expired": true, "lock_expired": true, "delete_expired": true}

// forAnySession returns a statement that may look at many rows although settings of the session refuse that:
// max_join_size, unless sql_big_selects is on, and sql_safe_updates. MariaDB changes a setting for one statement by SET
// STATEMENT, MySQL by a hint, and each of them takes the form of the other one for a comment.
func forAnySession(statement string) string {
	verb, rest, _ := strings.Cut(statement, " ")
	return "/*M!100102 SET STATEMENT sql_big_selects = 1, sql_safe_updates = 0 FOR */ " + verb +
		" /*+ SET_VAR(sql_big_selects = 1) SET_VAR(sql_safe_updates = 0) */ " + rest
}

// digits returns bytes as every parameter has them that is not a number: in hexadecimal digits. Nil is null.
func digits(b []byte) []byte {
	if b == nil {
		return nil
	}
	return hex.AppendEncode(make([]byte, 0, hex.EncodedLen(len(b))), b)
}

// prepared are statements that were prepared. A statement that is not takes two round trips, unless the driver
// interpolates parameters. Package database/sql prepares them on each connection when they are first used there.
type prepared struct {
	db    *sql.DB
	opts  Options
	stmts sync.Map // *sql.Stmt by file
}

// get returns a statement. Two goroutines may prepare it at once, so that none waits for another one's connection.
func (p *prepared) get(ctx context.Context, file string) (*sql.Stmt, error) {
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

// values complete a statement, in pairs: the name of a place, and the literal that stands there. The statements of a step are
// completed so, because a statement with parameters takes one more round trip in a transaction, unless the driver
// interpolates them. Each literal means the same to every session, whatever its settings are.
type values []string

func (v values) in(statement string) string { return strings.NewReplacer(v...).Replace(statement) }

func binary(b []byte) string { return "x'" + hex.EncodeToString(b) + "'" }

func integer(n int64) string { return strconv.FormatInt(n, 10) }
