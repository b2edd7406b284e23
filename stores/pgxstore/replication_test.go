package pgxstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// A partitioned table is replicated day by day. New days must be created on the subscriber and added to the
// subscription, as the package documentation says. The records that were written before are copied then.
func TestLogicalReplicationOfADividedTable(t *testing.T) {
	t.Parallel()
	r := newReplicatedTable(t)
	r.completeKey("first", time.Hour)
	r.requireSame()

	r.addPartitions(r.publisher, 2)
	r.completeKey("early", 72*time.Hour) // the subscriber lacks this day
	require.Error(t, r.refreshSubscription())
	r.addPartitions(r.subscriber, 0)
	require.NoError(t, r.refreshSubscription())
	r.requireSame()
	r.completeKey("late", 72*time.Hour)
	r.requireSame()

	execStatement(t, r.subscriber, "DROP SUBSCRIPTION records")
	store := pgxstore.New(r.subscriber, r.opts)
	for _, id := range []string{"first", "early", "late"} {
		record, _, err := store.Begin(t.Context(), keyOf(id), attempt)
		require.NoError(t, err)
		require.Equal(t, &answer, record.Response, "the former subscriber replays")
	}
}

// replicatedTable is a partitioned table that is published, and a server that subscribes to it.
type replicatedTable struct {
	t                     *testing.T
	publisher, subscriber *pgxpool.Pool
	opts                  pgxstore.Options
}

func newReplicatedTable(t *testing.T) *replicatedTable {
	from, to := servertest.Postgres(t, "wal_level=logical"), servertest.Postgres(t, "wal_retrieve_retry_interval=100ms")
	r := &replicatedTable{t, newPool(t, from.URL()), newPool(t, to.URL()), pgxstore.Options{PartitionDays: 1, SpareDays: 1}}
	for _, pool := range []*pgxpool.Pool{r.publisher, r.subscriber} {
		require.NoError(t, pgxstore.Migrate(t.Context(), pool, r.opts))
	}
	execStatement(t, r.publisher, "CREATE PUBLICATION records FOR TABLE idempotency_records")
	execStatement(t, r.subscriber, "CREATE SUBSCRIPTION records CONNECTION '"+from.URL()+"' PUBLICATION records")
	return r
}

// addPartitions creates the partitions of some more days.
func (r *replicatedTable) addPartitions(pool *pgxpool.Pool, days int) {
	r.opts.PartitionDays += days
	require.NoError(r.t, pgxstore.NewTable(pool, r.opts).Maintain(r.t.Context()))
}

func (r *replicatedTable) refreshSubscription() error {
	_, err := r.subscriber.Exec(r.t.Context(), "ALTER SUBSCRIPTION records REFRESH PUBLICATION")
	return err
}

// completeKey executes an operation whose record is kept for ttl. The record may move to another day at the
// completion.
func (r *replicatedTable) completeKey(id string, ttl time.Duration) {
	store := pgxstore.New(r.publisher, r.opts)
	_, claim, err := store.Begin(r.t.Context(), keyOf(id), attempt)
	require.NoError(r.t, err)
	require.NoError(r.t, claim.Complete(r.t.Context(), answer, ttl))
}

// requireSame waits until both servers have the same records.
func (r *replicatedTable) requireSame() {
	r.t.Helper()
	const all = `SELECT coalesce(string_agg(r::text, E'\n' ORDER BY key), '') FROM idempotency_records r`
	want := queryValue[string](r.t, r.publisher, all)
	require.NotEmpty(r.t, want)
	require.Eventually(r.t, func() bool { return queryValue[string](r.t, r.subscriber, all) == want }, 30*time.Second,
		10*time.Millisecond)
}
