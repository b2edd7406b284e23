package benchmark

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// wire is a worker with a connection of its own to a server.
type wire struct {
	conn     net.Conn
	r        *bufio.Reader
	call     Call
	head     []byte // of the request, up to the key
	tail     []byte // the rest of it
	buf      []byte
	status   int
	length   int
	received []byte // the last body
}

func dialWire(addr string, c Call) (*wire, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	body := c.body()
	head := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: example.com\r\nContent-Type: application/json\r\n"+
		"Authorization: Bearer abcdefghijklmnopqrstuvwxyz\r\nContent-Length: %d\r\n", c.method(), path, len(body))
	if c.Path != NoKey {
		head = append(head, keyHeader+": "...)
	}
	tail := []byte("\r\n\r\n")
	if c.Path == NoKey {
		tail = []byte("\r\n")
	}
	return &wire{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), call: c, head: head, tail: append(tail, body...)}, nil
}

// patience is how long a server may take to answer one request.
const patience = 30 * time.Second

func (w *wire) Do(key string) error {
	_, err := w.exchange(key)
	return err
}

func (w *wire) exchange(key string) (http.Header, error) {
	w.buf = append(w.buf[:0], w.head...)
	if w.call.Path != NoKey {
		w.buf = append(w.buf, key...)
	}
	w.buf = append(w.buf, w.tail...)
	if err := w.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := w.conn.Write(w.buf); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		return nil, err
	}
	w.received, err = readInto(w.received, resp.Body)
	w.status, w.length = resp.StatusCode, len(w.received)
	return resp.Header, err
}

func (w *wire) Answer() (status, length int) { return w.status, w.length }

func (w *wire) Fetch(key string) (Answer, error) {
	header, err := w.exchange(key)
	body := append([]byte(nil), w.received...)
	return Answer{w.status, header, body}, err
}

func (w *wire) Close() { _ = w.conn.Close() }

// readInto reads all of r into the memory of p.
func readInto(p []byte, r io.Reader) ([]byte, error) {
	p = p[:0]
	for {
		if len(p) == cap(p) {
			p = append(p, 0)[:len(p)]
		}
		n, err := r.Read(p[len(p):cap(p)])
		p = p[:len(p)+n]
		if err == io.EOF {
			return p, nil
		}
		if err != nil {
			return p, err
		}
	}
}
