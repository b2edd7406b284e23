package main_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// startHeldService starts a service that sends to working and then waits until goOn is closed.
func startHeldService(t *testing.T) (s *service, working, goOn chan struct{}) {
	t.Helper()
	working, goOn = make(chan struct{}, 8), make(chan struct{})
	s = startService(t, func(w http.ResponseWriter, r *http.Request) {
		working <- struct{}{}
		select {
		case <-goOn:
			answerCreated(w, r)
		case <-r.Context().Done(): // the proxy was killed
		}
	})
	return s, working, goOn
}

// A shutdown waits for running requests, and their clients get the answers.
func TestShutdown(t *testing.T) {
	t.Parallel()
	upstream, working, goOn := startHeldService(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-shutdown-delay", "300ms")...)
	require.Equal(t, 200, getURL(t, p.adminURL+"/readyz").status)
	first := make(chan answer)
	go func() { first <- p.post("/", "x", withKey("k"), withUser("alice")) }()
	<-working
	p.terminate()
	requireEventually(t, "the proxy is not ready", func() bool { return getURL(t, p.adminURL+"/readyz").status == 503 })
	requireEventually(t, "the proxy accepts no connection", func() bool {
		conn, err := net.Dial("tcp", p.address())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	require.Equal(t, 200, getURL(t, p.adminURL+"/healthz").status, "the proxy is still at work")
	close(goOn)
	got := <-first
	require.Equal(t, 201, got.status, got)
	require.Zero(t, p.awaitExit(), p.loggedLines())
	require.Contains(t, p.loggedLines(), "shut down")
}

// A shutdown waits also for requests whose clients have left, and their answers are stored.
func TestShutdownWithoutClient(t *testing.T) {
	t.Parallel()
	redis := startRedis(t)
	args := slices.Clip(append(userHeaderFlags, "-store-file", redis, "-ignore-host"))
	t.Run("HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		upstream, working, goOn := startHeldService(t)
		p := startProxy(t, upstream.URL, args...)
		conn := p.postUnread("/one", "x", "k")
		<-working
		require.NoError(t, conn.Close())
		requireAnswerAfterShutdown(t, p, upstream, goOn, "/one", args)
	})
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		upstream, working, goOn := startHeldService(t)
		cert, key := writeCertificate(t)
		p := startProxy(t, upstream.URL, append(args, "-tls-cert", cert, "-tls-key", key)...)
		leave := p.postHTTP2(t, "/two")
		<-working
		leave()
		requireAnswerAfterShutdown(t, p, upstream, goOn, "/two", args)
	})
}

