package main_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// switching is a service that speaks every protocol that it is asked for: it echoes lines. Each conversation that has
// ended is told.
func switching(t *testing.T) (s *service, ended chan struct{}) {
	t.Helper()
	ended = make(chan struct{}, 64)
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Upgrade"] == nil {
			created(w, r)
			return
		}
		switchTo(w, r.Header["Upgrade"]...)
		ended <- struct{}{}
	})
	return s, ended
}

// switchTo answers that the protocol is another one from now on, and echoes lines until the connection ends.
func switchTo(w http.ResponseWriter, protocols ...string) {
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n")
	for _, protocol := range protocols {
		_, _ = io.WriteString(conn, "Upgrade: "+protocol+"\r\n")
	}
	_, _ = io.WriteString(conn, "\r\n")
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "echo "+line)
	}
}

// conversation is a connection of a client.
type conversation struct {
	net.Conn
	in *textproto.Reader
}

// converse opens a connection, and sends a request with some fields.
func (p *process) converse(t *testing.T, line string, fields ...string) conversation {
	t.Helper()
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	c := conversation{conn, textproto.NewReader(bufio.NewReader(conn))}
	c.ask(t, line, fields...)
	return c
}

func (c conversation) ask(t *testing.T, line string, fields ...string) {
	t.Helper()
	_, err := fmt.Fprintf(c, "%s\r\nHost: x\r\n%s\r\n\r\n", line, strings.Join(append(fields, "X-User: alice"), "\r\n"))
	require.NoError(t, err)
}

// echoes requires that what is said comes back.
func (c conversation) echoes(t *testing.T, said string) {
	t.Helper()
	_, err := io.WriteString(c, said+"\n")
	require.NoError(t, err)
	await(t, c.in, "echo "+said)
}

