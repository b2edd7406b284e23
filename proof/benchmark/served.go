package benchmark

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
)

// serveOverHTTP starts a server for the target. Later workers of the target are clients of the server.
func (t *Target) serveOverHTTP() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serveDone := make(chan error, 1)
	go func() { serveDone <- t.Serve(listener) }()
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	url := "http://" + listener.Addr().String() + paymentsPath
	t.Worker = func(c Call) Worker { return &client{transport, url, c.httpMethod(), c.makeBody(), c.Path != NoKey} }
	closeTarget := t.Close
	t.Close = func() error {
		err := listener.Close()
		transport.CloseIdleConnections() // because the server must have no idle connections
		<-serveDone
		if closeTarget != nil {
			err = errors.Join(err, closeTarget())
		}
		return err
	}
	return nil
}

// client sends requests with the client of net/http.
type client struct {
	transport                *http.Transport
	targetURL, requestMethod string
	requestBody              []byte
	sendsKey                 bool
}

func (c *client) Do(key string) (status, length int, err error) {
	resp, err := c.sendRequest(key)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, int(n), err
}

func (c *client) Fetch(key string) (Answer, error) {
	resp, err := c.sendRequest(key)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, body}, err
}

func (c *client) sendRequest(key string) (*http.Response, error) {
	r, err := http.NewRequest(c.requestMethod, c.targetURL, bytes.NewReader(c.requestBody))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer abcdefghijklmnopqrstuvwxyz")
	if c.sendsKey {
		r.Header.Set(keyHeader, key)
	}
	return (&http.Client{Transport: c.transport}).Do(r)
}

func (c *client) Close() {}
