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

// openVersions returns the stores of two versions of a service. Both versions read the same forms of a record. The older version
// writes answers and fingerprints in the clear, and the newer version seals answers and fingerprints. A form changes in this way:
// one version reads the new form, and the next version writes the new form.
func openVersions(t *testing.T, older, newer idempotency.Store) []idempotency.Store {
	t.Helper()
	keys := []seal.Key{{ID: "2026", Secret: make([]byte, 32)}}
	reading, err := seal.New(older, seal.Options{Keys: keys, OpenOnly: true})
	require.NoError(t, err)
	writing, err := seal.New(newer, seal.Options{Keys: keys, AllowClear: true})
	require.NoError(t, err)
	return []idempotency.Store{reading, writing}
}

// handover is an attempt of a process of one version. The process stands still until a process of the other version has taken over.
type handover struct {
	firstStore, nextStore idempotency.Store
	key                   idempotency.Key
	firstClaim            idempotency.Claim
}

// takeoverRequest claims a key with a lease that lapses during the next failover.
var takeoverRequest = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: time.Second, TTL: time.Hour, TakeOver: true,
}

// handoverCount is the number of handovers at each failover.
const handoverCount = 10

// beginHandovers begins attempts, half of them by each version.
func beginHandovers(t *testing.T, stores []idempotency.Store, visit int) (begun []handover) {
	t.Helper()
	for n := range handoverCount {
		h := handover{firstStore: stores[n%2], nextStore: stores[1-n%2], key: idempotency.Key{ID: fmt.Sprint("handover ", visit, "-", n)}}
		var err error
		_, h.firstClaim, err = h.firstStore.Begin(t.Context(), h.key, takeoverRequest)
		require.NoError(t, err)
		begun = append(begun, h)
	}
	return begun
}

// takeOver makes the other version take over. The store refuses a later answer of the first version, and the first version finds
// the answer of the other version.
func (h handover) takeOver(t *testing.T) {
	t.Helper()
	var next idempotency.Claim
	require.Eventually(t, func() bool {
		record, claim, err := h.nextStore.Begin(t.Context(), h.key, takeoverRequest)
		next = claim
		return err == nil && claim != nil && record.Attempt > 1
	}, patience, 10*time.Millisecond)
	answer, late := idempotency.Response{Status: 201, Body: []byte("answer")}, idempotency.Response{Status: 201}
	require.ErrorIs(t, h.firstClaim.Complete(t.Context(), late, time.Hour), idempotency.ErrClaimLost)
	require.NoError(t, next.Complete(t.Context(), answer, time.Hour))
	require.ErrorIs(t, h.firstClaim.Complete(t.Context(), late, time.Hour), idempotency.ErrClaimLost)
	record, _, err := h.firstStore.Begin(t.Context(), h.key, takeoverRequest)
	require.NoError(t, err)
	require.Equal(t, &answer, record.Response)
}

// While PostgreSQL fails over, processes of two versions replay each other's answers, and take over each other's operations.
// The newer version also stores names as digests, and has added a column to the table.
func TestPatroniVersions(t *testing.T) {
	t.Parallel()
	p := newPatroni(t, true)
	direct := p.openDirect(t)
	require.NoError(t, pgxstore.Migrate(t.Context(), direct, pgxstore.Options{}))
	executeSQL(t, direct, "ALTER TABLE idempotency_records ADD COLUMN version text DEFAULT current_setting('application_name')")
	pool := func(version string) *pgxpool.Pool {
		return p.openPooled(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = version })
	}
	stores := openVersions(t, pgxstore.New(pool("older"), pgxstore.Options{}),
		pgxstore.New(pool("newer"), pgxstore.Options{DigestNames: true}))
	s := newShop(t, idempotency.Options{Lease: time.Minute, StoreTimeout: 5 * time.Second}, &memoryLedger{}, stores...)
	var found auditCounts
	failovers := effort.Of(4)
	for n := range failovers {
		var begun []handover
		s.payDuring(50, func() {
			begun = beginHandovers(t, stores, n)
			p.failOver(t, n)
		})
		for _, h := range begun {
			h.takeOver(t)
		}
		found.addCounts(s.auditSales(t, loss{}, false))
		require.NoError(t, p.AwaitStandby())
	}
	var older, newer int
	require.NoError(t, direct.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE version = 'older' AND length(key) < 64),
count(*) FILTER (WHERE version = 'newer' AND length(key) = 64) FROM idempotency_records`).Scan(&older, &newer))
	require.NotZero(t, older)
	require.NotZero(t, newer)
	effort.Count(t, "failovers by Patroni", failovers)
	effort.Count(t, "takeovers by another version", failovers*handoverCount)
	found.reportCounts(t)
}

// The same holds while Sentinel replaces a master, except for answers that not all replicas had.
func TestRedisVersions(t *testing.T) {
	t.Parallel()
	sentinels := newSentinels(t, failover{minReplicas: 2})
	clear := sentinels.openStores(t, 0)
	stores := openVersions(t, clear[0], clear[1])
	s := newShop(t, idempotency.Options{Lease: 5 * time.Second, StoreTimeout: 5 * time.Second}, &memoryLedger{}, stores...)
	var found auditCounts
	failovers := effort.Of(2)
	for n := range failovers {
		var cost loss
		var begun []handover
		s.payDuring(100, func() {
			begun = beginHandovers(t, stores, n)
			cost.affectedAfter = time.Now()
			sentinels.causeFault(t, []string{"killed", "replaced"}[n%2], func() {})
			cost.affectedBefore = time.Now()
		})
		for _, h := range begun {
			h.takeOver(t)
		}
		found.addCounts(s.auditSales(t, cost, false))
	}
	effort.Count(t, "takeovers by another version", failovers*handoverCount)
	found.reportCounts(t)
}
