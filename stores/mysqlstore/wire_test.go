package mysqlstore_test

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// interceptor relays connections to a server, and changes or refuses some statements on their way. An interceptor is
// safe for concurrent use.
type interceptor struct {
	editStatement func(statement string) string // nil: no statement is changed
	// nil: the server answers. The statement is empty if it was prepared before
	refuseStatement func(statement string) *mysql.MySQLError
}

// interceptedDSN returns the DSN of the shared server through w.
func (w *interceptor) interceptedDSN(t testing.TB) string {
	t.Helper()
	m := sharedServer(t)
	return m.DSNAt(servertest.Relay(t, m.Addr(), w.relayConns))
}

func (w *interceptor) relayConns(client, server net.Conn) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	w.relayRequests(client, server)
	_ = server.Close()
	<-ended
}

// These are commands of the protocol. The first byte of packet number zero is the command.
const (
	comQuery   = 0x03
	comPrepare = 0x16
	comExecute = 0x17
)

func (w *interceptor) relayRequests(client, server net.Conn) {
	for {
		p, err := readPacket(client)
		if err != nil {
			return
		}
		if p.isCommand(comQuery, comPrepare, comExecute) {
			statement := p.readStatement()
			if w.editStatement != nil && statement != "" {
				statement = w.editStatement(statement)
				p = newPacket(0, append([]byte{p[4]}, statement...))
			}
			if refusal := w.encodeRefusal(statement); refusal != nil {
				_, _ = client.Write(newPacket(1, refusal))
				continue
			}
		}
		if _, err := server.Write(p); err != nil {
			return
		}
	}
}

// encodeRefusal returns the error that refuseStatement returns, encoded for the protocol, or nil.
func (w *interceptor) encodeRefusal(statement string) []byte {
	if w.refuseStatement == nil {
		return nil
	}
	err := w.refuseStatement(statement)
	if err == nil {
		return nil
	}
	const header, state = 0xff, "#HY000"
	return slices.Concat([]byte{header}, binary.LittleEndian.AppendUint16(nil, err.Number), []byte(state+err.Message))
}

// packet is a packet of the protocol: the length of its body in three bytes, its number, and its body.
type packet []byte

func (p packet) isCommand(commands ...byte) bool {
	return p[3] == 0 && len(p) > 4 && slices.Contains(commands, p[4])
}

func (p packet) readStatement() string {
	if p[4] == comExecute {
		return ""
	}
	return string(p[5:])
}

func newPacket(number byte, body []byte) packet {
	n := len(body)
	return append(packet{byte(n), byte(n >> 8), byte(n >> 16), number}, body...)
}

func readPacket(r io.Reader) (packet, error) {
	p := make(packet, 4)
	if _, err := io.ReadFull(r, p); err != nil {
		return nil, err
	}
	p = append(p, make([]byte, int(p[0])|int(p[1])<<8|int(p[2])<<16)...)
	_, err := io.ReadFull(r, p[4:])
	return p, err
}
