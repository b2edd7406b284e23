package steps_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/killtest"
	"github.com/idempotency-go/idempotency/internal/proof/effort"
)

// Processes are killed, and an operator resolves at random what they have abandoned. No operation ends twice, and none is
// stuck.
func TestOperatorOfKilledProcesses(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, 2)
	for _, kind := range []string{"redis", "postgres", "mysql", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			place, deaths := places[kind](t), max(10, effort.Of(500))
			store, err := open(kind, place)
			require.NoError(t, err)
			said, provider := killtest.NewOperations(), killtest.NewProvider(t)
			operator := killtest.NewOperator(store.(idempotency.Resolver))
			effects := filepath.Join(t.TempDir(), "effects")

			ctx, cancel := context.WithCancel(t.Context())
			var working sync.WaitGroup
			var failed error
			working.Go(func() { failed = operator.Work(ctx) })
			err = killtest.KillAll(deaths, said, provider.Env(),
				kindVariable+"="+kind, placeVariable+"="+place, effectsVariable+"="+effects)
			cancel()
			working.Wait()
			require.NoError(t, err)
			require.NoError(t, failed)
			require.NoError(t, operator.Finish(t.Context()))
			repeated, err := operator.Explain(t.Context(), said, effects)
			require.NoError(t, err)
			happened, not := operator.Counts()
			require.Positive(t, happened)
			require.Positive(t, not)
			effort.Count(t, "deaths", deaths)
			effort.Count(t, "operations that an operator has ended", happened+not)
			effort.Charges(t, provider)
			t.Logf("%d operations have happened, as the operator says, and %d have not; %d effects repeated after a death", happened, not, repeated)
		})
	}
}
