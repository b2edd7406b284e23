package probe_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/faulty"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// seededFaults has the check that finds each fault.
var seededFaults = map[faulty.Fault][]string{
	faulty.IgnoresHeader:          {"replay"},
	faulty.PanicsWithoutKey:       {"key-missing"},
	faulty.EmptyKeyIsKey:          {"key-empty"},
	faulty.CutsKeys:               {"key-too-long"},
	faulty.FoldsKeys:              {"key-case"},
	faulty.FailsOnUnicode:         {"key-not-ascii"},
	faulty.SkipsTwoKeys:           {"key-twice"},
	faulty.FailsOnQuotes:          {"key-quoted"},
	faulty.KeyWithoutUser:         {"other-user"},
	faulty.KeyWithoutPath:         {"other-route"},
	faulty.NoFingerprint:          {"other-content"},
	faulty.FingerprintWithLength:  {"chunked-body"},
	faulty.FingerprintWithVersion: {"http2"},
	faulty.FingerprintWithTracing: {"replay-later"},
	faulty.FingerprintOfBegin:     {"large-body"},
	faulty.FingerprintPerProcess:  {"other-content"},
	faulty.IgnoresKey:             {"replay"},
	faulty.SkipsLargeBodies:       {"large-body"},
	faulty.FailsOnCompressed:      {"compressed-body"},
	faulty.ClaimsBeforeBody:       {"cut-request"},
	faulty.ActsBeforeBody:         {"cut-request"},
	faulty.ActsBeforeClaim:        {"replay"},
	faulty.ChecksThenSets:         {"at-once-2"},
	faulty.LocksPerProcess:        {"at-once-20"},
	faulty.RecordsPerProcess:      {"replay-elsewhere", "replay-after-restart"},
	faulty.LocksForEver:           {"deaths"},
	faulty.LeaseNotRenewed:        {"while-running"},
	faulty.RefusesWith400:         {"at-once-2"},
	faulty.FailsOnDuplicate:       {"at-once-2", "while-running"},
	faulty.ReleasedByDuplicate:    {"while-running"},
	faulty.AnswersEmpty:           {"at-once-100"},
	faulty.SharesRunningAnswer:    {"other-content-at-once"},
	faulty.EndsWithClient:         {"client-timeout"},
	faulty.ClaimLeftByClient:      {"cut-after-request"},
	faulty.FreedByClient:          {"client-timeout"},
	faulty.BlockedByInvalid:       {"invalid-request"},
	faulty.BlockedByFailure:       {"failed-request"},
	faulty.StoresFailure:          {"failed-request"},
	faulty.FreedAfterEffect:       {"failed-request"},
	faulty.RecordsBeforeEffect:    {"deaths"},
	faulty.RecordsAfterAnswer:     {"deaths"},
	faulty.ActsAgainAfterDeath:    {"deaths"},
	faulty.RecordsReadAnswers:     {"cut-answer"},
	faulty.RecordsSentPart:        {"stream"},
	faulty.SkipsLargeAnswers:      {"stream"},
	faulty.ForgetsSoon:            {"replay-later"},
	faulty.LosesHeaders:           {"replay"},
	faulty.JoinsValues:            {"replay"},
	faulty.RepeatsHeaders:         {"replay"},
	faulty.RunsHandlerAgain:       {"replay", "stream"},
	faulty.LosesStatus:            {"replay"},
	faulty.ReencodesBody:          {"replay"},
	faulty.ReplaysCompressed:      {"compressed-answer"},
}

func TestProbeFindsEachFault(t *testing.T) {
	for fault, checks := range seededFaults {
		for _, check := range checks {
			t.Run(fmt.Sprintf("%s/%s", check, fault), func(t *testing.T) {
				t.Parallel()
				service := startPayments(t, fault)
				service.Only = []string{check}
				if fault == faulty.LeaseNotRenewed {
					service.Slow = testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "600ms"}`)
				}
				if fault == faulty.StoresFailure {
					service.Decided = map[string]string{"failed-request": "free"}
				}
				var result probe.Result
				for attempt := 0; attempt < 5 && result.Status != probe.Failed; attempt++ {
					result = requireResult(t, service, check) // may meet the fault at no instant, on a busy machine
				}
				assert.Equal(t, probe.Failed, result.Status, result.Explain())
				assert.NotEmpty(t, result.Exchanges)
				t.Log(result.Explain())
			})
		}
	}
}

// requireResult makes the checks of service, and returns the result of one of them.
func requireResult(t *testing.T, service probe.Service, check string) probe.Result {
	t.Helper()
	report, err := probe.MakeChecks(t.Context(), service, nil)
	require.NoError(t, err)
	for _, result := range report.Results {
		if result.Name == check {
			return result
		}
	}
	require.Fail(t, "no such check", check)
	return probe.Result{}
}

// TestEachCheckFindsAFault shows that a check that finds nothing would be noticed.
func TestEachCheckFindsAFault(t *testing.T) {
	finding := map[string]bool{"told": true} // told only informs
	for _, checks := range seededFaults {
		for _, check := range checks {
			finding[check] = true
		}
	}
	for _, check := range probe.Checks() {
		assert.True(t, finding[check.Name], "no seeded fault is found by %s", check.Name)
	}
}

func TestProbeFindsNothingInACorrectService(t *testing.T) {
	probe.Run(t, startPayments(t, ""))
}
