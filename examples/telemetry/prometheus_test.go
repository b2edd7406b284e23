package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/idempotency-go/idempotency/examples/telemetry/board"
	"github.com/idempotency-go/idempotency/examples/telemetry/traffic"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

const monitoringDir = "../../adapters/otelidempotency/monitoring"

// monitoredShops has a shop for each scenario, and a Prometheus server that scrapes all shops.
type monitoredShops struct {
	scenarios  []traffic.Scenario
	runByName  map[string]*traffic.Run // by the name of the scenario
	prometheus board.Prometheus
}

func newMonitoredShops(t *testing.T) *monitoredShops {
	t.Helper()
	s := &monitoredShops{scenarios: traffic.Scenarios(), runByName: map[string]*traffic.Run{}}
	targets := map[string]string{}
	for _, scenario := range s.scenarios {
		run, err := traffic.Open(scenario, noop.NewTracerProvider())
		require.NoError(t, err)
		t.Cleanup(func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = run.Shop.Close(over) // reports the answers that the store never accepts
		})
		s.runByName[scenario.Name], targets[scenario.Name] = run, run.Shop.Addr
	}
	rules, err := os.ReadFile(filepath.Join(monitoringDir, "alerts.yml"))
	require.NoError(t, err)
	server := servertest.Prometheus(t, map[string]string{
		"prometheus.yml": board.ScrapeConfig(targets, time.Second), "alerts.yml": string(rules),
	})
	s.prometheus, err = board.Connect(server.Addr())
	require.NoError(t, err)
	return s
}

