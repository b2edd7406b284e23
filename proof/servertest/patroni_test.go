//go:build unix

package servertest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestPatroniReplacesThePrimary(t *testing.T) {
	t.Parallel()
	c := servertest.Patroni(t, false)
	b := c.PgBouncer(t, "server_login_retry=1")
	for _, way := range []func(primary *servertest.Database) error{c.CrashPostgres, c.Switchover} {
		check(t, c.AwaitStandby())
		old := c.Primary()
		check(t, way(old))
		check(t, c.AwaitPrimary(old))
		eventually(t, "PgBouncer to lead to the new primary", func() bool {
			return psql(b.Addr(), "-c", "CREATE TABLE IF NOT EXISTS done ()").Run() == nil
		})
	}

	for _, url := range c.URLs() {
		resp, err := http.Post(url, "application/json", strings.NewReader("{}"))
		check(t, err)
		check(t, resp.Body.Close())
		if resp.StatusCode < 400 {
			t.Errorf("got %s from %s without a password", resp.Status, url)
		}
	}
	for _, server := range c.Servers() {
		expectNoPassword(t, strings.Join(server.Args(), " "))
		expectMode(t, server.Dir(), 0o700)
	}
}
