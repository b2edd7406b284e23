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

// newRedis returns a file with the URL of a server.
func newRedis(t testing.TB) (file string) {
	t.Helper()
	return inFile(t, "redis://:"+servertest.RedisPassword()+"@"+servertest.Redis(t).Addr())
}

func inFile(t testing.TB, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
	return file
}

// The proxy does not start without its table, unless it is told to make it.
func TestPostgres(t *testing.T) {
	t.Parallel()
	database := inFile(t, servertest.Postgres(t).URL())
	args := append(asHeader, "-upstream", "http://127.0.0.1:1", "-listen", "127.0.0.1:0", "-store-file", database)
	status, _, stderr := try(t, nil, args...)
	require.Equal(t, 1, status, stderr)
	require.Len(t, complaintsIn(stderr), 1)
	require.Contains(t, stderr, "idempotency_records")

	upstream := serve(t, created)
	for i, replayed := range []bool{false, true} {
		p := start(t, upstream.URL, append(asHeader, "-store-file", database, "-migrate", "-ignore-host")...)
		require.Equal(t, replayed, p.post("/", "x", keyed("k"), as("alice")).replayed, i)
		p.terminate()
		require.Zero(t, p.wait(), p.logged())
	}
	p := start(t, upstream.URL, append(asHeader, "-store-file", database, "-ignore-host")...)
	require.True(t, p.post("/", "x", keyed("k"), as("alice")).replayed)
}

// While the store is down, no guarded request runs. With -fail-open they run without protection.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t)
	url := inFile(t, "redis://:"+servertest.RedisPassword()+"@"+redis.Addr())
	upstream := serve(t, created)
	closed := start(t, upstream.URL, append(asHeader, "-store-file", url, "-store-timeout", "1s")...)
	require.Equal(t, 200, get(t, closed.admin+"/readyz").status)
	require.Contains(t, closed.logged(), "unsafe setting of the store", "a server without appendonly")
	redis.Close()
	require.Equal(t, "store-unavailable", closed.post("/", "x", keyed("k"), as("alice")).code())
	require.Equal(t, 503, get(t, closed.admin+"/readyz").status)
	require.Equal(t, 200, get(t, closed.admin+"/healthz").status)
	require.Zero(t, upstream.count())

	open := start(t, upstream.URL, append(asHeader, "-store-file", url, "-store-timeout", "1s", "-fail-open")...)
	require.Contains(t, open.logged(), "requests are not protected")
	require.Equal(t, 201, open.post("/", "x", keyed("k"), as("alice")).status)
	require.Contains(t, get(t, open.admin+"/metrics").body, `outcome="unprotected"`)
	require.Equal(t, 200, get(t, open.admin+"/readyz").status, "else no request would come to be forwarded")
}

// A request that is forwarded without protection is bounded as a guarded one is. Its client cannot end it.
func TestUpstreamTimeoutWithoutProtection(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // the proxy has given up
		close(ended)
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "redis://127.0.0.1:1", "-store-timeout", "100ms", "-fail-open",
		"-upstream-timeout", "300ms")...)
	conn := p.order("/", "x", "k")
	defer conn.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the request goes on:\n" + p.logged())
	}
}
