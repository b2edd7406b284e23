package pgxstore_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/upload"
)

// Slow clients hold no connection of the pool, neither while the handler reads a body as it arrives, nor while the
// middleware reads it into memory. Their leases last as long as their bodies take.
func TestSlowBodiesHoldNoConnection(t *testing.T) {
	t.Parallel()
	const slow, lease = 4, 2 * time.Second // slow: one client for each connection of the pool
	type guard interface {
		Handler(next http.Handler) http.Handler
		Shutdown(ctx context.Context) error
	}
	for name, row := range map[string]struct {
		guard   func(store idempotency.Store, opts idempotency.Options) (guard, error)
		started int64 // handlers that start before their bodies are complete
	}{
		"read by the handler": {func(store idempotency.Store, opts idempotency.Options) (guard, error) {
			return upload.New(store, idempotency.SingleUser, opts)
		}, slow},
		"read into memory": {func(store idempotency.Store, opts idempotency.Options) (guard, error) {
			return idempotency.New(store, idempotency.SingleUser, opts)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = slow })
			store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
			idem, err := row.guard(store, idempotency.Options{Lease: lease, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			var runs atomic.Int64
			server := httptest.NewServer(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				body, err := io.ReadAll(r.Body)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprintf(w, "%d bytes", len(body))
			})))
			t.Cleanup(func() {
				server.Close()
				require.NoError(t, idem.Shutdown(context.WithoutCancel(t.Context())))
			})

			const first, second = "the first half, ", "the second half"
			sum := sha256.Sum256([]byte(first + second))
			digest := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
			began := time.Now()
			var senders []net.Conn
			for i := range slow {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				_, err = fmt.Fprintf(conn, "POST /scans HTTP/1.1\r\nHost: x\r\nIdempotency-Key: slow-%d\r\nContent-Digest: %s\r\n"+
					"Content-Length: %d\r\n\r\n%s", i, digest, len(first+second), first)
				require.NoError(t, err)
				senders = append(senders, conn)
			}
			require.Eventually(t, func() bool { return runs.Load() == row.started }, 20*time.Second, 5*time.Millisecond)

			for others := 0; time.Since(began) < 2*lease; others++ { // long enough that leases are renewed
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/scans", strings.NewReader("a scan"))
				require.NoError(t, err)
				r.Header.Set("Idempotency-Key", fmt.Sprint("other-", others))
				resp, err := server.Client().Do(r)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, http.StatusCreated, resp.StatusCode)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var all []*pgxpool.Conn
			for range slow {
				conn, err := pool.Acquire(ctx)
				require.NoError(t, err, "a connection is held while a body arrives")
				defer conn.Release() // also after a failure
				all = append(all, conn)
			}
			for _, conn := range all {
				conn.Release()
			}

			before := runs.Load()
			for _, conn := range senders {
				_, err := io.WriteString(conn, second)
				require.NoError(t, err)
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, http.StatusCreated, resp.StatusCode, string(body))
				require.Equal(t, "31 bytes", string(body))
				require.NoError(t, resp.Body.Close())
			}
			require.Equal(t, slow-row.started, runs.Load()-before, "handlers run once for each body")
		})
	}
}
