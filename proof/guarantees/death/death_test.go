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

// quick are the points that a request comes by at once.
var quick = []death.Point{
	death.Reading, death.Claiming, death.Claimed, death.BeforeEffect, death.AfterEffect, death.Completing, death.Completed,
	death.Answering, death.HalfAnswered, death.Answered, death.Replaying, death.HalfReplayed, death.Replayed,
}

// points are all named ones. Those that wait for a renewal, a third of a lease, have fewer deaths.
var points = slices.Concat(quick, []death.Point{death.RenewingBefore}, quick, []death.Point{death.RenewedAfter}, quick, quick, quick, quick)

// rows are the effects of steps in a transaction.
var rows = death.Config{Store: "postgres", Rows: true}

// Rows exist exactly once, wherever the server dies.
func TestKilledWithRows(t *testing.T) {
	t.Parallel()
	requireKept(t, rows, plan{effort.Of(10_000), slices.Concat(points, slices.Repeat([]death.Point{death.InTransaction}, 5)), 0})
}

// What has no steps is done twice, or not at all, as the policy says for the point of death, and nothing else.
func TestKilledWithoutSteps(t *testing.T) {
	t.Parallel()
	for name, config := range withoutSteps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireKept(t, config, plan{effort.Of(1000), points, 0})
		})
	}
}

var withoutSteps = map[string]death.Config{
	"redis re-execute":    {Store: "redis"},
	"redis refuse":        {Store: "redis", Refuse: true},
	"postgres re-execute": {Store: "postgres"},
	"postgres refuse":     {Store: "postgres", Refuse: true},
}

// At any instant of a request, which nobody has chosen.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	configs := maps.Clone(withoutSteps)
	configs["rows"] = rows
	for name, config := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireKept(t, config, plan{effort.Of(200), []death.Point{death.AtRandom}, 2})
		})
	}
}

// A promise that is not kept is noticed: here rows outside of the transaction, and another policy than the one that is
// promised.
func TestBrokenPromisesAreNoticed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ is, promised death.Config }{
		"re-executed instead of refused": {death.Config{Store: "redis"}, death.Config{Store: "redis", Refuse: true}},
		"refused instead of re-executed": {death.Config{Store: "redis", Refuse: true}, death.Config{Store: "redis"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireNoticed(t, tt.is, tt.promised, quick, death.AfterEffect, death.Completing)
		})
	}
	t.Run("rows outside of the transaction", func(t *testing.T) {
		t.Parallel()
		reckless := rows
		reckless.Reckless = true
		requireNoticed(t, reckless, rows, append(quick, death.InTransaction), death.InTransaction)
	})
}

// requireNoticed runs servers with a wrong configuration, and requires a fault for each of some points of death.
func requireNoticed(t *testing.T, is, promised death.Config, points []death.Point, noticed ...death.Point) {
	t.Helper()
	faults := run(t, is, plan{3 * len(points), points, 1}).judge(t, promised)
	for _, point := range noticed {
		require.Contains(t, strings.Join(faults, "\n"), string(point))
	}
}

func requireKept(t *testing.T, config death.Config, p plan) {
	t.Helper()
	r := run(t, config, p)
	faults := r.judge(t, config)
	require.Empty(t, faults[:min(10, len(faults))], "of %d faults", len(faults))
	counts := make(map[death.Point]int)
	for _, point := range r.fleet.died {
		counts[point]++
	}
	if p.wanted >= 2*len(p.points) { // with the race detector it is less
		for _, point := range p.points {
			require.NotZero(t, counts[point], "deaths %s", point)
		}
	}
	late := 0
	for _, trial := range r.crowd.trials {
		if trial.late {
			late++
		}
	}
	if n := len(r.crowd.trials); n >= 100 && !config.Rows { // of fewer, a tenth is too few to tell a slow moment from a slow machine
		require.Less(t, late, n/10, "of these keys less is promised")
	}
	effort.Count(t, "keys with a late attempt", late)
	effort.Count(t, "deaths", r.fleet.dead)
	effort.Count(t, "keys", len(r.crowd.trials))
	effort.Charges(t, r.provider)
	effort.Count(t, "requests without an answer", r.crowd.lost.Load())
	t.Logf("deaths by point: %v", counts)
}

// result is what has become of the keys of a run.
type result struct {
	fleet    *fleet
	crowd    *crowd
	provider *killtest.Provider
	effects  map[string][]int // by key: the attempts
}

// run kills servers.
func run(t *testing.T, config death.Config, p plan) result {
	t.Helper()
	var pool *pgxpool.Pool
	if config.Store == "redis" {
		config.Redis, config.Password = servertest.Redis(t).Addr(), servertest.RedisPassword()
	} else {
		config.Postgres, pool = newDatabase(t)
		config.Connections = 2 + int32(p.guests) // each costs the server a process
	}
	ledger, err := os.OpenFile(filepath.Join(t.TempDir(), "ledger"), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer ledger.Close()

	provider := killtest.NewProvider(t)
	f := launch(t, config, provider, ledger, p)
	c := newCrowd(f, !config.Rows)
	c.send()
	f.land()
	if config.Rows {
		return result{f, c, provider, effectsInTable(t, pool)}
	}
	return result{f, c, provider, effectsInFile(t, ledger)}
}

// judge returns what has become of keys that must not, and tells the point of death of each.
func (r result) judge(t *testing.T, config death.Config) []string {
	t.Helper()
	faults := r.fleet.faults
	var answered []string
	for _, trial := range r.crowd.trials {
		if len(trial.answers) > 0 {
			answered = append(answered, trial.key)
		}
		point := r.fleet.died[trial.key]
		exact := point
		if point == death.AtRandom || trial.late {
			exact = ""
		}
		for _, fault := range trial.judge(config, exact, r.effects[trial.key]) {
			faults = append(faults, fmt.Sprintf("%s, killed %q: %s", trial.key, point, fault))
		}
	}
	if err := r.provider.Explain(answered...); err != nil {
		faults = append(faults, err.Error())
	}
	return faults
}

// newDatabase returns the URL of a database with the tables that the server needs.
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

func effectsInTable(t *testing.T, pool *pgxpool.Pool) map[string][]int {
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

func effectsInFile(t *testing.T, ledger *os.File) map[string][]int {
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