// playScenarios plays all scenarios at once.
func (s *monitoredShops) playScenarios(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all errgroup.Group
	for _, scenario := range s.scenarios {
		all.Go(func() error {
			if err := scenario.Play(ctx, s.runByName[scenario.Name]); err != nil {
				return fmt.Errorf("%s: %w", scenario.Name, err)
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

// awaitScrapes waits until each job was scraped after the call, and returns the times of these scrapes.
func (s *monitoredShops) awaitScrapes(t *testing.T) map[string]time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	now, times := time.Now().Add(10*time.Millisecond), map[string]time.Time{} // later, because Prometheus aligns the times of scrapes
	for _, scenario := range s.scenarios {
		at, err := s.prometheus.AwaitScrape(ctx, scenario.Name, now)
		require.NoError(t, err)
		times[scenario.Name] = at
	}
	return times
}

// The test plays every scenario twice, after Prometheus has scraped the shops. Each scenario raises exactly the alerts that
// the scenario names. Every query of the dashboard returns the numbers in the ledger of the second time.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	s := newMonitoredShops(t)
	s.awaitScrapes(t)
	s.playScenarios(t)
	s.requireAlerts(t)

	first := map[string]traffic.Ledger{}
	from := s.awaitScrapes(t)
	for name, run := range s.runByName {
		first[name] = run.Ledger()
		run.ResetLedger()
	}
	s.playScenarios(t)
	to := s.awaitScrapes(t)
	panels, err := board.LoadPanels(filepath.Join(monitoringDir, "grafana.json"))
	require.NoError(t, err)
	for _, scenario := range s.scenarios {
		name := scenario.Name
		ledger := s.runByName[name].Ledger()
		t.Logf("%s: %+v", name, ledger)
		want := expectedNumbers(first[name], ledger)
		for _, panel := range panels {
			t.Run(name+"/"+panel.Title, func(t *testing.T) {
				s.requirePanel(t, panel, name, from[name], to[name], want)
			})
		}
		s.requireSums(t, name, from[name], to[name], first[name], ledger)
	}
	s.requireAlerts(t)
}

// requireAlerts waits until the pending and firing alerts are the alerts that the scenarios name. Alerts with "for" are
// pending.
func (s *monitoredShops) requireAlerts(t *testing.T) {
	t.Helper()
	want := map[string][]string{}
	for _, scenario := range s.scenarios {
		if scenario.Alerts != nil {
			want[scenario.Name] = scenario.Alerts
		}
	}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		alerts, err := s.prometheus.AlertsByJob(context.Background())
		require.NoError(t, err)
		require.Equal(t, want, alerts)
	}, time.Minute, 100*time.Millisecond)
	s.awaitScrapes(t) // meanwhile Prometheus evaluates the rules again
	alerts, err := s.prometheus.AlertsByJob(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, alerts)
}

// expectedNumbers returns the numbers that the panels show for the ledger l, by the titles of the panels and the names of the
// series. Series without an event may be absent. The ledger before has the events before the time of the panels.
func expectedNumbers(before, l traffic.Ledger) map[string]map[string]float64 {
	of := func(counts map[string]int, names ...string) map[string]float64 {
		some := map[string]float64{}
		for _, name := range names {
			some[name] = float64(counts[name])
		}
		return some
	}
	one := func(name string, n int) map[string]float64 { return map[string]float64{name: float64(n)} }
	unrecorded := before.Requests["unrecorded"] + l.Requests["unrecorded"] - before.Recoveries["recorded"] - l.Recoveries["recorded"]
	all := map[string]map[string]float64{
		"Requests":             one("", l.Sum()),
		"Replays":              {"": float64(l.Requests["replayed"]), "from the cache": float64(l.FromCache)},
		"Unprotected":          one("", l.Requests["unprotected"]),
		"Answers not recorded": one("", unrecorded),
		"Records restored":     one("", l.Requests["restored"]),
		"Requests by outcome":  {},
		"Refusals": of(l.Requests, "in-progress", "key-reused", "not-replayable", "replay-refused", "quota-exceeded",
			"outcome-unknown", "rejected"),
		"Store failures": of(l.Requests, "store-unavailable", "unprotected", "unrecorded", "restored"),
		"Errors by type": {},
		"Leases lost": {
			"": float64(l.LeasesLost), "leases lost": float64(l.LeasesLost), "claims taken over": float64(l.Requests["claim-lost"]),
		},
		"In progress":  {},
		"Claim":        one("", l.Sum()-l.Requests["rejected"]),
		"Handler":      one("", l.Runs),
		"Waiting":      one("", l.Waits),
		"Completion":   one("", l.Runs-l.Requests["unprotected"]),
		"Stored bytes": one("stored", l.Stored),
		"Abandoned operations": {
			"refused": float64(l.Requests["outcome-unknown"]), "resolved: happened": float64(l.Resolutions),
		},
	}
	all["Replays"]["from the store"] = float64(l.Requests["replayed"] - l.FromCache)
	for outcome, n := range l.Requests {
		all["Requests by outcome"][outcome] = float64(n)
	}
	for outcome, n := range l.Recoveries {
		all["Store failures"]["later: "+outcome] = float64(n)
	}
	for kind, n := range l.Errors {
		all["Errors by type"][kind] = float64(n)
	}
	return all
}

// requirePanel compares the numbers that a panel shows for job with want. The window begins and ends with a scrape, so the
// results of rate and increase are exact: Prometheus has nothing to extrapolate.
func (s *monitoredShops) requirePanel(
	t *testing.T, panel board.Panel, job string, from, to time.Time, want map[string]map[string]float64,
) {
	t.Helper()
	window := to.Sub(from)
	for _, target := range panel.Targets {
		numbers, err := s.prometheus.QueryNumbers(t.Context(), target, job, window, to)
		require.NoError(t, err)
		if panel.FieldConfig.Defaults.Unit == "s" {
			requireLatency(t, want[panel.Title], numbers)
			continue
		}
		for name, number := range numbers {
			if panel.FieldConfig.Defaults.Unit == "reqps" || panel.FieldConfig.Defaults.Unit == "Bps" {
				number *= window.Seconds()
			}
			require.InDelta(t, want[panel.Title][name], number, 0.001, "%s of %s", name, target.Expr)
			delete(want[panel.Title], name)
		}
	}
	if panel.Type == "stat" || panel.FieldConfig.Defaults.Unit == "s" {
		return
	}
	for name, number := range want[panel.Title] {
		require.True(t, name == "" || number == 0, "%v of %s is not shown", number, name)
	}
}

// requireLatency requires one plausible duration if the step has taken place, and none otherwise.
func requireLatency(t *testing.T, steps, durations map[string]float64) {
	t.Helper()
	if steps[""] == 0 {
		require.Empty(t, durations)
		return
	}
	require.Len(t, durations, 1)
	for name, seconds := range durations {
		require.Greater(t, seconds, 0.0, name) // fails for NaN, too
		require.Less(t, seconds, 60.0, name)
	}
}

// requireSums compares the counts of the duration metrics with the two ledgers.
func (s *monitoredShops) requireSums(t *testing.T, job string, from, to time.Time, before, l traffic.Ledger) {
	t.Helper()
	for metric, want := range map[string]int{
		"handler": before.Runs + l.Runs,
		"wait":    before.Waits + l.Waits,
		"claim": before.Sum() + l.Sum() - before.Requests["rejected"] - l.Requests["rejected"] -
			before.FromCache - l.FromCache,
	} {
		target := board.Target{Expr: `sum(idempotency_` + metric + `_duration_seconds_count{job="$job"}) or vector(0)`}
		numbers, err := s.prometheus.QueryNumbers(t.Context(), target, job, to.Sub(from), to)
		require.NoError(t, err)
		require.EqualValues(t, want, numbers[""], "%s of %s", metric, job)
	}
}

// promtool checks the syntax of the rules, and when the alerts fire.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("promtool")
	servertest.Require(t, err)
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(program, args...)
		cmd.Dir = monitoringDir
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}
