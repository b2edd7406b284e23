package pgxstore_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// hostPair is two servers in one connection string: first a standby, then the primary.
type hostPair struct {
	t               *testing.T
	standby, writer *servertest.Database
	pool            *pgxpool.Pool
	handler         http.Handler
}

func newHostPair(t *testing.T, settings string) *hostPair {
	p := &hostPair{t: t, standby: servertest.Postgres(t), writer: servertest.Postgres(t)}
	for _, db := range []*servertest.Database{p.standby, p.writer} {
		pool := newPool(t, db.URL())
		require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
		execStatement(t, pool, "CREATE TABLE orders ()")
	}
	require.NoError(t, p.standby.Standby())
	p.pool = newPool(t, p.writer.URLAt(p.standby.Addr()+","+p.writer.Addr())+settings)
	p.handler = newMiddleware(t, pgxstore.New(p.pool, pgxstore.Options{}), idempotency.Options{StoreTimeout: 2 * time.Second},
		createOrder)
	return p
}

func createOrder(w http.ResponseWriter, r *http.Request) {
	_, err := pgxstore.DoTx(r.Context(), "order", func(tx pgx.Tx) (int, error) {
		_, err := tx.Exec(r.Context(), "INSERT INTO orders DEFAULT VALUES")
		return 1, err
	})
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (p *hostPair) requireStatus(status int, id string) {
	p.t.Helper()
	answer := post(p.handler, id)
	require.Equal(p.t, status, answer.Code, answer.Body)
}

func (p *hostPair) promoteStandby() {
	execStatement(p.t, newPool(p.t, p.standby.URL()), "SELECT pg_promote()")
}

// With target_session_attrs, stores find the primary, even after another server has become the primary.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	for _, attrs := range []string{"read-write", "primary"} {
		t.Run(attrs, func(t *testing.T) {
			t.Parallel()
			p := newHostPair(t, "&target_session_attrs="+attrs)
			require.Equal(t, onlyFsync, findUnsafeSettings(t, pgxstore.New(p.pool, pgxstore.Options{})))
			p.requireStatus(http.StatusCreated, "1")
			p.writer.Stop()
			p.requireStatus(http.StatusServiceUnavailable, "2")
			p.promoteStandby()
			p.requireStatus(http.StatusCreated, "2")
			require.NoError(t, p.writer.Standby())
			p.requireStatus(http.StatusCreated, "3")
		})
	}
}

// Without target_session_attrs, stores use the first server that answers. Check reports this, and the stores work
// after its promotion.
func TestTwoHostsOfAnyKind(t *testing.T) {
	t.Parallel()
	p := newHostPair(t, "")
	require.Contains(t, findUnsafeSettings(t, pgxstore.New(p.pool, pgxstore.Options{})), "in_hot_standby")
	p.requireStatus(http.StatusServiceUnavailable, "1")
	p.promoteStandby()
	p.requireStatus(http.StatusCreated, "1")
}

// A server that becomes read-only for a switchover keeps its sessions. The store closes each session that has
// refused a write, so the pool looks for the new primary.
func TestTwoHostsAfterASwitchover(t *testing.T) {
	t.Parallel()
	p := newHostPair(t, "&target_session_attrs=read-write")
	p.requireStatus(http.StatusCreated, "1")
	admin := newPool(t, p.writer.URL())
	execStatement(t, admin, "ALTER SYSTEM SET default_transaction_read_only = on")
	execStatement(t, admin, "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool {
		return queryValue[string](t, p.pool, "SELECT current_setting('default_transaction_read_only')") == "on"
	}, 10*time.Second, time.Millisecond)
	p.requireStatus(http.StatusServiceUnavailable, "2")
	p.promoteStandby()
	p.requireStatus(http.StatusCreated, "2")
}