// A client may ask for the WebSocket protocol. Any other wish is ignored, as a server may, and the request is answered.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	upstream, _ := switching(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	const get = "GET / HTTP/1.1"
	for _, test := range []struct {
		line     string
		fields   []string
		switches bool
	}{
		{get, []string{"Connection: Upgrade", "Upgrade: websocket"}, true},
		{get, []string{"Connection: upgrade", "Upgrade: WebSocket"}, true},
		{get, []string{"Connection: keep-alive, Upgrade", "Upgrade: websocket"}, true},
		{get, []string{"Connection: keep-alive", "Connection: Upgrade", "Upgrade: websocket", "HTTP2-Settings: AAMAAABk"}, true},
		{get, []string{"Connection: keep-alive", "Upgrade: websocket"}, false},
		{get, []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"}, false},
		{get, []string{"HTTP2-Settings: AAMAAABk"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: websocket, h2c"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: h2c, websocket"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: h2c", "Upgrade: websocket"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: websocket/13"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: websoc\u212Aet"}, false}, // in Unicode, a small k is its small letter
		{get, []string{"Connection: Upgrade", "Upgrade: x"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: \xff"}, false},
		{get, []string{"Connection: Upgrade"}, false},
		{"GET / HTTP/1.0", []string{"Connection: Upgrade", "Upgrade: websocket"}, false},
		{"POST / HTTP/1.1", []string{"Connection: Upgrade", "Upgrade: websocket", "Content-Length: 0"}, false},
		{"POST / HTTP/1.1", []string{"Connection: Upgrade", "Upgrade: websocket", "Content-Length: 0", "Idempotency-Key: k"}, false},
	} {
		t.Run(test.line+" "+strings.Join(test.fields, " "), func(t *testing.T) {
			c := p.converse(t, test.line, test.fields...)
			status, err := c.in.ReadLine()
			require.NoError(t, err)
			seen := upstream.last(t).Header
			require.NotContains(t, seen, "Http2-Settings")
			if test.switches {
				require.Contains(t, status, " 101 ")
				require.Len(t, seen["Upgrade"], 1)
				c.echoes(t, "hello")
				return
			}
			require.Contains(t, status, " 201 ")
			require.NotContains(t, seen, "Upgrade")
			require.NotContains(t, seen, "Connection")
		})
	}
}

// Behind a 101 nobody looks at what passes. So a client that asks for HTTP/2, as curl --http2 does, gets none, and what
// it asks for next is looked at as any request.
func TestNothingIsSmuggledByAnUpgrade(t *testing.T) {
	t.Parallel()
	upstream, _ := switching(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	c := p.converse(t, "GET / HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
	require.Equal(t, 201, answered(t, c.in.R))
	c.ask(t, "POST /pay HTTP/1.1", "Content-Length: 0", "Idempotency-Key: k", "Idempotency-Operation: forged")
	require.Equal(t, 201, answered(t, c.in.R))
	require.Equal(t, "/pay", upstream.last(t).URL.Path)
	require.Len(t, upstream.last(t).Header.Get("Idempotency-Operation"), 36)
}

// A service may not switch to another protocol than the client has asked for. Its connection is closed.
func TestUnaskedSwitch(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 64)
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switchTo(w, r.Header["X-Answer"]...)
		ended <- struct{}{}
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	for _, test := range []struct {
		asked    string
		answered []string
	}{
		{"", []string{"h2c"}}, {"", []string{"websocket"}}, {"", nil}, {"h2c", []string{"h2c"}},
		{"websocket", []string{"h2c"}}, {"websocket", []string{"websocket, h2c"}}, {"websocket", nil},
		{"websocket", []string{"websocket", "h2c"}},
	} {
		var fields []string
		if test.asked != "" {
			fields = []string{"Connection: Upgrade", "Upgrade: " + test.asked}
		}
		for _, protocol := range test.answered {
			fields = append(fields, "X-Answer: "+protocol)
		}
		c := p.converse(t, "GET / HTTP/1.1", fields...)
		await(t, c.in, "HTTP/1.1 502 Bad Gateway")
		awaitEnd(t, ended)
	}

	lie := with("X-Answer", "websocket")
	require.Equal(t, 502, p.post("/", "x", as("alice"), keyed("k"), lie).status)
	awaitEnd(t, ended)
	require.Contains(t, []string{"in-progress", "outcome-unknown"}, p.post("/", "x", as("alice"), keyed("k"), lie).code())
}

func awaitEnd(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the connection to the service stays open")
	}
}

// HTTP/2 knows no Upgrade. What asks for another protocol in it reaches no service.
func TestUpgradeInHTTP2(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	for name, test := range map[string]struct {
		fields  []string
		reaches int
	}{
		"Upgrade":          {[]string{":method", "GET", ":path", "/", "connection", "upgrade", "upgrade", "websocket"}, 0},
		"extended CONNECT": {[]string{":method", "CONNECT", ":protocol", "websocket", ":path", "/"}, 0},
		"settings":         {[]string{":method", "GET", ":path", "/", "http2-settings", "AAMAAABk"}, 1},
	} {
		upstream, _ := switching(t)
		p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-tls-cert", cert, "-tls-key", key)...)
		p.askHTTP2(t, append(test.fields, ":scheme", "https", ":authority", "x"))
		require.Equal(t, test.reaches, upstream.count(), name)
		if test.reaches > 0 {
			require.NotContains(t, upstream.last(t).Header, "Http2-Settings")
		}
	}
}

// askHTTP2 sends fields, name by value, as a request without a body, and waits until it is answered or refused.
func (p *process) askHTTP2(t *testing.T, fields []string) {
	t.Helper()
	conn, err := tls.Dial("tcp", p.address(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	const header, rst, endOfAll = 1, 3, 5
	frame := func(kind, flags, stream byte, payload string) string { // a short one
		return string([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, stream}) + payload
	}
	var packed strings.Builder // literals, pseudo-header fields first
	for _, pseudo := range []bool{true, false} {
		for i := 0; i < len(fields); i += 2 {
			if strings.HasPrefix(fields[i], ":") == pseudo {
				name, value := fields[i], fields[i+1]
				packed.WriteString("\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value)
			}
		}
	}
	const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 4
	_, err = io.WriteString(conn, preface+frame(settings, 0, 0, "")+frame(header, endOfAll, 1, packed.String()))
	require.NoError(t, err)
	for {
		var head [9]byte
		_, err := io.ReadFull(conn, head[:])
		require.NoError(t, err)
		_, err = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		require.NoError(t, err)
		if head[3] == header || head[3] == rst {
			return
		}
	}
}
