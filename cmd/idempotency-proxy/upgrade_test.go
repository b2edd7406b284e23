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

// startSwitchingService starts a service that switches to every requested protocol, and then echoes lines. ended receives
// a value at the end of each conversation.
func startSwitchingService(t *testing.T) (s *service, ended chan struct{}) {
	t.Helper()
	ended = make(chan struct{}, 64)
	s = startService(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Upgrade"] == nil {
			answerCreated(w, r)
			return
		}
		switchProtocols(w, r.Header["Upgrade"]...)
		ended <- struct{}{}
	})
	return s, ended
}

// switchProtocols answers 101 with the protocols, and echoes lines until the connection ends.
func switchProtocols(w http.ResponseWriter, protocols ...string) {
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

// conversation is a client connection.
type conversation struct {
	net.Conn
	in *textproto.Reader
}

// openConversation opens a connection, and sends a request with the given request line and fields.
func (p *process) openConversation(t *testing.T, line string, fields ...string) conversation {
	t.Helper()
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitLimit)))
	c := conversation{conn, textproto.NewReader(bufio.NewReader(conn))}
	c.sendRequest(t, line, fields...)
	return c
}

// sendRequest sends a request of the user alice.
func (c conversation) sendRequest(t *testing.T, line string, fields ...string) {
	t.Helper()
	_, err := fmt.Fprintf(c, "%s\r\nHost: x\r\n%s\r\n\r\n", line, strings.Join(append(fields, "X-User: alice"), "\r\n"))
	require.NoError(t, err)
}

// requireEcho sends a line, and requires the echo.
func (c conversation) requireEcho(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(c, text+"\n")
	require.NoError(t, err)
	awaitLine(t, c.in, "echo "+text)
}

// A client may upgrade to the WebSocket protocol. The proxy ignores any other upgrade, as a server may, and answers the
// request.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	upstream, _ := startSwitchingService(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	const get = "GET / HTTP/1.1"
	for _, test := range []struct {
		requestLine  string
		fields       []string
		wantSwitched bool
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
		{get, []string{"Connection: Upgrade", "Upgrade: websoc\u212Aet"}, false}, // in Unicode, the lower case of U+212A is k
		{get, []string{"Connection: Upgrade", "Upgrade: x"}, false},
		{get, []string{"Connection: Upgrade", "Upgrade: \xff"}, false},
		{get, []string{"Connection: Upgrade"}, false},
		{"GET / HTTP/1.0", []string{"Connection: Upgrade", "Upgrade: websocket"}, false},
		{"POST / HTTP/1.1", []string{"Connection: Upgrade", "Upgrade: websocket", "Content-Length: 0"}, false},
		{"POST / HTTP/1.1", []string{"Connection: Upgrade", "Upgrade: websocket", "Content-Length: 0", "Idempotency-Key: k"}, false},
	} {
		t.Run(test.requestLine+" "+strings.Join(test.fields, " "), func(t *testing.T) {
			c := p.openConversation(t, test.requestLine, test.fields...)
			status, err := c.in.ReadLine()
			require.NoError(t, err)
			seen := upstream.lastRequest(t).Header
			require.NotContains(t, seen, "Http2-Settings")
			if test.wantSwitched {
				require.Contains(t, status, " 101 ")
				require.Len(t, seen["Upgrade"], 1)
				c.requireEcho(t, "hello")
				return
			}
			require.Contains(t, status, " 201 ")
			require.NotContains(t, seen, "Upgrade")
			require.NotContains(t, seen, "Connection")
		})
	}
}

