package pgxstore_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Both stores keep their contract behind PgBouncer in transaction mode, where statements of one client go to any
// session of the server and only transactions stay together.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	url := pgBouncer(t)
	direct := newPool(t, serverURL(t))
	for name, open := range map[string]func(*pgxpool.Pool, pgxstore.Options) idempotency.Store{
		"lease":       func(p *pgxpool.Pool, o pgxstore.Options) idempotency.Store { return pgxstore.New(p, o) },
		"transaction": func(p *pgxpool.Pool, o pgxstore.Options) idempotency.Store { return pgxstore.NewTx(p, o) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, url, unprepared) // as every statement of a program must be there, before version 1.21
			store := open(pool, newTable(t, direct, pgxstore.Options{}))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
	t.Run("silent owner", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url, unprepared)
		opts := newTable(t, direct, pgxstore.Options{IdleTimeout: 100 * time.Millisecond})
		store := pgxstore.NewTx(pool, opts)
		key, silent := begun(t, store)
		defer func() { _ = silent.Release(t.Context(), time.Hour) }() // the server has done it
		require.Eventually(t, func() bool {
			_, claim, err := store.Begin(t.Context(), key, attempt)
			if claim != nil {
				require.NoError(t, claim.Release(t.Context(), time.Hour))
			}
			return err == nil && claim != nil
		}, 10*time.Second, 10*time.Millisecond)
		setting := one[string](t, direct, "SELECT current_setting('idle_in_transaction_session_timeout')")
		require.Equal(t, "0", setting, "the timeout is that of one transaction only")
	})
}

// pgBouncer starts a PgBouncer in front of the shared server, for the duration of the test, and returns its URL.
func pgBouncer(t testing.TB) string {
	t.Helper()
	serverURL(t)
	db, _ := server()
	config, err := pgx.ParseConfig(db.URL())
	require.NoError(t, err)
	program, err := exec.LookPath("pgbouncer")
	servertest.Require(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())

	dir := t.TempDir()
	ini, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users.txt")
	require.NoError(t, os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", config.User, config.Password), 0o600))
	require.NoError(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
postgres = host=127.0.0.1 port=%d user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = 40
max_client_conn = 200
`, config.Port, port, users), 0o600))
	cmd := exec.Command(program, "--quiet", ini)
	if os.Geteuid() == 0 { // as which it refuses to run
		owner, err := user.Lookup("postgres") // who runs the server, too
		require.NoError(t, err)
		uid, err := strconv.Atoi(owner.Uid)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
		for _, name := range []string{users, ini, dir} {
			require.NoError(t, os.Chown(name, uid, uid))
		}
		require.NoError(t, os.Chmod(dir, 0o700))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, 10*time.Second, 10*time.Millisecond)
	return db.URLAt(addr)
}