// postHTTP2 sends a request of the user alice. leave closes the connection.
func (p *process) postHTTP2(t *testing.T, path string) (leave func()) {
	t.Helper()
	conn, err := tls.Dial("tcp", p.address(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	transport := &http.Transport{
		ForceAttemptHTTP2: true,
		DialTLSContext:    func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	r, err := http.NewRequest("POST", "https://"+p.address()+path, strings.NewReader("x"))
	require.NoError(t, err)
	r.Header = http.Header{"X-User": {"alice"}, "Idempotency-Key": {"k"}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := transport.RoundTrip(r); err == nil {
			_ = resp.Body.Close()
		}
	}()
	return func() {
		_ = conn.Close()
		<-ended
	}
}

// requireAnswerAfterShutdown shuts down a proxy whose client has left, and requires that the next proxy replays the
// answer.
func requireAnswerAfterShutdown(t *testing.T, p *process, upstream *service, goOn chan struct{}, path string, args []string) {
	t.Helper()
	p.terminate()
	requireEventually(t, "the proxy shuts down", func() bool { return strings.Contains(p.loggedLines(), "shutting down") })
	close(goOn)
	require.Zero(t, p.awaitExit(), p.loggedLines())

	got := startProxy(t, upstream.URL, args...).post(path, "x", withKey("k"), withUser("alice"))
	require.True(t, got.replayed, got)
	require.Equal(t, 1, upstream.requestCount())
}

// A shutdown ends after -shutdown-timeout. A second signal ends the proxy at once.
func TestShutdownIsBounded(t *testing.T) {
	t.Parallel()
	upstream, working, goOn := startHeldService(t)
	defer close(goOn)
	for name, sendSecondSignal := range map[string]bool{"time": false, "signal": true} {
		timeout := "300ms"
		if sendSecondSignal {
			timeout = "1h"
		}
		p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-shutdown-timeout", timeout)...)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.post("/", "x", withKey(name), withUser("alice"))
		}()
		<-working
		p.terminate()
		requireEventually(t, "the proxy shuts down", func() bool { return strings.Contains(p.loggedLines(), "shutting down") })
		if sendSecondSignal {
			p.terminate()
			p.awaitExit()
			require.Equal(t, syscall.SIGTERM, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
		} else {
			require.Equal(t, 1, p.awaitExit())
			require.Contains(t, p.loggedLines(), "idempotency-proxy: not all requests ended")
		}
		<-ended
	}
}

// openWebSocket opens a WebSocket.
func (p *process) openWebSocket(t *testing.T) conversation {
	t.Helper()
	c := p.openConversation(t, "GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket")
	awaitLine(t, c.in, "HTTP/1.1 101 Switching Protocols")
	awaitLine(t, c.in, "")
	return c
}

// A shutdown waits for open WebSockets, as for running requests.
func TestShutdownWaitsForWebSockets(t *testing.T) {
	t.Parallel()
	upstream, ended := startSwitchingService(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	c := p.openWebSocket(t)
	p.terminate()
	requireEventually(t, "the proxy accepts no connection", func() bool {
		conn, err := net.Dial("tcp", p.address())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	for range 500 { // longer than a shutdown takes
		c.requireEcho(t, "hello")
	}
	require.NoError(t, c.Close())
	require.Zero(t, p.awaitExit(), p.loggedLines())
	awaitEnd(t, ended)
}

// After -shutdown-timeout, open WebSockets are closed at both ends.
func TestShutdownClosesWebSockets(t *testing.T) {
	t.Parallel()
	upstream, ended := startSwitchingService(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-shutdown-timeout", "300ms")...)
	c := p.openWebSocket(t)
	p.terminate()
	_, err := c.in.ReadLine()
	require.ErrorIs(t, err, io.EOF)
	awaitEnd(t, ended)
	require.Equal(t, 1, p.awaitExit())
	require.Contains(t, p.loggedLines(), "idempotency-proxy: not all requests ended")
}

// Metrics and logs show outcomes, and neither users nor keys.
func TestMetrics(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	p.post("/", "x", withKey("secret-key"), withUser("alice"))
	p.post("/", "x", withKey("secret-key"), withUser("alice"))
	p.post("/", "other", withKey("secret-key"), withUser("alice"))
	p.post("/", "x", withKey("secret-key"))
	metrics := getURL(t, p.adminURL+"/metrics").body
	for _, outcome := range []string{"executed", "replayed", "key-reused", "rejected"} {
		require.Contains(t, metrics, `idempotency_proxy_request_seconds_count{outcome="`+outcome+`"} 1`)
	}
	require.Contains(t, metrics, "idempotency_proxy_upstream_seconds_count 1")
	require.Contains(t, metrics, "idempotency_proxy_requests_running 0")
	require.NotContains(t, metrics+p.loggedLines(), "alice")
	require.NotContains(t, metrics+p.loggedLines(), "secret-key")
	require.Equal(t, "made for ", getURL(t, p.url+"/metrics").body, "the public listener has only the service")
}

// The command in the Dockerfile builds a static program, which needs nothing else in the image.
func TestStaticBinary(t *testing.T) {
	t.Parallel()
	if os.Getenv("IDEMPOTENCY_CI") == "" {
		t.Skip("it compiles everything once more, as CI does")
	}
	dockerfile, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	_, line, found := strings.Cut(string(dockerfile), "\nRUN ")
	require.True(t, found)
	line, _, _ = strings.Cut(line, "\n\n")
	output := t.TempDir() + "/idempotency-proxy"
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(line, "-o /idempotency-proxy", "-o "+output, 1))
	build.Dir, build.Env = "../..", append(os.Environ(), "GOFLAGS=") // the directory that the Dockerfile copies
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	program, err := os.ReadFile(output)
	require.NoError(t, err)
	require.False(t, bytes.Contains(program, []byte("/ld-linux")), "it asks for a dynamic linker")
	version, err := exec.CommandContext(t.Context(), output, "-version").Output()
	require.NoError(t, err)
	require.Contains(t, string(version), "go1.")
}
