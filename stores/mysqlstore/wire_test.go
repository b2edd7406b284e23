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

// wire is a server as somebody in between would have it: it changes some statements, and answers others in its place. It is
// safe for concurrent use.
type wire struct {
	edit    func(statement string) string            // nil: as it was sent
	answers func(statement string) *mysql.MySQLError // in place of the server; nil: none. An empty statement was prepared before
}

// through returns the DSN of the shared server by way of w.
func (w *wire) through(t testing.TB) string {
	t.Helper()
	m := server(t)
	return m.DSNAt(servertest.Relay(t, m.Addr(), w.carry))
}

func (w *wire) carry(client, server net.Conn) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	w.requests(client, server)
	_ = server.Close()
	<-ended
}

// Commands of the protocol, of which the first one begins a packet with the number zero.
const (
	comQuery   = 0x03
	comPrepare = 0x16
	comExecute = 0x17
)

func (w *wire) requests(client, server net.Conn) {
	for {
		p, err := readPacket(client)
		if err != nil {
			return
		}
		if p.isCommand(comQuery, comPrepare, comExecute) {
			statement := p.statement()
			if w.edit != nil && statement != "" {
				statement = w.edit(statement)
				p = newPacket(0, append([]byte{p[4]}, statement...))
			}
			if refusal := w.refusal(statement); refusal != nil {
				_, _ = client.Write(newPacket(1, refusal))
				continue
			}
		}
		if _, err := server.Write(p); err != nil {
			return
		}
	}
}

// refusal returns an error as the protocol has it, or nil.
func (w *wire) refusal(statement string) []byte {
	if w.answers == nil {
		return nil
	}
	err := w.answers(statement)
	if err == nil {
		return nil
	}
	const header, state = 0xff, "#HY000"
	return slices.Concat([]byte{header}, binary.LittleEndian.AppendUint16(nil, err.Number), []byte(state+err.Message))
}

// packet is one of the protocol: the length of its body in three bytes, its number, and its body.
type packet []byte

func (p packet) isCommand(commands ...byte) bool {
	return p[3] == 0 && len(p) > 4 && slices.Contains(commands, p[4])
}

func (p packet) statement() string {
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
