package pgxstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// A divided table is replicated day by day. Days that are new have to be made and subscribed to, as the package documentation
// says. What was recorded in the meantime is copied then.
func TestLogicalReplicationOfADividedTable(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.complete("first", time.Hour)
	r.requireSame()

	r.maintain(r.publisher, 2)
	r.complete("early", 72*time.Hour) // on a day that the subscriber does not have
	require.Error(t, r.refresh())
	r.maintain(r.subscriber, 0)
	require.NoError(t, r.refresh())
	r.requireSame()
	r.complete("late", 72*time.Hour)
	r.requireSame()

	execute(t, r.subscriber, "DROP SUBSCRIPTION records")
	store := pgxstore.New(r.subscriber, r.opts)
	for _, id := range []string{"first", "early", "late"} {
		record, _, err := store.Begin(t.Context(), keyOf(id), attempt)
		require.NoError(t, err)
		require.Equal(t, &answer, record.Response, "the former subscriber replays")
	}
}

// replica is a divided table that is published, and a server that subscribes to it.
type replica struct {
	t                     *testing.T
	publisher, subscriber *pgxpool.Pool
	opts                  pgxstore.Options
}

func newReplica(t *testing.T) *replica {
	from, to := servertest.Postgres(t, "wal_level=logical"), servertest.Postgres(t, "wal_retrieve_retry_interval=100ms")
	r := &replica{t, newPool(t, from.URL()), newPool(t, to.URL()), pgxstore.Options{PartitionDays: 1, SpareDays: 1}}
	for _, pool := range []*pgxpool.Pool{r.publisher, r.subscriber} {
		require.NoError(t, pgxstore.Migrate(t.Context(), pool, r.opts))
	}
	execute(t, r.publisher, "CREATE PUBLICATION records FOR TABLE idempotency_records")
	execute(t, r.subscriber, "CREATE SUBSCRIPTION records CONNECTION '"+from.URL()+"' PUBLICATION records")
	return r
}

// maintain makes the partitions of some days more.
func (r *replica) maintain(pool *pgxpool.Pool, days int) {
	r.opts.PartitionDays += days
	require.NoError(r.t, pgxstore.NewTable(pool, r.opts).Maintain(r.t.Context()))
}

func (r *replica) refresh() error {
	_, err := r.subscriber.Exec(r.t.Context(), "ALTER SUBSCRIPTION records REFRESH PUBLICATION")
	return err
}

// complete executes an operation, whose record is kept for that long. It may move to another day when it is completed.
func (r *replica) complete(id string, ttl time.Duration) {
	store := pgxstore.New(r.publisher, r.opts)
	_, claim, err := store.Begin(r.t.Context(), keyOf(id), attempt)
	require.NoError(r.t, err)
	require.NoError(r.t, claim.Complete(r.t.Context(), answer, ttl))
}

// requireSame waits until both servers have the same records.
func (r *replica) requireSame() {
	r.t.Helper()
	const all = `SELECT coalesce(string_agg(r::text, E'\n' ORDER BY key), '') FROM idempotency_records r`
	want := one[string](r.t, r.publisher, all)
	require.NotEmpty(r.t, want)
	require.Eventually(r.t, func() bool { return one[string](r.t, r.subscriber, all) == want }, 30*time.Second, 10*time.Millisecond)
}
