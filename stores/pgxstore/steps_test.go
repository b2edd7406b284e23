package pgxstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Handlers that hold all connections of the pool can still store the results of their steps.
func TestStepsOnAnEmptyPool(t *testing.T) {
	t.Parallel()
	const handlers = 4
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = handlers })
	for form, days := range map[string]int{"plain": 0, "partitions": 1} {
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
		runner, err := idempotency.NewRunner(pgxstore.New(pool, opts), idempotency.RunnerOptions{
			Logger: slog.New(slog.DiscardHandler), StoreTimeout: 20 * time.Second,
		})
		require.NoError(t, err)
		begun := make(chan struct{}, handlers)
		ended := make(chan error, handlers)
		for i := range handlers {
			go func() {
				handler := func(ctx context.Context) (idempotency.Response, error) {
					begun <- struct{}{}
					for len(begun) < handlers {
						time.Sleep(time.Millisecond)
					}
					return answer, pgx.BeginFunc(ctx, pool, func(pgx.Tx) error {
						_, err := step.Do(ctx, "charge", func(context.Context) (int, error) { return i, nil })
						return err
					})
				}
				_, _, err := runner.Do(t.Context(), keyOf(fmt.Sprint(i)), nil, handler)
				ended <- err
			}()
		}
		for range handlers {
			require.NoError(t, <-ended, form)
		}
	}
}

// If the server is at its connection limit, the step reports this before the deadline.
func TestStepOnABusyServer(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := "steps_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execStatement(t, direct, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 1 PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execStatement(t, direct, "GRANT ALL ON "+tableName(opts)+" TO "+role)
	pool := newPool(t, serverURL(t), limitToOne, func(c *pgxpool.Config) { c.ConnConfig.User = role })
	claim := withSteps(claimNewKey(t, pgxstore.New(pool, opts)))
	held, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer held.Release()
	brief, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = claim.Checkpoint(brief, "charge", []byte("1"))
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	_, err = claim.Checkpoints(brief)
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	held.Release()
	requireStep(t, claim, "charge", "1")
}

func withSteps(_ idempotency.Key, claim idempotency.Claim) idempotency.Checkpointer {
	return claim.(idempotency.Checkpointer)
}

// requireStep stores the first result of a step.
func requireStep(t testing.TB, claim idempotency.Checkpointer, name, result string) {
	t.Helper()
	stored, err := claim.Checkpoint(context.Background(), name, []byte(result))
	require.NoError(t, err)
	require.Equal(t, result, string(stored))
}

// requireSteps requires that an operation has exactly the steps want, as alternating names and results.
func requireSteps(t testing.TB, claim idempotency.Checkpointer, want ...string) {
	t.Helper()
	steps, err := claim.Checkpoints(context.Background())
	require.NoError(t, err)
	all := map[string][]byte{}
	for i := 0; i < len(want); i += 2 {
		all[want[i]] = []byte(want[i+1])
	}
	require.Equal(t, all, steps)
}

// Storing a step takes one round trip, and reading all steps takes one.
func TestRoundTripsOfSteps(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]pgxstore.Options{"plain": {}, "partitions": {PartitionDays: 1, SpareDays: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, proxy := newProxiedPool(t, limitToOne)
			store := pgxstore.New(pool, newTable(t, newPool(t, serverURL(t)), opts))
			for i := range 2 { // the first run prepares the statements
				claim := withSteps(claimNewKey(t, store))
				trips := func(want int, call func()) {
					before := proxy.Flights()
					call()
					if i > 0 {
						require.Equal(t, want, proxy.Flights()-before)
					}
				}
				trips(1, func() { requireStep(t, claim, "charge", "1") })
				trips(1, func() { requireStep(t, claim, "ship", "2") })
				trips(1, func() { requireSteps(t, claim, "charge", "1", "ship", "2") })
				trips(3, func() { requireStep(t, claim, "ship", "2") })
			}
		})
	}
}

// The table shows the steps of an operation until it is completed.
func TestColumnsOfSteps(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	const names = "SELECT coalesce(array_to_string(step_names, ' '), 'none') || cardinality(step_results) FROM "
	claim := withSteps(claimNewKey(t, pgxstore.New(pool, opts)))
	requireStep(t, claim, "charge", "1")
	requireStep(t, claim, "ship", "")
	require.Equal(t, "charge ship2", queryValue[string](t, pool, names+tableName(opts)))
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	require.True(t, queryValue[bool](t, pool, "SELECT step_names IS NULL AND step_results IS NULL FROM "+tableName(opts)))
}

// The request or the reply of a checkpoint is lost or late. The step is stored once.
func TestLostCheckpoint(t *testing.T) {
	t.Parallel()
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.HoldReply, servertest.HoldRequest,
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			pool, proxy := newProxiedPool(t, withoutPreparing)
			opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
			key, own := claimNewKey(t, pgxstore.New(pool, opts))
			claim := withSteps(key, own)
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			proxy.Inject(servertest.Rule{Fault: fault, Pattern: "idempotency: checkpoint "})
			stored, err := claim.Checkpoint(ctx, "charge", []byte("1"))
			require.NoError(t, err)
			require.Equal(t, "1", string(stored))
			require.Equal(t, 1, proxy.Strikes())
			proxy.Release() // the held message comes late
			stored, err = claim.Checkpoint(t.Context(), "charge", []byte("2"))
			require.NoError(t, err)
			require.Equal(t, "1", string(stored))
			entry, err := pgxstore.New(pool, opts).Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, []idempotency.StepSize{{Name: "charge", Bytes: 1}}, entry.Steps)
		})
	}
}

