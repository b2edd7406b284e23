package steps_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// The test kills processes, and an operator resolves their abandoned operations at random. No operation ends twice, and every
// operation ends.
func TestOperatorOfKilledProcesses(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, 2)
	for _, kind := range []string{"redis", "postgres", "mysql", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			place := preparePlace[kind](t)
			store, err := openStore(kind, place)
			require.NoError(t, err)
			said, provider := killtest.NewOperations(), killtest.NewProvider(t)
			operator := killtest.NewOperator(store.(idempotency.Resolver))
			effects := filepath.Join(t.TempDir(), "effects")
			kill := func(n int) {
				ctx, cancel := context.WithCancel(t.Context())
				var working sync.WaitGroup
				var failed error
				working.Go(func() { failed = operator.Work(ctx) })
				err := killtest.KillAll(n, said, provider.Env(),
					kindVariable+"="+kind, placeVariable+"="+place, effectsVariable+"="+effects)
				cancel()
				working.Wait()
				require.NoError(t, err)
				require.NoError(t, failed)
				require.NoError(t, operator.Finish(t.Context()))
			}

			deaths, happened, not := 0, 0, 0
			// The loop kills more processes if the operator has given only one kind of verdict, as can happen after few deaths.
			for deaths == 0 || deaths < 200 && (happened == 0 || not == 0) {
				n := max(10, effort.Of(500))
				kill(n)
				deaths += n
				happened, not = operator.Counts()
			}
			repeated, err := operator.Explain(t.Context(), said, effects)
			require.NoError(t, err)
			require.Positive(t, happened)
			require.Positive(t, not)
			effort.Count(t, "deaths", deaths)
			effort.Count(t, "operations that an operator has ended", happened+not)
			effort.Charges(t, provider)
			t.Logf("%d operations have happened, as the operator says, and %d have not; %d effects repeated after a death",
				happened, not, repeated)
		})
	}
}
