package probe_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/faulty"
)

// TestEffectsOfADeathComeLate hides the effect of the first request until the second request begins, as a database does that
// commits for a moment after the process has died. A late effect is no fault, but a missing effect and a second one are.
func TestEffectsOfADeathComeLate(t *testing.T) {
	tests := []struct {
		name       string
		fault      faulty.Fault
		want       probe.Status
		wantDetail string
	}{
		{name: "late", want: probe.Passed},
		{name: "twice", fault: faulty.ActsAgainAfterDeath, want: probe.Failed, wantDetail: "the service acted twice"},
		{name: "never", fault: faulty.RecordsBeforeEffect, want: probe.Failed, wantDetail: "never acted"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			service := startPayments(t, test.fault)
			service.Only, service.Deaths = []string{"deaths"}, 12
			countCharges, kill := service.Effects, service.Kill
			kills, isHidden := 0, false
			service.Kill = func(ctx context.Context) error {
				kills++
				return kill(ctx)
			}
			service.Effects = func(ctx context.Context) (int, error) {
				count, err := countCharges(ctx)
				if kills == 1 && !isHidden {
					isHidden = true
					count--
				}
				return count, err
			}
			result := requireResult(t, service, "deaths")
			assert.Equal(t, test.want, result.Status, result.Explain())
			assert.Contains(t, result.Detail, test.wantDetail)
			assert.True(t, isHidden)
		})
	}
}
