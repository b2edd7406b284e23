package pgxstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var (
	happened    = idempotency.Resolution{Response: &answer, TTL: time.Hour}
	notHappened = idempotency.Resolution{Operator: "alice", Reason: "no charge", TTL: time.Hour}
)

// lapseLease sets the lease of a record to the past.
const lapseLease = "lease_until = now() - interval '1 second'"

// abandonKey claims a key, lets the lease lapse, and returns the entry.
func abandonKey(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) (idempotency.Key, idempotency.Entry) {
	t.Helper()
	store, key, request := pgxstore.New(pool, opts), keyOf(uuid.NewString()), attempt
	request.Lease = time.Millisecond
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	var entry idempotency.Entry
	require.Eventually(t, func() bool {
		entry, err = store.Inspect(t.Context(), key)
		return err == nil && entry.State == idempotency.StateAbandoned
	}, 30*time.Second, time.Millisecond)
	return key, entry
}

func TestOperatorsSeeChanges(t *testing.T) {
	t.Parallel()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		rowtest.OperatorsSeeChanges(t, newSubject(pool, opts, store), []rowtest.Change{
			{"attempt = attempt", nil, nil},
			{"created_at = created_at + interval '1 microsecond'", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
			{"attempt = attempt + 1", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
			{"lease_until = now() + interval '1 minute'", idempotency.ErrInProgress, idempotency.ErrInProgress},
			{"lease_until = NULL", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
			{"lease_until = NULL, status = 200, completed_at = now(), body = 'ok'",
				idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
			{"expires_at = now() - interval '1 second'", idempotency.ErrNoRecord, idempotency.ErrNoRecord},
			{"fingerprint = 'short'", nil, idempotency.ErrRecordInvalid},
			{"completed_at = now()", nil, idempotency.ErrRecordInvalid},
			{"lease_until = '-infinity'", nil, idempotency.ErrRecordInvalid},
		})
	})
}

// If a row changes while an operator waits for it, the operator's change reads the row again.
func TestOperatorsWaitForAClaim(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(context.Context, *pgxstore.Store, idempotency.Entry) error{
		"forget": func(ctx context.Context, s *pgxstore.Store, e idempotency.Entry) error { return s.Forget(ctx, e) },
		"resolve": func(ctx context.Context, s *pgxstore.Store, e idempotency.Entry) error {
			return s.Resolve(ctx, e, happened)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, pool := t.Context(), newPool(t, serverURL(t))
			opts := newTable(t, pool, pgxstore.Options{})
			key, entry := abandonKey(t, pool, opts)
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			operation := key.OperationID()
			_, err = tx.Exec(ctx, "UPDATE "+tableName(opts)+" SET attempt = 2, lease_until = now() + interval '1 minute' "+
				"WHERE operation = $1",
				operation)
			require.NoError(t, err)
			changed := make(chan error, 1)
			go func() { changed <- change(ctx, pgxstore.New(pool, opts), entry) }()
			require.Eventually(t, func() bool {
				return queryValue[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
					AND query LIKE '%idempotency: ' || $1 || '%' AND query LIKE '%' || $2 || '%')`, name, opts.Table)
			}, 30*time.Second, time.Millisecond)
			require.NoError(t, tx.Commit(ctx))
			require.ErrorIs(t, <-changed, idempotency.ErrInProgress)
			require.NotEmpty(t, dumpRecord(t, pool, opts, key))
		})
	}
}

// A step's transaction locks the record, so operators must wait. At read committed there is no such lock: an
// operator who ends the operation takes the claim from the step, and the row of the step is rolled back.
func TestResolveWhileAStepRuns(t *testing.T) {
	t.Parallel()
	for name, level := range map[string]pgx.TxIsoLevel{"read committed": "", "repeatable read": pgx.RepeatableRead} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			opts := newTable(t, pool, pgxstore.Options{Isolation: level})
			rows, store := newRows(t, pool, opts), pgxstore.New(pool, opts)
			key, claim := claimNewKey(t, store)
			_, err := runBookStep(claim, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), rows.insertStatement, "row")
				require.NoError(t, err)
				entry, err := store.Inspect(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, idempotency.StateRunning, entry.State)
				if level == "" {
					forgeRecord(t, pool, opts, key, "lease_until = now() - interval '1 second'")
					require.NoError(t, store.Resolve(t.Context(), entry, happened))
					return nil
				}
				require.ErrorIs(t, store.Resolve(t.Context(), entry, happened), idempotency.ErrInProgress)
				require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrInProgress)
				return nil
			})
			if level == "" {
				require.ErrorIs(t, err, idempotency.ErrClaimLost)
				require.Zero(t, rows.countRows(t, "row"))
				requireReplay(t, store, key)
			} else {
				require.NoError(t, err)
				require.Equal(t, 1, rows.countRows(t, "row"))
			}
		})
	}
}

// The table shows the last resolution beside the steps.
func TestColumnsOfAResolution(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key, own := claimNewKey(t, store)
	requireStep(t, withSteps(key, own), "ship", "1")
	requireStep(t, withSteps(key, own), "charge", "2")
	for _, reason := range []string{"first", "second: \x00\xff", ""} { // sealed reasons are binary
		forgeRecord(t, pool, opts, key, lapseLease)
		entry, err := store.Inspect(t.Context(), key)
		require.NoError(t, err)
		resolution := notHappened
		resolution.Operator, resolution.Reason = "alice", reason
		require.NoError(t, store.Resolve(t.Context(), entry, resolution))
		require.Equal(t, []string{"ship", "charge"}, queryValue[[]string](t, pool, "SELECT step_names FROM "+tableName(opts)))
		stored := string(queryValue[[]byte](t, pool, "SELECT resolved FROM "+tableName(opts)))
		require.True(t, strings.HasPrefix(stored, "resolved/1 not-happened attempt=1 at="), stored)
		require.True(t, strings.HasSuffix(stored, " operator=5\nalice\n"+reason), stored)
		entry, err = store.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, reason, entry.Resolved.Reason)
		require.Equal(t, []idempotency.StepSize{{Name: "charge", Bytes: 1}, {Name: "ship", Bytes: 1}}, entry.Steps)
	}
}

// A resolution does not make forged steps readable. An answer removes them.
func TestResolveForgedSteps(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	for _, set := range []string{
		"step_names = NULL", "step_results = NULL", "step_names = '{}'", "step_results = '{}'", "step_names = '{NULL}'",
		"step_names = '{a,b}'", "step_results = step_results || step_results", "step_results = '{NULL}'",
	} {
		key, own := claimNewKey(t, store)
		requireStep(t, withSteps(key, own), "charge", "1")
		forgeRecord(t, pool, opts, key, set+", "+lapseLease)
		resolve := func(resolution idempotency.Resolution) {
			entry, err := store.Inspect(t.Context(), key)
			require.NoError(t, err, set)
			require.NoError(t, store.Resolve(t.Context(), entry, resolution), set)
		}
		resolve(notHappened)
		_, next, err := store.Begin(t.Context(), key, attempt)
		require.NoError(t, err, set)
		_, err = next.(idempotency.Checkpointer).Checkpoints(t.Context())
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, set)
		forgeRecord(t, pool, opts, key, lapseLease)
		resolve(happened)
		requireReplay(t, store, key)
	}
}

// The request or the reply of Resolve is lost or late. The operation is resolved once, and Resolve reports success.
func TestLostResolve(t *testing.T) {
	t.Parallel()
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.HoldReply, servertest.HoldRequest,
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			pool, proxy := newProxiedPool(t, withoutPreparing)
			opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
			for i, resolution := range []idempotency.Resolution{happened, notHappened} {
				key, entry := abandonKey(t, pool, opts)
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: "idempotency: resolve", Times: 1})
				require.NoError(t, pgxstore.New(pool, opts).Resolve(ctx, entry, resolution))
				cancel()
				require.Equal(t, 1, proxy.Strikes())
				proxy.Release() // the held message comes late, and changes nothing
				after, err := pgxstore.New(pool, opts).Inspect(t.Context(), key)
				require.NoError(t, err)
				want := []idempotency.State{idempotency.StateCompleted, idempotency.StateReleased}[i]
				require.Equal(t, want, after.State)
			}
		})
	}
}

// The reply is lost, and another request comes before Resolve asks again. Resolve returns no error that promises an
// outcome.
func TestResolveInDoubt(t *testing.T) {
	t.Parallel()
	pool, proxy := newProxiedPool(t, withoutPreparing)
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	key, entry := abandonKey(t, pool, opts)
	proxy.Inject(servertest.Rule{Fault: servertest.HoldReply, Pattern: "idempotency: resolve", Times: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resolved := make(chan error, 1)
	go func() { resolved <- pgxstore.New(pool, opts).Resolve(ctx, entry, notHappened) }()
	require.Eventually(t, func() bool { return proxy.Strikes() == 1 }, 5*time.Second, time.Millisecond)
	var own idempotency.Claim
	require.Eventually(t, func() bool {
		_, claim, err := pgxstore.New(direct, opts).Begin(t.Context(), key, attempt)
		own = claim
		return err == nil && claim != nil
	}, 4*time.Second, time.Millisecond)
	err := <-resolved
	require.ErrorContains(t, err, "in doubt")
	for _, promise := range []error{idempotency.ErrInProgress, idempotency.ErrEntryChanged, idempotency.ErrNoRecord} {
		require.NotErrorIs(t, err, promise)
	}
	require.NoError(t, own.Complete(t.Context(), answer, time.Hour))
}

// The standby may lack a resolution. Resolve waits until the standby has it, even if Resolve asks again.
func TestResolveWaitsForStandby(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pool := newPool(t, c.primary.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	_, entry := abandonKey(t, pool, opts)
	require.NoError(t, c.standby.Pause())
	brief, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.Error(t, pgxstore.New(pool, opts).Resolve(brief, entry, happened))
	require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE status = 201"), "others see it")
	c.standby.Resume()
}

// A record is kept no longer than there are partitions.
func TestResolveForTooLong(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1})
	_, entry := abandonKey(t, pool, opts)
	long := happened
	long.TTL = 25 * time.Hour
	require.ErrorContains(t, pgxstore.New(pool, opts).Resolve(t.Context(), entry, long), "PartitionDays")
}
