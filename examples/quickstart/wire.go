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

// client sends requests, all with the same key.
type client struct{ serverAddress, key string }

// sendRequest sends a request, and returns the connection, from which the caller may read the answer.
func (c client) sendRequest(user string, amount int) net.Conn {
	body := strings.NewReader(fmt.Sprintf(`{"amount":%d}`, amount))
	req, err := http.NewRequest("POST", "http://"+c.serverAddress+"/payments", body)
	checkError(err)
	req.Header.Set("User", user)
	req.Header.Set("Idempotency-Key", c.key)
	req.Close = true

	conn, err := net.Dial("tcp", c.serverAddress)
	checkError(err)
	checkError(req.Write(conn))
	return conn
}

// readAnswer sends a request, and returns the bytes of the answer.
func (c client) readAnswer(user string, amount int) string {
	conn := c.sendRequest(user, amount)
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	checkError(err)
	return string(answer)
}

// recordingListener records all bytes that the server writes to the first connection, even if the client reads none of them.
// Read firstAnswer only after the shutdown of the server.
type recordingListener struct {
	net.Listener
	firstAnswer *bytes.Buffer
}

func listenAndRecord() *recordingListener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	checkError(err)
	return &recordingListener{Listener: listener}
}

func (l *recordingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || l.firstAnswer != nil {
		return conn, err
	}
	l.firstAnswer = new(bytes.Buffer)
	return recordingConn{conn, l.firstAnswer}, nil
}

type recordingConn struct {
	net.Conn
	writtenBytes *bytes.Buffer
}

func (c recordingConn) Write(p []byte) (int, error) {
	c.writtenBytes.Write(p)
	return c.Conn.Write(p)
}

var dateField = regexp.MustCompile(`\r\nDate: [^\r]*`)

// isReplay reports whether answer has the field Idempotent-Replayed, and otherwise equals first byte for byte. The field Date may
// differ, because the server sets it when it sends an answer.
func isReplay(answer, first string) bool {
	unmarked := strings.Replace(answer, "\r\nIdempotent-Replayed: true", "", 1)
	return unmarked != answer && dateField.ReplaceAllString(unmarked, "") == dateField.ReplaceAllString(first, "")
}

func statusOf(answer string) string {
	line, _, _ := strings.Cut(answer, "\r\n")
	return strings.TrimPrefix(line, "HTTP/1.1 ")
}

func indentLines(answer string) string {
	indented := "    " + strings.ReplaceAll(answer, "\r\n", "\n    ")
	return strings.ReplaceAll(indented, "\n    \n", "\n\n")
}
