package death_test

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/death"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// immediatePoints are the points that a request reaches without waiting.
var immediatePoints = []death.Point{
	death.Reading, death.Claiming, death.Claimed, death.BeforeEffect, death.AfterEffect, death.Completing, death.Completed,
	death.Answering, death.HalfAnswered, death.Answered, death.Replaying, death.HalfReplayed, death.Replayed,
}

// weightedPoints are all named points outside of a transaction. The immediate points have more deaths than the points that wait
// for a renewal, because a renewal comes after a third of a lease.
var weightedPoints = slices.Concat(
	immediatePoints, []death.Point{death.RenewingBefore}, immediatePoints, []death.Point{death.RenewedAfter},
	slices.Repeat(immediatePoints, 4),
)

// rowsConfig makes a step in a transaction write each effect as a row.
var rowsConfig = death.Config{Store: "postgres", Rows: true}

// Each row exists exactly once, wherever the server dies.
func TestKilledWithRows(t *testing.T) {
	t.Parallel()
	points := slices.Concat(weightedPoints, slices.Repeat([]death.Point{death.InTransaction}, 5))
	requirePromises(t, rowsConfig, plan{effort.Of(10_000), points, 0})
}

// An operation without steps has exactly the number of effects that the policy promises for the point of death: none, one, or
// two.
func TestKilledWithoutSteps(t *testing.T) {
	t.Parallel()
	for name, config := range withoutSteps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requirePromises(t, config, plan{effort.Of(1000), weightedPoints, 0})
		})
	}
}

var withoutSteps = map[string]death.Config{
	"redis re-execute":    {Store: "redis"},
	"redis refuse":        {Store: "redis", Refuse: true},
	"postgres re-execute": {Store: "postgres"},
	"postgres refuse":     {Store: "postgres", Refuse: true},
}

// The promises hold for deaths at a random instant of a request.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	configs := maps.Clone(withoutSteps)
	configs["rows"] = rowsConfig
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requirePromises(t, config, plan{effort.Of(200), []death.Point{death.AtRandom}, 2})
		})
	}
}

// The tests notice a broken promise: rows outside of the transaction, and a policy that differs from the promised policy.
func TestBrokenPromisesAreNoticed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ actual, promised death.Config }{
		"re-executed instead of refused": {death.Config{Store: "redis"}, death.Config{Store: "redis", Refuse: true}},
		"refused instead of re-executed": {death.Config{Store: "redis", Refuse: true}, death.Config{Store: "redis"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireFaultsNoticed(t, tt.actual, tt.promised, immediatePoints, death.AfterEffect, death.Completing)
		})
	}
	t.Run("rows outside of the transaction", func(t *testing.T) {
		t.Parallel()
		reckless := rowsConfig
		reckless.Reckless = true
		requireFaultsNoticed(t, reckless, rowsConfig, append(immediatePoints, death.InTransaction), death.InTransaction)
	})
}

// requireFaultsNoticed runs servers with the configuration actual, and requires a fault for each of the points noticed, because
// the servers break the promises of the configuration promised.
func requireFaultsNoticed(t *testing.T, actual, promised death.Config, points []death.Point, noticed ...death.Point) {
	t.Helper()
	faults := killServers(t, actual, plan{3 * len(points), points, 1}).findFaults(t, promised)
	for _, point := range noticed {
		require.Contains(t, strings.Join(faults, "\n"), string(point))
	}
}

// requirePromises kills servers, and requires that each key has kept the promises of config.
func requirePromises(t *testing.T, config death.Config, p plan) {
	t.Helper()
	r := killServers(t, config, p)
	faults := r.findFaults(t, config)
	require.Empty(t, faults[:min(10, len(faults))], "of %d faults", len(faults))
	counts := make(map[death.Point]int)
	for _, point := range r.servers.pointByKey {
		counts[point]++
	}
	if p.wantedDeaths >= 2*len(p.points) { // fewer are wanted with the race detector
		for _, point := range p.points {
			require.NotZero(t, counts[point], "deaths %s", point)
		}
	}
	late := 0
	for _, trial := range r.clients.trials {
		if trial.isLate {
			late++
		}
	}
	if n := len(r.clients.trials); n >= 100 && !config.Rows { // a tenth of fewer keys may be late on a fast machine
		require.Less(t, late, n/10, "of these keys less is promised")
	}
	effort.Count(t, "keys with a late attempt", late)
	effort.Count(t, "deaths", r.servers.deathCount)
	effort.Count(t, "keys", len(r.clients.trials))
	effort.Charges(t, r.provider)
	effort.Count(t, "requests without an answer", r.clients.unanswered.Load())
	t.Logf("deaths by point: %v", counts)
}

