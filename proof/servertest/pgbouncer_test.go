//go:build unix

package servertest_test

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestPgBouncerHasItsAddressAfterACrash(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	b := servertest.PgBouncer(t, db, "pool_mode=session")
	ask := func() string {
		out, err := psql(b.Addr(), "-c", "SELECT current_setting('port')").CombinedOutput()
		check(t, err)
		return strings.TrimSpace(string(out))
	}
	_, port, err := net.SplitHostPort(db.Addr())
	check(t, err)
	if got := ask(); got != port {
		t.Errorf("got an answer from port %s, want %s", got, port)
	}
	addr := b.Addr()
	b.Crash()
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got error %v after the crash, want a refused connection", err)
	}
	check(t, b.Restart())
	if got := ask(); got != port || b.Addr() != addr {
		t.Errorf("got an answer from port %s by %s, want %s by %s", got, b.Addr(), port, addr)
	}
	expectNoPassword(t, strings.Join(b.Args(), " "))
	expectMode(t, b.Dir(), 0o700)
}
