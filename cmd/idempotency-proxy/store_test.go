package main_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// startRedis starts a server, and returns a file with the URL.
func startRedis(t testing.TB) (file string) {
	t.Helper()
	return writeFile(t, "redis://:"+servertest.RedisPassword()+"@"+servertest.Redis(t).Addr())
}

// writeFile returns a new file with text.
func writeFile(t testing.TB, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
	return file
}

// The proxy does not start without its table. With -migrate the proxy makes the table.
func TestPostgres(t *testing.T) {
	t.Parallel()
	database := writeFile(t, servertest.Postgres(t).URL())
	args := append(userHeaderFlags, "-upstream", "http://127.0.0.1:1", "-listen", "127.0.0.1:0", "-store-file", database)
	status, _, stderr := runProgram(t, nil, args...)
	require.Equal(t, 1, status, stderr)
	require.Len(t, errorLines(stderr), 1)
	require.Contains(t, stderr, "idempotency_records")

	upstream := startService(t, answerCreated)
	for i, replayed := range []bool{false, true} {
		p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store-file", database, "-migrate", "-ignore-host")...)
		require.Equal(t, replayed, p.post("/", "x", withKey("k"), withUser("alice")).replayed, i)
		p.terminate()
		require.Zero(t, p.awaitExit(), p.loggedLines())
	}
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store-file", database, "-ignore-host")...)
	require.True(t, p.post("/", "x", withKey("k"), withUser("alice")).replayed)
}

// A user at the limit of -max-user-records is refused, and gets its stored answers. Other users are not refused.
func TestMaxUserRecords(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	for name, store := range map[string][]string{
		"PostgreSQL": {"-store-file", writeFile(t, servertest.Postgres(t).URL()), "-migrate"},
		"Redis":      {"-store-file", startRedis(t)},
		"SQLite":     {"-store", "sqlite:" + filepath.Join(t.TempDir(), "records.db")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, upstream.URL, append(append(userHeaderFlags, store...), "-max-user-records", "1")...)
			require.Equal(t, 201, p.post("/", "x", withKey("1"), withUser("alice")).status)
			refused := p.post("/", "x", withKey("2"), withUser("alice"))
			require.Equal(t, 429, refused.status)
			require.Equal(t, "quota-exceeded", refused.problemCode())
			require.True(t, p.post("/", "x", withKey("1"), withUser("alice")).replayed)
			require.Equal(t, 201, p.post("/", "x", withKey("2"), withUser("bob")).status)
		})
	}
}

// While the store is down, guarded requests are refused. With -fail-open, guarded requests run without protection.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t)
	url := writeFile(t, "redis://:"+servertest.RedisPassword()+"@"+redis.Addr())
	upstream := startService(t, answerCreated)
	closed := startProxy(t, upstream.URL, append(userHeaderFlags, "-store-file", url, "-store-timeout", "1s")...)
	require.Equal(t, 200, getURL(t, closed.adminURL+"/readyz").status)
	require.Contains(t, closed.loggedLines(), "unsafe setting of the store", "a server without appendonly")
	redis.Close()
	require.Equal(t, "store-unavailable", closed.post("/", "x", withKey("k"), withUser("alice")).problemCode())
	require.Equal(t, 503, getURL(t, closed.adminURL+"/readyz").status)
	require.Equal(t, 200, getURL(t, closed.adminURL+"/healthz").status)
	require.Zero(t, upstream.requestCount())

	open := startProxy(t, upstream.URL, append(userHeaderFlags, "-store-file", url, "-store-timeout", "1s", "-fail-open")...)
	require.Contains(t, open.loggedLines(), "requests are not protected")
	require.Equal(t, 201, open.post("/", "x", withKey("k"), withUser("alice")).status)
	require.Contains(t, getURL(t, open.adminURL+"/metrics").body, `outcome="unprotected"`)
	require.Equal(t, 200, getURL(t, open.adminURL+"/readyz").status, "otherwise no request would reach the proxy")
}

// A request without protection has the time limit of a guarded request, and goes on after its client has left.
func TestUpstreamTimeoutWithoutProtection(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // the proxy has given up
		close(ended)
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "redis://127.0.0.1:1", "-store-timeout", "100ms", "-fail-open",
		"-upstream-timeout", "300ms")...)
	conn := p.postUnread("/", "x", "k")
	defer conn.Close()
	select {
	case <-ended:
	case <-time.After(waitLimit):
		t.Fatal("the request goes on:\n" + p.loggedLines())
	}
}
