package servers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// versions returns the stores of two versions of a service, which read the same forms of a record. The older one writes
// answers and fingerprints in the clear, the newer one seals them. This is how a form changes: one version reads it, and
// the next one writes it.
func versions(t *testing.T, older, newer idempotency.Store) []idempotency.Store {
	t.Helper()
	keys := []seal.Key{{ID: "2026", Secret: make([]byte, 32)}}
	reading, err := seal.New(older, seal.Options{Keys: keys, OpenOnly: true})
	require.NoError(t, err)
	writing, err := seal.New(newer, seal.Options{Keys: keys, AllowClear: true})
	require.NoError(t, err)
	return []idempotency.Store{reading, writing}
}

// handover is an attempt of a process of one version, which stands still until a process of the other one has taken over.
type handover struct {
	from, to idempotency.Store
	key      idempotency.Key
	claim    idempotency.Claim
}

// takeover asks for an attempt whose lease lapses at the next failover.
var takeover = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: time.Second, TTL: time.Hour, TakeOver: true,
}

// handovers is how many there are at each failover.
const handovers = 10

// handOver begins attempts at operations, half of them by each version.
func handOver(t *testing.T, stores []idempotency.Store, visit int) (begun []handover) {
	t.Helper()
	for n := range handovers {
		h := handover{from: stores[n%2], to: stores[1-n%2], key: idempotency.Key{ID: fmt.Sprint("handover ", visit, "-", n)}}
		var err error
		_, h.claim, err = h.from.Begin(t.Context(), h.key, takeover)
		require.NoError(t, err)
		begun = append(begun, h)
	}
	return begun
}

// finish has the other version take over. What the first one stores then is refused, and it finds the answer of the other.
func (h handover) finish(t *testing.T) {
	t.Helper()
	var next idempotency.Claim
	require.Eventually(t, func() bool {
		record, claim, err := h.to.Begin(t.Context(), h.key, takeover)
		next = claim
		return err == nil && claim != nil && record.Attempt > 1
	}, patience, 10*time.Millisecond)
	answer, late := idempotency.Response{Status: 201, Body: []byte("answer")}, idempotency.Response{Status: 201}
	require.ErrorIs(t, h.claim.Complete(t.Context(), late, time.Hour), idempotency.ErrClaimLost)
	require.NoError(t, next.Complete(t.Context(), answer, time.Hour))
	require.ErrorIs(t, h.claim.Complete(t.Context(), late, time.Hour), idempotency.ErrClaimLost)
	record, _, err := h.from.Begin(t.Context(), h.key, takeover)
	require.NoError(t, err)
	require.Equal(t, &answer, record.Response)
}

// While PostgreSQL fails over, processes of two versions replay each other's answers, and take over each other's operations.
// The newer one also stores names as digests, and has added a column to the table.
func TestPatroniVersions(t *testing.T) {
	t.Parallel()
	p := newPatroni(t, true)
	direct := p.direct(t)
	require.NoError(t, pgxstore.Migrate(t.Context(), direct, pgxstore.Options{}))
	execute(t, direct, "ALTER TABLE idempotency_records ADD COLUMN version text DEFAULT current_setting('application_name')")
	pool := func(version string) *pgxpool.Pool {
		return p.pooled(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = version })
	}
	stores := versions(t, pgxstore.New(pool("older"), pgxstore.Options{}),
		pgxstore.New(pool("newer"), pgxstore.Options{DigestNames: true}))
	s := newShop(t, idempotency.Options{Lease: time.Minute, StoreTimeout: 5 * time.Second}, &memory{}, stores...)
	var found counts
	failovers := effort.Of(4)
	for n := range failovers {
		var begun []handover
		s.open(50, func() {
			begun = handOver(t, stores, n)
			p.failOver(t, n)
		})
		for _, h := range begun {
			h.finish(t)
		}
		found.add(s.audit(t, loss{}, false))
		require.NoError(t, p.AwaitStandby())
	}
	var older, newer int
	require.NoError(t, direct.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE version = 'older' AND length(key) < 64),
count(*) FILTER (WHERE version = 'newer' AND length(key) = 64) FROM idempotency_records`).Scan(&older, &newer))
	require.NotZero(t, older)
	require.NotZero(t, newer)
	effort.Count(t, "failovers by Patroni", failovers)
	effort.Count(t, "takeovers by another version", failovers*handovers)
	found.report(t)
}

// The same holds while Sentinel replaces a master, but for answers that not all replicas had.
func TestRedisVersions(t *testing.T) {
	t.Parallel()
	sentinels := newSentinels(t, failover{needed: 2})
	clear := sentinels.stores(t, 0)
	stores := versions(t, clear[0], clear[1])
	s := newShop(t, idempotency.Options{Lease: 5 * time.Second, StoreTimeout: 5 * time.Second}, &memory{}, stores...)
	var found counts
	failovers := effort.Of(2)
	for n := range failovers {
		var cost loss
		var begun []handover
		s.open(100, func() {
			begun = handOver(t, stores, n)
			cost.since = time.Now()
			sentinels.strike(t, []string{"killed", "replaced"}[n%2], func() {})
			cost.until = time.Now()
		})
		for _, h := range begun {
			h.finish(t)
		}
		found.add(s.audit(t, cost, false))
	}
	effort.Count(t, "takeovers by another version", failovers*handovers)
	found.report(t)
}
