package pgxstore

import (
	"context"
	"time"
)

// checkTime is how long a check waits for what the server may have said. Only what has come already counts.
const checkTime = time.Millisecond

// Alive implements [sqlstore.Attempt]. It sends nothing: a server that has ended the session has said so, or has closed the
// connection.
func (a *attempt) Alive(context.Context) bool {
	if a.unwatched.Load() {
		return true
	}
	conn := a.conn.PgConn()
	if conn.IsClosed() {
		return false
	}
	wire := conn.Conn()
	_ = wire.SetReadDeadline(time.Now().Add(checkTime)) // fails if it is closed, as the next line will notice
	defer func() { _ = wire.SetReadDeadline(time.Time{}) }()
	for {
		// A context would do it, too, but that may make pgx ask the server to cancel the next statement.
		if _, err := conn.ReceiveMessage(context.Background()); err != nil {
			return !conn.IsClosed()
		}
	}
}
