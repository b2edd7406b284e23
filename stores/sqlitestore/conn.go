package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// untouched is the context of every statement. A statement takes microseconds, and to make it interruptible would take
// longer. What can take long is waited for under the context of a step: other processes, a connection that is free, and
// the disk that a commit waits for.
var untouched = context.Background()

// settleIn is how long a connection waits for other processes while it is set up. Later on the store does that by
// itself, because SQLite lets those wait longest that have waited longest.
const settleIn = 10 * time.Second

// source returns the name by which SQLite opens a file, with parameters and further settings for each connection.
func source(path string, parameters url.Values, pragmas ...string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a volume of Windows
	}
	query := url.Values{}
	maps.Copy(query, parameters)
	query["_pragma"] = append(slices.Concat(query["_pragma"], pragmas),
		"busy_timeout("+strconv.FormatInt(settleIn.Milliseconds(), 10)+")",
		"fullfsync(1)", "checkpoint_fullfsync(1)") // what macOS needs for the disk to be waited for
	name := url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}
	return name.String()
}

// connection has prepared statements.
type connection struct {
	*sql.Conn
	prepared []*sql.Stmt
}

func connect(db *sql.DB, statements map[string]**sql.Stmt) (conn *connection, err error) {
	c, err := db.Conn(untouched)
	if err != nil {
		return nil, err
	}
	conn = &connection{Conn: c}
	for text, prepared := range statements {
		if *prepared, err = c.PrepareContext(untouched, text); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn.prepared = append(conn.prepared, *prepared)
	}
	if _, err := c.ExecContext(untouched, "PRAGMA busy_timeout = 0"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Close also closes the statements: SQLite keeps a connection open, with its locks, that has some left.
func (c *connection) Close() (err error) {
	for _, stmt := range c.prepared {
		err = errors.Join(err, stmt.Close())
	}
	return errors.Join(err, c.Conn.Close())
}

// pause waits a moment before a connection that is in the way is tried again: at random, so that all processes that
// wait have the same chance.
func pause() { time.Sleep(50*time.Microsecond + rand.N(500*time.Microsecond)) }
