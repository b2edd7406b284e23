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

// wire is a server as somebody in between would have it: it says something else of itself, and answers some statements in its
// place. It is safe for concurrent use.
type wire struct {
	says    map[string]string                           // parameters that it sends, in place of its own
	edit    func(statement string) string               // nil: as it was sent
	answers func(statements []string, idle bool) string // the code of an error, in place of the server; empty: none
}

// through returns the URL of the shared server by way of w.
func (w *wire) through(t testing.TB) string {
	t.Helper()
	serverURL(t)
	db, _ := server()
	return db.URLAt(servertest.Relay(t, db.Addr(), w.carry))
}

func (w *wire) carry(client, server net.Conn) {
	c := &wireConn{wire: w, client: client, server: server}
	var replies sync.WaitGroup
	replies.Go(func() {
		c.replies()
		_ = client.Close()
	})
	c.requests()
	_ = server.Close()
	replies.Wait()
}

// wireConn is a connection.
type wireConn struct {
	*wire
	client, server net.Conn

	mu     sync.Mutex
	status byte // of the session, as the server said last; zero before
}

// replies passes on what the server says.
func (c *wireConn) replies() {
	for {
		m, err := readMessage(c.server)
		if err != nil {
			return
		}
		switch m.kind() {
		case 'S':
			var p pgproto3.ParameterStatus
			if p.Decode(m.body()) == nil && c.says[p.Name] != "" {
				continue // it is said otherwise before the first ReadyForQuery
			}
		case 'Z':
			m = append(c.extras(), m...)
			c.mu.Lock()
			c.status = m[len(m)-1]
			c.mu.Unlock()
		}
		if _, err := c.client.Write(m); err != nil {
			return
		}
	}
}

// extras are what the wire says in front of the first ReadyForQuery.
func (c *wireConn) extras() (said []byte) {
	if c.idle() || len(c.says) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.says)) {
		said, _ = (&pgproto3.ParameterStatus{Name: name, Value: c.says[name]}).Encode(said)
	}
	return said
}

func (c *wireConn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status == 'I'
}

// requests passes on what the client sends, as far as it is not answered here: all at once that ends in one ReadyForQuery.
func (c *wireConn) requests() {
	var head [4]byte // the first message has no kind
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
		m, statement := c.read(m)
		if statement != "" {
			statements = append(statements, statement)
		}
		unit = append(unit, m...)
		if !bytes.ContainsRune([]byte("QSpXH"), rune(m.kind())) {
			continue
		}
		if !c.answer(m.kind(), statements) {
			_, _ = c.server.Write(unit)
		}
		unit, statements = nil, nil
	}
}

// read returns the statement in a message, edited, and the message with it.
func (c *wireConn) read(m message) (message, string) {
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
	if c.edit != nil {
		text = c.edit(text)
	}
	body := slices.Concat(name, []byte(text), []byte{0}, rest)
	m = append(binary.BigEndian.AppendUint32([]byte{m.kind()}, uint32(len(body)+4)), body...)
	return m, text
}

// answer reports whether it has answered for the server.
func (c *wireConn) answer(kind byte, statements []string) bool {
	if c.answers == nil || kind != 'Q' && kind != 'S' {
		return false
	}
	code := c.answers(statements, c.idle())
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

// message is one of the protocol: its kind, its length and its body.
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
