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

const monitoring = "../../adapters/otelidempotency/monitoring"

// stage has a shop for each scenario, and a Prometheus that scrapes them all.
type stage struct {
	scenarios  []traffic.Scenario
	runs       map[string]*traffic.Run
	prometheus board.Prometheus
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{scenarios: traffic.Scenarios(), runs: map[string]*traffic.Run{}}
	targets := map[string]string{}
	for _, scenario := range s.scenarios {
		run, err := traffic.Open(scenario, noop.NewTracerProvider())
		require.NoError(t, err)
		t.Cleanup(func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = run.Shop.Close(over) // some answers are never taken
		})
		s.runs[scenario.Name], targets[scenario.Name] = run, run.Shop.Addr
	}
	rules, err := os.ReadFile(filepath.Join(monitoring, "alerts.yml"))
	require.NoError(t, err)
	server := servertest.Prometheus(t, map[string]string{
		"prometheus.yml": board.Config(targets, time.Second), "alerts.yml": string(rules),
	})
	s.prometheus, err = board.Connect(server.Addr())
	require.NoError(t, err)
	return s
}

// play plays all scenarios at once.
func (s *stage) play(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all errgroup.Group
	for _, scenario := range s.scenarios {
		all.Go(func() error {
			if err := scenario.Play(ctx, s.runs[scenario.Name]); err != nil {
				return fmt.Errorf("%s: %w", scenario.Name, err)
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

// scraped waits until each job was scraped after now, and returns when that was.
func (s *stage) scraped(t *testing.T) map[string]time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	now, times := time.Now().Add(10*time.Millisecond), map[string]time.Time{} // Prometheus aligns the times of scrapes
	for _, scenario := range s.scenarios {
		at, err := s.prometheus.Scraped(ctx, scenario.Name, now)
		require.NoError(t, err)
		times[scenario.Name] = at
	}
	return times
}

// Every scenario is played twice, with a Prometheus that has scraped its shop before. The alerts that it raises are those
// that it names, and no others. Every query of the dashboard gives the numbers of the ledger of the second time.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.scraped(t)
	s.play(t)
	s.requireAlerts(t)

	first := map[string]traffic.Ledger{}
	from := s.scraped(t)
	for name, run := range s.runs {
		first[name] = run.Ledger()
		run.Forget()
	}
	s.play(t)
	to := s.scraped(t)
	panels, err := board.Load(filepath.Join(monitoring, "grafana.json"))
	require.NoError(t, err)
	for _, scenario := range s.scenarios {
		name := scenario.Name
		ledger := s.runs[name].Ledger()
		t.Logf("%s: %+v", name, ledger)
		want := expected(first[name], ledger)
		for _, panel := range panels {
			t.Run(name+"/"+panel.Title, func(t *testing.T) {
				s.requirePanel(t, panel, name, from[name], to[name], want)
			})
		}
		s.requireSums(t, name, from[name], to[name], first[name], ledger)
	}
	s.requireAlerts(t)
}

// requireAlerts checks which alerts are raised. Those with "for" wait.
func (s *stage) requireAlerts(t *testing.T) {
	t.Helper()
	want := map[string][]string{}
	for _, scenario := range s.scenarios {
		if scenario.Alerts != nil {
			want[scenario.Name] = scenario.Alerts
		}
	}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		alerts, err := s.prometheus.Alerts(context.Background())
		require.NoError(t, err)
		require.Equal(t, want, alerts)
	}, time.Minute, 100*time.Millisecond)
	s.scraped(t) // and the rules are evaluated again
	alerts, err := s.prometheus.Alerts(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, alerts)
}

// expected returns what the panels show of a ledger, by their titles and the names of their series. Series that are zero
// are left out.
func expected(before, l traffic.Ledger) map[string]map[string]float64 {
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
		"Completion":   one("", l.Runs-l.Requests["unprotected"]-l.Requests["abandoned"]),
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

// requirePanel checks what a panel shows of a job. The window begins and ends with a scrape, so that rate and increase
// extrapolate nothing: what they give is exact.
func (s *stage) requirePanel(
	t *testing.T, panel board.Panel, job string, from, to time.Time, want map[string]map[string]float64,
) {
	t.Helper()
	window := to.Sub(from)
	for _, target := range panel.Targets {
		numbers, err := s.prometheus.Numbers(t.Context(), target, job, window, to)
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

// requireLatency checks that there is a duration if the step has taken place.
func requireLatency(t *testing.T, steps, durations map[string]float64) {
	t.Helper()
	if steps[""] == 0 {
		require.Empty(t, durations)
		return
	}
	require.Len(t, durations, 1)
	for name, seconds := range durations {
		require.Greater(t, seconds, 0.0, name) // NaN is not
		require.Less(t, seconds, 60.0, name)
	}
}

// requireSums checks how many durations there are, and how many spans of time.
func (s *stage) requireSums(t *testing.T, job string, from, to time.Time, before, l traffic.Ledger) {
	t.Helper()
	for metric, want := range map[string]int{
		"handler": before.Runs + l.Runs,
		"wait":    before.Waits + l.Waits,
		"claim": before.Sum() + l.Sum() - before.Requests["rejected"] - l.Requests["rejected"] -
			before.FromCache - l.FromCache,
	} {
		target := board.Target{Expr: `sum(idempotency_` + metric + `_duration_seconds_count{job="$job"}) or vector(0)`}
		numbers, err := s.prometheus.Numbers(t.Context(), target, job, to.Sub(from), to)
		require.NoError(t, err)
		require.EqualValues(t, want, numbers[""], "%s of %s", metric, job)
	}
}

// promtool knows the syntax of the rules, and when alerts fire.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("promtool")
	servertest.Require(t, err)
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(program, args...)
		cmd.Dir = monitoring
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}
