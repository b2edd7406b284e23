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

// held is a service that answers when the test lets it.
func held(t *testing.T) (s *service, working, goOn chan struct{}) {
	t.Helper()
	working, goOn = make(chan struct{}, 8), make(chan struct{})
	s = serve(t, func(w http.ResponseWriter, r *http.Request) {
		working <- struct{}{}
		select {
		case <-goOn:
			created(w, r)
		case <-r.Context().Done(): // the proxy was killed
		}
	})
	return s, working, goOn
}

// A shutdown waits for what runs: the client gets its answer.
func TestShutdown(t *testing.T) {
	t.Parallel()
	upstream, working, goOn := held(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-shutdown-delay", "300ms")...)
	require.Equal(t, 200, get(t, p.admin+"/readyz").status)
	first := make(chan answer)
	go func() { first <- p.post("/", "x", keyed("k"), as("alice")) }()
	<-working
	p.terminate()
	eventually(t, "it is not ready", func() bool { return get(t, p.admin+"/readyz").status == 503 })
	eventually(t, "it accepts nothing", func() bool {
		conn, err := net.Dial("tcp", p.address())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	require.Equal(t, 200, get(t, p.admin+"/healthz").status, "it is still at work")
	close(goOn)
	got := <-first
	require.Equal(t, 201, got.status, got)
	require.Zero(t, p.wait(), p.logged())
	require.Contains(t, p.logged(), "shut down")
}

// It also waits for requests whose clients have left: the answer is in the store.
func TestShutdownWithoutClient(t *testing.T) {
	t.Parallel()
	redis := newRedis(t)
	args := slices.Clip(append(asHeader, "-store-file", redis, "-ignore-host"))
	t.Run("HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		upstream, working, goOn := held(t)
		p := start(t, upstream.URL, args...)
		conn := p.order("/one", "x", "k")
		<-working
		require.NoError(t, conn.Close())
		endsWith(t, p, upstream, goOn, "/one", args)
	})
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		upstream, working, goOn := held(t)
		cert, key := certificate(t)
		p := start(t, upstream.URL, append(args, "-tls-cert", cert, "-tls-key", key)...)
		leave := p.orderHTTP2(t, "/two")
		<-working
		leave()
		endsWith(t, p, upstream, goOn, "/two", args)
	})
}

// orderHTTP2 sends a request of Alice's. Its connection is closed by leave.
func (p *process) orderHTTP2(t *testing.T, path string) (leave func()) {
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

// endsWith shuts a proxy down whose client has left, and sees that the next one has the answer.
func endsWith(t *testing.T, p *process, upstream *service, goOn chan struct{}, path string, args []string) {
	t.Helper()
	p.terminate()
	eventually(t, "it shuts down", func() bool { return strings.Contains(p.logged(), "shutting down") })
	close(goOn)
	require.Zero(t, p.wait(), p.logged())

	got := start(t, upstream.URL, args...).post(path, "x", keyed("k"), as("alice"))
	require.True(t, got.replayed, got)
	require.Equal(t, 1, upstream.count())
}

// It does not wait forever, and a second signal ends it at once.
func TestShutdownIsBounded(t *testing.T) {
	t.Parallel()
	upstream, working, goOn := held(t)
	defer close(goOn)
	for name, second := range map[string]bool{"time": false, "signal": true} {
		timeout := "300ms"
		if second {
			timeout = "1h"
		}
		p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-shutdown-timeout", timeout)...)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = p.post("/", "x", keyed(name), as("alice"))
		}()
		<-working
		p.terminate()
		eventually(t, "it shuts down", func() bool { return strings.Contains(p.logged(), "shutting down") })
		if second {
			p.terminate()
			p.wait()
			require.Equal(t, syscall.SIGTERM, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
		} else {
			require.Equal(t, 1, p.wait())
			require.Contains(t, p.logged(), "idempotency-proxy: not all requests ended")
		}
		<-ended
	}
}

// websocket opens a conversation.
func (p *process) websocket(t *testing.T) conversation {
	t.Helper()
	c := p.converse(t, "GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket")
	await(t, c.in, "HTTP/1.1 101 Switching Protocols")
	await(t, c.in, "")
	return c
}

// A shutdown waits for open WebSockets, as for everything that runs.
func TestShutdownWaitsForWebSockets(t *testing.T) {
	t.Parallel()
	upstream, ended := switching(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	c := p.websocket(t)
	p.terminate()
	eventually(t, "it accepts nothing", func() bool {
		conn, err := net.Dial("tcp", p.address())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	for range 500 { // much longer than a shutdown takes
		c.echoes(t, "hello")
	}
	require.NoError(t, c.Close())
	require.Zero(t, p.wait(), p.logged())
	awaitEnd(t, ended)
}

// It does not wait forever. What is open then is closed, at both ends.
func TestShutdownClosesWebSockets(t *testing.T) {
	t.Parallel()
	upstream, ended := switching(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-shutdown-timeout", "300ms")...)
	c := p.websocket(t)
	p.terminate()
	_, err := c.in.ReadLine()
	require.ErrorIs(t, err, io.EOF)
	awaitEnd(t, ended)
	require.Equal(t, 1, p.wait())
	require.Contains(t, p.logged(), "idempotency-proxy: not all requests ended")
}

// Metrics and logs show outcomes, but no user and no key.
func TestMetrics(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	p.post("/", "x", keyed("secret-key"), as("alice"))
	p.post("/", "x", keyed("secret-key"), as("alice"))
	p.post("/", "other", keyed("secret-key"), as("alice"))
	p.post("/", "x", keyed("secret-key"))
	told := get(t, p.admin+"/metrics").body
	for _, outcome := range []string{"executed", "replayed", "key-reused", "rejected"} {
		require.Contains(t, told, `idempotency_proxy_request_seconds_count{outcome="`+outcome+`"} 1`)
	}
	require.Contains(t, told, "idempotency_proxy_upstream_seconds_count 1")
	require.Contains(t, told, "idempotency_proxy_requests_running 0")
	require.NotContains(t, told+p.logged(), "alice")
	require.NotContains(t, told+p.logged(), "secret-key")
	require.Equal(t, "made for ", get(t, p.url+"/metrics").body, "the public listener has only the service")
}

// The command that the Dockerfile runs builds a program that needs no libraries, nor anything else of an image.
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
	build.Dir, build.Env = "../..", append(os.Environ(), "GOFLAGS=") // what the Dockerfile copies
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	program, err := os.ReadFile(output)
	require.NoError(t, err)
	require.False(t, bytes.Contains(program, []byte("/ld-linux")), "it asks for a dynamic linker")
	version, err := exec.CommandContext(t.Context(), output, "-version").Output()
	require.NoError(t, err)
	require.Contains(t, string(version), "go1.")
}