// After a 101 the proxy does not inspect the bytes. So the proxy does not upgrade to HTTP/2 for a client such as
// curl --http2, and guards the next request on the connection as any request.
func TestNothingIsSmuggledByAnUpgrade(t *testing.T) {
	t.Parallel()
	upstream, _ := startSwitchingService(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	c := p.openConversation(t, "GET / HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
	require.Equal(t, 201, readStatus(t, c.in.R))
	c.sendRequest(t, "POST /pay HTTP/1.1", "Content-Length: 0", "Idempotency-Key: k", "Idempotency-Operation: forged")
	require.Equal(t, 201, readStatus(t, c.in.R))
	require.Equal(t, "/pay", upstream.lastRequest(t).URL.Path)
	require.Len(t, upstream.lastRequest(t).Header.Get("Idempotency-Operation"), 36)
}

// If a service switches to a protocol that the client has not requested, the proxy closes the connection to the service.
func TestUnaskedSwitch(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 64)
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		switchProtocols(w, r.Header["X-Answer"]...)
		ended <- struct{}{}
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	for _, test := range []struct {
		requested string
		answered  []string
	}{
		{"", []string{"h2c"}}, {"", []string{"websocket"}}, {"", nil}, {"h2c", []string{"h2c"}},
		{"websocket", []string{"h2c"}}, {"websocket", []string{"websocket, h2c"}}, {"websocket", nil},
		{"websocket", []string{"websocket", "h2c"}},
	} {
		var fields []string
		if test.requested != "" {
			fields = []string{"Connection: Upgrade", "Upgrade: " + test.requested}
		}
		for _, protocol := range test.answered {
			fields = append(fields, "X-Answer: "+protocol)
		}
		c := p.openConversation(t, "GET / HTTP/1.1", fields...)
		awaitLine(t, c.in, "HTTP/1.1 502 Bad Gateway")
		awaitEnd(t, ended)
	}

	lie := withField("X-Answer", "websocket")
	require.Equal(t, 502, p.post("/", "x", withUser("alice"), withKey("k"), lie).status)
	awaitEnd(t, ended)
	require.Contains(t, []string{"in-progress", "outcome-unknown"},
		p.post("/", "x", withUser("alice"), withKey("k"), lie).problemCode())
}

func awaitEnd(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(waitLimit):
		t.Fatal("the connection to the service stays open")
	}
}

// HTTP/2 has no Upgrade, so an HTTP/2 request for another protocol does not reach the service.
func TestUpgradeInHTTP2(t *testing.T) {
	t.Parallel()
	cert, key := writeCertificate(t)
	for name, test := range map[string]struct {
		fields       []string
		wantRequests int // that reach the service
	}{
		"Upgrade":          {[]string{":method", "GET", ":path", "/", "connection", "upgrade", "upgrade", "websocket"}, 0},
		"extended CONNECT": {[]string{":method", "CONNECT", ":protocol", "websocket", ":path", "/"}, 0},
		"settings":         {[]string{":method", "GET", ":path", "/", "http2-settings", "AAMAAABk"}, 1},
	} {
		upstream, _ := startSwitchingService(t)
		p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-tls-cert", cert, "-tls-key", key)...)
		p.sendHTTP2(t, append(test.fields, ":scheme", "https", ":authority", "x"))
		require.Equal(t, test.wantRequests, upstream.requestCount(), name)
		if test.wantRequests > 0 {
			require.NotContains(t, upstream.lastRequest(t).Header, "Http2-Settings")
		}
	}
}

// sendHTTP2 sends a request without a body over HTTP/2, and waits for an answer or a reset. fields has names and values,
// by turns.
func (p *process) sendHTTP2(t *testing.T, fields []string) {
	t.Helper()
	conn, err := tls.Dial("tcp", p.address(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitLimit)))
	const header, rst, endOfAll = 1, 3, 5
	frame := func(kind, flags, stream byte, payload string) string { // for payloads below 256 bytes
		return string([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, stream}) + payload
	}
	var block strings.Builder // HPACK literals, pseudo-header fields first
	for _, pseudo := range []bool{true, false} {
		for i := 0; i < len(fields); i += 2 {
			if strings.HasPrefix(fields[i], ":") == pseudo {
				name, value := fields[i], fields[i+1]
				block.WriteString("\x00" + string(rune(len(name))) + name + string(rune(len(value))) + value)
			}
		}
	}
	const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 4
	_, err = io.WriteString(conn, preface+frame(settings, 0, 0, "")+frame(header, endOfAll, 1, block.String()))
	require.NoError(t, err)
	for {
		var frameHeader [9]byte
		_, err := io.ReadFull(conn, frameHeader[:])
		require.NoError(t, err)
		_, err = io.CopyN(io.Discard, conn, int64(frameHeader[0])<<16|int64(frameHeader[1])<<8|int64(frameHeader[2]))
		require.NoError(t, err)
		if frameHeader[3] == header || frameHeader[3] == rst {
			return
		}
	}
}
