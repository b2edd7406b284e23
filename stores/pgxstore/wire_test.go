package pgxstore_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// interceptor relays connections to a server. It changes parameters and statements on their way, and refuses some
// statements. An interceptor is safe for concurrent use.
type interceptor struct {
	parameterStatus  map[string]string                           // parameters to report instead of the server's
	editStatement    func(statement string) string               // nil: no statement is changed
	refuseStatements func(statements []string, idle bool) string // returns the code of an error; empty: the server answers
}

// interceptedURL returns the URL of the shared server through w.
func (w *interceptor) interceptedURL(t testing.TB) string {
	t.Helper()
	serverURL(t)
	db, _ := startSharedServer()
	return db.URLAt(servertest.Relay(t, db.Addr(), w.relayConns))
}

func (w *interceptor) relayConns(client, server net.Conn) {
	c := &interceptedConn{interceptor: w, client: client, server: server}
	var replies sync.WaitGroup
	replies.Go(func() {
		c.relayReplies()
		_ = client.Close()
	})
	c.relayRequests()
	_ = server.Close()
	replies.Wait()
}

// interceptedConn is a connection through an interceptor.
type interceptedConn struct {
	*interceptor
	client, server net.Conn

	mu            sync.Mutex
	sessionStatus byte // last status that the server has sent; zero before the first
}

// relayReplies relays the messages of the server.
func (c *interceptedConn) relayReplies() {
	for {
		m, err := readMessage(c.server)
		if err != nil {
			return
		}
		switch m.kind() {
		case 'S':
			var p pgproto3.ParameterStatus
			if p.Decode(m.body()) == nil && c.parameterStatus[p.Name] != "" {
				continue // encodeParameters sends it before the first ReadyForQuery
			}
		case 'Z':
			m = append(c.encodeParameters(), m...)
			c.mu.Lock()
			c.sessionStatus = m[len(m)-1]
			c.mu.Unlock()
		}
		if _, err := c.client.Write(m); err != nil {
			return
		}
	}
}

// encodeParameters returns the messages that the interceptor inserts before the first ReadyForQuery.
func (c *interceptedConn) encodeParameters() (said []byte) {
	if c.isIdle() || len(c.parameterStatus) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.parameterStatus)) {
		said, _ = (&pgproto3.ParameterStatus{Name: name, Value: c.parameterStatus[name]}).Encode(said)
	}
	return said
}

func (c *interceptedConn) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessionStatus == 'I'
}

// relayRequests relays the messages of the client unless the interceptor answers them. It collects all messages that
// end in one ReadyForQuery.
func (c *interceptedConn) relayRequests() {
	var head [4]byte // the first message has no type byte
	if _, err := io.ReadFull(c.client, head[:]); err != nil {
		return
	}
	first := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(c.client, first); err != nil {
		return
	}
	_, _ = c.server.Write(append(head[:], first...))
	var unit []byte
	var statements []string
	for {
		m, err := readMessage(c.client)
		if err != nil {
			return
		}
		m, statement := c.readStatement(m)
		if statement != "" {
			statements = append(statements, statement)
		}
		unit = append(unit, m...)
		if !bytes.ContainsRune([]byte("QSpXH"), rune(m.kind())) {
			continue
		}
		if !c.answerRequest(m.kind(), statements) {
			_, _ = c.server.Write(unit)
		}
		unit, statements = nil, nil
	}
}

// readStatement returns the edited message, and the statement in it.
func (c *interceptedConn) readStatement(m message) (message, string) {
	name, rest := []byte(nil), m.body()
	switch m.kind() {
	case 'P':
		name, rest, _ = bytes.Cut(rest, []byte{0})
		name = append(name, 0)
	case 'Q':
	default:
		return m, ""
	}
	statement, rest, _ := bytes.Cut(rest, []byte{0})
	text := string(statement)
	if c.editStatement != nil {
		text = c.editStatement(text)
	}
	body := slices.Concat(name, []byte(text), []byte{0}, rest)
	m = append(binary.BigEndian.AppendUint32([]byte{m.kind()}, uint32(len(body)+4)), body...)
	return m, text
}

// answerRequest answers instead of the server if refuseStatements returns a code, and reports whether it has
// answered.
func (c *interceptedConn) answerRequest(kind byte, statements []string) bool {
	if c.refuseStatements == nil || kind != 'Q' && kind != 'S' {
		return false
	}
	code := c.refuseStatements(statements, c.isIdle())
	if code == "" {
		return false
	}
	failed := &pgproto3.ErrorResponse{
		Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: "answered in place of the server",
	}
	reply, _ := failed.Encode(nil)
	reply, _ = (&pgproto3.ReadyForQuery{TxStatus: 'I'}).Encode(reply)
	_, _ = c.client.Write(reply)
	return true
}

// message is a message of the protocol: its kind, its length and its body.
type message []byte

func (m message) kind() byte   { return m[0] }
func (m message) body() []byte { return m[5:] }

func readMessage(r io.Reader) (message, error) {
	m := make(message, 5)
	if _, err := io.ReadFull(r, m); err != nil {
		return nil, err
	}
	m = append(m, make([]byte, binary.BigEndian.Uint32(m[1:])-4)...)
	_, err := io.ReadFull(r, m[5:])
	return m, err
}