// Extend has seen that the record is gone. A step restores the record before Extend does. The step is kept.
func TestRestorationKeepsSteps(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		pool, proxy := newProxiedPool(t, withoutPreparing)
		opts := newTable(t, direct, pgxstore.Options{PartitionDays: days})
		claim := withSteps(claimNewKey(t, pgxstore.New(pool, opts)))
		requireStep(t, claim, "reserve", "0")
		execStatement(t, direct, "DELETE FROM "+tableName(opts))
		proxy.Inject(servertest.Rule{Fault: servertest.DelayReply, Pattern: "idempotency: extend"})
		extended := make(chan error, 1)
		go func() { extended <- claim.Extend(t.Context(), time.Hour) }()
		require.Eventually(t, func() bool { return proxy.Strikes() == 1 }, 10*time.Second, time.Millisecond)
		stored, err := claim.Checkpoint(t.Context(), "charge", []byte("1"))
		faults := slices.DeleteFunc([]error{err, <-extended}, func(err error) bool { return err == nil })
		require.NotEmpty(t, faults, form) // on a busy machine, one call may come too late to miss the record
		for _, err := range faults {
			require.ErrorIs(t, err, idempotency.ErrRestored, form)
		}
		require.Equal(t, "1", string(stored))
		requireSteps(t, claim, idempotency.RecordLost, "", "charge", "1")
		require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
		require.True(t, queryValue[bool](t, direct, "SELECT step_names IS NULL FROM "+tableName(opts)))
	}
}

// The steps of an expired operation appear neither in the next operation, nor in its own record if the record is
// restored.
func TestStepsExpire(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
		store := pgxstore.New(pool, opts)
		expire := func(key idempotency.Key) {
			forgeRecord(t, pool, opts, key, "expires_at = statement_timestamp() - interval '1 microsecond'")
		}
		key, own := claimNewKey(t, store)
		claim := withSteps(key, own)
		requireStep(t, claim, "charge", "1")
		expire(key)
		requireSteps(t, claim, idempotency.RecordLost, "")
		_, err := claim.Checkpoint(t.Context(), "ship", []byte("2"))
		require.ErrorIs(t, err, idempotency.ErrRestored, form)
		requireSteps(t, claim, idempotency.RecordLost, "", "ship", "2")
		expire(key)
		require.ErrorIs(t, claim.Extend(t.Context(), time.Hour), idempotency.ErrRestored, form)
		requireSteps(t, claim, idempotency.RecordLost, "")
		requireStep(t, claim, "reserve", "3")
		expire(key)
		_, next, err := store.Begin(t.Context(), key, attempt)
		require.NoError(t, err)
		requireSteps(t, withSteps(key, next))
		_, err = claim.Checkpoints(t.Context())
		require.ErrorIs(t, err, idempotency.ErrClaimLost, form)
	}
}

// The store reports forged steps. The operation can be claimed, inspected and completed.
func TestForgedSteps(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	for _, set := range []string{
		"step_names = NULL", "step_results = NULL", "step_names = '{}'", "step_results = '{}'", "step_names = '{NULL}'",
		"step_names = '{a,b}'", "step_results = step_results || step_results", "step_results = '{NULL}'",
	} {
		key, own := claimNewKey(t, store)
		claim := withSteps(key, own)
		requireStep(t, claim, "charge", "1")
		forgeRecord(t, pool, opts, key, set)
		_, err := claim.Checkpoints(t.Context())
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, set)
		require.NotErrorIs(t, err, idempotency.ErrClaimLost, set)
		_, err = store.Inspect(t.Context(), key)
		require.NoError(t, err, set)
		_, err = store.List(t.Context(), idempotency.ListRequest{})
		require.NoError(t, err, set)
		require.NoError(t, claim.Complete(t.Context(), answer, time.Hour), set)
	}
}

// If row-level security lets the role see the record but not change it, the step soon returns an error.
func TestStepsOfAHiddenRecord(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := "hidden_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execStatement(t, direct, "CREATE ROLE "+role+" LOGIN PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execStatement(t, direct, "GRANT SELECT, INSERT, UPDATE ON "+tableName(opts)+" TO "+role)
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.User = role })
	claim := withSteps(claimNewKey(t, pgxstore.New(pool, opts)))
	execStatement(t, direct, "ALTER TABLE "+tableName(opts)+" ENABLE ROW LEVEL SECURITY")
	execStatement(t, direct, "CREATE POLICY seen ON "+tableName(opts)+" FOR SELECT USING (true)")
	_, err := claim.Checkpoint(t.Context(), "charge", nil)
	require.ErrorContains(t, err, "row security")
}

// The standby may lack a result. The step waits until the standby has it, even if the step is repeated.
func TestStepWaitsForStandby(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pool := newPool(t, c.primary.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	claim := withSteps(claimNewKey(t, pgxstore.New(pool, opts)))
	require.NoError(t, c.standby.Pause())
	for range 2 {
		brief, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := claim.Checkpoint(brief, "charge", []byte("1"))
		cancel()
		require.Error(t, err)
		require.Equal(t, 1, queryValue[int](t, pool, "SELECT cardinality(step_names) FROM "+tableName(opts)), "others see it")
	}
	c.standby.Resume()
	requireStep(t, claim, "charge", "1")
}
