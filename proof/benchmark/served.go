package benchmark

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
)

// serve starts a server for the target. Its workers are clients of it from now on.
func (t *Target) serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- t.Serve(listener) }()
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	url := "http://" + listener.Addr().String() + path
	t.Worker = func(c Call) Worker { return &client{transport, url, c.method(), c.body(), c.Path != NoKey} }
	closed := t.Close
	t.Close = func() error {
		err := listener.Close()
		transport.CloseIdleConnections() // so that the server has none either
		<-served
		if closed != nil {
			err = errors.Join(err, closed())
		}
		return err
	}
	return nil
}

// client sends requests as a program does that uses net/http.
type client struct {
	transport   *http.Transport
	url, method string
	body        []byte
	keyed       bool
}

func (c *client) Do(key string) (status, length int, err error) {
	resp, err := c.send(key)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, int(n), err
}

func (c *client) Fetch(key string) (Answer, error) {
	resp, err := c.send(key)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, body}, err
}

func (c *client) send(key string) (*http.Response, error) {
	r, err := http.NewRequest(c.method, c.url, bytes.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer abcdefghijklmnopqrstuvwxyz")
	if c.keyed {
		r.Header.Set(keyHeader, key)
	}
	return (&http.Client{Transport: c.transport}).Do(r)
}

func (c *client) Close() {}