// result has the answers and effects of the keys of a run.
type result struct {
	servers       *serverGroup
	clients       *clientGroup
	provider      *killtest.Provider
	attemptsByKey map[string][]int // the attempt of each effect
}

// killServers runs clients and servers with config until the servers have died as p says.
func killServers(t *testing.T, config death.Config, p plan) result {
	t.Helper()
	var pool *pgxpool.Pool
	if config.Store == "redis" {
		config.Redis, config.Password = servertest.Redis(t).Addr(), servertest.RedisPassword()
	} else {
		config.Postgres, pool = newDatabase(t)
		config.Connections = 2 + int32(p.harmlessRequests) // few, because each connection costs the database server a process
	}
	ledger, err := os.OpenFile(filepath.Join(t.TempDir(), "ledger"), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer ledger.Close()

	provider := killtest.NewProvider(t)
	servers := startServers(t, config, provider, ledger, p)
	clients := newClientGroup(servers, !config.Rows)
	clients.sendUntilEnough()
	servers.stopServers()
	if config.Rows {
		return result{servers, clients, provider, readEffectsInTable(t, pool)}
	}
	return result{servers, clients, provider, readEffectsInFile(t, ledger)}
}

// findFaults returns the broken promises of all keys, with the point of death of each key.
func (r result) findFaults(t *testing.T, config death.Config) []string {
	t.Helper()
	faults := r.servers.faults
	var answered []string
	for _, trial := range r.clients.trials {
		if len(trial.countByAnswer) > 0 {
			answered = append(answered, trial.key)
		}
		point := r.servers.pointByKey[trial.key]
		exact := point
		if point == death.AtRandom || trial.isLate {
			exact = ""
		}
		for _, fault := range trial.findFaults(config, exact, r.attemptsByKey[trial.key]) {
			faults = append(faults, fmt.Sprintf("%s, killed %q: %s", trial.key, point, fault))
		}
	}
	if err := r.provider.Explain(answered...); err != nil {
		faults = append(faults, err.Error())
	}
	return faults
}

// newDatabase returns the URL and a pool of a database with the tables of the server.
func newDatabase(t *testing.T) (string, *pgxpool.Pool) {
	t.Helper()
	url := servertest.Postgres(t).URL()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	_, err = pool.Exec(t.Context(), "CREATE TABLE ledger (key text NOT NULL, attempt int NOT NULL)")
	require.NoError(t, err)
	return url, pool
}

func readEffectsInTable(t *testing.T, pool *pgxpool.Pool) map[string][]int {
	t.Helper()
	effects := make(map[string][]int)
	rows, err := pool.Query(t.Context(), "SELECT key, attempt FROM ledger")
	require.NoError(t, err)
	var key string
	var attempt int
	_, err = pgx.ForEachRow(rows, []any{&key, &attempt}, func() error {
		effects[key] = append(effects[key], attempt)
		return nil
	})
	require.NoError(t, err)
	return effects
}

func readEffectsInFile(t *testing.T, ledger *os.File) map[string][]int {
	t.Helper()
	effects := make(map[string][]int)
	_, err := ledger.Seek(0, 0)
	require.NoError(t, err)
	lines := bufio.NewScanner(ledger)
	for lines.Scan() {
		var key string
		var attempt int
		_, err := fmt.Sscan(lines.Text(), &key, &attempt)
		require.NoError(t, err)
		effects[key] = append(effects[key], attempt)
	}
	require.NoError(t, lines.Err())
	return effects
}
