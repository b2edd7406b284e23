package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
)

// client sends requests that all carry the same key.
type client struct{ addr, key string }

// order sends a request and leaves the answer unread.
func (c client) order(user string, amount int) net.Conn {
	body := strings.NewReader(fmt.Sprintf(`{"amount":%d}`, amount))
	req, err := http.NewRequest("POST", "http://"+c.addr+"/payments", body)
	check(err)
	req.Header.Set("User", user)
	req.Header.Set("Idempotency-Key", c.key)
	req.Close = true

	conn, err := net.Dial("tcp", c.addr)
	check(err)
	check(req.Write(conn))
	return conn
}

// answer sends a request and returns the answer as it comes over the wire.
func (c client) answer(user string, amount int) string {
	conn := c.order(user, amount)
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	check(err)
	return string(answer)
}

// wiretap is a listener that keeps what the server writes to the first connection, whether or not the client reads it.
// It may be looked at when the server has shut down.
type wiretap struct {
	net.Listener
	first *bytes.Buffer
}

func listen() *wiretap {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	return &wiretap{Listener: listener}
}

func (t *wiretap) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil || t.first != nil {
		return conn, err
	}
	t.first = new(bytes.Buffer)
	return tapped{conn, t.first}, nil
}

type tapped struct {
	net.Conn
	written *bytes.Buffer
}

func (c tapped) Write(p []byte) (int, error) {
	c.written.Write(p)
	return c.Conn.Write(p)
}

var date = regexp.MustCompile(`\r\nDate: [^\r]*`)

// isReplay reports whether an answer is the first one byte for byte, apart from the marker, which it must have, and
// the date, which is that of sending.
func isReplay(answer, first string) bool {
	unmarked := strings.Replace(answer, "\r\nIdempotent-Replayed: true", "", 1)
	return unmarked != answer && date.ReplaceAllString(unmarked, "") == date.ReplaceAllString(first, "")
}

func status(answer string) string {
	line, _, _ := strings.Cut(answer, "\r\n")
	return strings.TrimPrefix(line, "HTTP/1.1 ")
}

func indent(answer string) string {
	indented := "    " + strings.ReplaceAll(answer, "\r\n", "\n    ")
	return strings.ReplaceAll(indented, "\n    \n", "\n\n")
}
