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

// statementContext is the context of every statement. A statement takes microseconds, and an interruptible statement
// would take longer. Long waits use the context of the step instead: the wait for other processes, for a free
// connection, and for the disk at a commit.
var statementContext = context.Background()

// setupTimeout is how long a new connection waits for other processes during its setup. Later the store itself waits,
// because the wait of SQLite favours late arrivals: SQLite sleeps longer the longer a connection has waited.
const setupTimeout = 10 * time.Second

// dataSourceName returns the name that makes SQLite open path with parameters and pragmas on each connection.
func dataSourceName(path string, parameters url.Values, pragmas ...string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a volume of Windows
	}
	query := url.Values{}
	maps.Copy(query, parameters)
	query["_pragma"] = append(slices.Concat(query["_pragma"], pragmas),
		"busy_timeout("+strconv.FormatInt(setupTimeout.Milliseconds(), 10)+")",
		"fullfsync(1)", "checkpoint_fullfsync(1)") // on macOS, only fullfsync waits for the disk
	name := url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}
	return name.String()
}

// connection is a connection with prepared statements.
type connection struct {
	*sql.Conn
	preparedStatements []*sql.Stmt
}

// openConnection returns a connection of db, and stores each prepared statement in the variable of its text.
func openConnection(db *sql.DB, statements map[string]**sql.Stmt) (conn *connection, err error) {
	c, err := db.Conn(statementContext)
	if err != nil {
		return nil, err
	}
	conn = &connection{Conn: c}
	for text, prepared := range statements {
		if *prepared, err = c.PrepareContext(statementContext, text); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn.preparedStatements = append(conn.preparedStatements, *prepared)
	}
	if _, err := c.ExecContext(statementContext, "PRAGMA busy_timeout = 0"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Close closes the prepared statements and the connection. With an open statement, SQLite would keep the connection
// open and locked.
func (c *connection) Close() (err error) {
	for _, stmt := range c.preparedStatements {
		err = errors.Join(err, stmt.Close())
	}
	return errors.Join(err, c.Conn.Close())
}

// pauseBriefly waits before a new try for a lock. The pause is random, so that all waiting processes have the same
// chance.
func pauseBriefly() { time.Sleep(50*time.Microsecond + rand.N(500*time.Microsecond)) }
