package mysqlstore

import (
	"context"
	"database/sql"
	"embed"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
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
	digests := strings.Repeat("UNHEX(?), ", deleteBatch-1) + "UNHEX(?)"
	return strings.NewReplacer("{records}", o.name(), "{now}", sqlstore.Statement(files, "now"), "{digests}", digests,
		"{lock_name}", sqlstore.Statement(files, "lock_name"), "{skip_locked}", skip).Replace(sqlstore.Statement(files, file))
}

// digits returns bytes as every parameter has them that is not a number: in hexadecimal digits, which UNHEX makes bytes
// again. The server takes a parameter for text in the character set of the session, and may convert it. Nil is null.
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
