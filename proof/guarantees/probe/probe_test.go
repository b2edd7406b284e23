package probe_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// TestProbeFindsNothing makes all checks of each service. Two processes share the data, and one of them is killed.
func TestProbeFindsNothing(t *testing.T) {
	t.Parallel()
	for name, s := range services {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := s.startData(t)
			first, firstURL := startInstance(t, name, data.place, data.env)
			_, secondURL := startInstance(t, name, data.place, data.env)
			payments := describePayments()
			payments.URLs = []string{firstURL, secondURL}
			payments.Effects, payments.Kill, payments.Start = data.countCharges, first.kill, first.start
			requireNothingFound(t, payments, s.decided, nil)

			payments.Only = []string{"while-running"}
			payments.Slow = testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "1500ms"}`) // outlasts the lease
			report, err := probe.MakeChecks(t.Context(), payments, nil)
			require.NoError(t, err)
			requirePassed(t, report, slices.DeleteFunc(checkNames(), func(name string) bool { return name == "while-running" }))
		})
	}
}

// requireNothingFound makes all checks of service. Each must pass, except those of notMade, which has the reasons. The decisions
// must be those of decided.
func requireNothingFound(t *testing.T, service probe.Service, decided, notMade map[string]string) {
	t.Helper()
	service.Deaths = max(4, effort.Of(200)) // with fewer, not each instant of a death occurs
	service.MaxRequests = 100_000
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	requirePassed(t, report, slices.Collect(maps.Keys(notMade)))
	seen := make(map[string]string)
	for _, decision := range report.Decisions() {
		if first, isKnown := seen[decision.Name]; isKnown {
			assert.Equal(t, first, decision.Value, decision.Name)
		}
		seen[decision.Name] = decision.Value
	}
	assert.Equal(t, decided, seen)
	effort.Count(t, "requests", report.Requests)
	effort.Count(t, "checks passed", report.Count(probe.Passed))
	if service.Kill != nil {
		effort.Count(t, "deaths", service.Deaths)
	}
}

// requirePassed requires that each check has passed, except those of notMade, which must not have been made.
func requirePassed(t *testing.T, report *probe.Report, notMade []string) {
	t.Helper()
	for _, result := range report.Results {
		if slices.Contains(notMade, result.Name) {
			assert.Contains(t, []probe.Status{probe.NotMade, probe.Skipped}, result.Status, result.Explain())
			continue
		}
		if result.Name == "deaths" && result.Status == probe.PartlyMade {
			t.Log("few deaths, and none within the short time of a request")
			continue
		}
		assert.Equal(t, probe.Passed, result.Status, result.Explain())
		for _, note := range result.Notes {
			t.Logf("%s: %s", result.Name, note)
		}
	}
}

func checkNames() (names []string) {
	for _, check := range probe.Checks() {
		names = append(names, check.Name)
	}
	return names
}
