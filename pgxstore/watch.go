package pgxstore

import (
	"context"
	"time"
)

// checkTime is how long a check waits for what the server may have said. Only what has come already counts.
const checkTime = time.Millisecond

// isAlive reports whether the session may go on. It sends nothing: a server that has ended the session has said so, or
// has closed the connection. While the handler uses the connection, its statements find that out.
func (s *session) isAlive() bool {
	s.checking.Lock()
	defer s.checking.Unlock()
	if s.raw.Load() || s.lent.Load() || !s.state.CompareAndSwap(idle, checked) {
		return true
	}
	defer s.state.Store(idle)
	conn := s.conn.PgConn()
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

// awaitCheck returns when no check is under way.
func (s *session) awaitCheck() {
	s.checking.Lock()
	defer s.checking.Unlock()
}
