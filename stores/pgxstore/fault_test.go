package pgxstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// effectsTable counts the effects of the operations of a test.
type effectsTable struct {
	pool  *pgxpool.Pool
	table string
}

func newLedger(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) effectsTable {
	l := effectsTable{pool, `"ledger of ` + opts.Table + `"`}
	execStatement(t, pool, "CREATE TABLE "+l.table+" (key text NOT NULL)")
	return l
}

func (l effectsTable) insertStatement() string {
	return "INSERT INTO " + l.table + " (key) VALUES ($1)"
}

func (l effectsTable) countEffects(t testing.TB, key idempotency.Key) int {
	return queryValue[int](t, l.pool, "SELECT count(*) FROM "+l.table+" WHERE key = $1", key.ID)
}

// The request or the reply of each statement is lost or late.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		statement string
		fault     servertest.Fault
	}{
		{"idempotency: claim", servertest.LoseRequest},
		{"idempotency: claim", servertest.LoseReply},
		{"idempotency: claim", servertest.HoldReply},
		{"idempotency: claim", servertest.HoldRequest},
		{"idempotency: complete", servertest.LoseRequest},
		{"idempotency: complete", servertest.LoseReply},
		{"idempotency: complete", servertest.HoldReply},   // the answer is right whether it is stored or not
		{"idempotency: complete", servertest.HoldRequest}, // the same holds
	} {
		t.Run(c.statement+"/"+string(c.fault), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			direct := newPool(t, serverURL(t))
			pool, proxy := newProxiedPool(t, withoutPreparing)
			opts := newTable(t, direct, pgxstore.Options{})
			l := newLedger(t, direct, opts)
			key := keyOf("1")

			work := func(ctx context.Context) (idempotency.Response, error) {
				execStatement(t, direct, l.insertStatement(), key.ID)
				return answer, nil
			}
			store := pgxstore.New(pool, opts)
			settings := idempotency.RunnerOptions{StoreTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}
			runner, err := idempotency.NewRunner(store, settings)
			require.NoError(t, err)
			settings.Wait = 10 * time.Second // gives the server time to notice the end of a session
			patient, err := idempotency.NewRunner(store, settings)
			require.NoError(t, err)

			proxy.Inject(servertest.Rule{Fault: c.fault, Pattern: c.statement})
			_, replayed, err := runner.Do(ctx, key, nil, work)
			require.Equal(t, 1, proxy.Strikes())
			require.NoError(t, err)
			require.False(t, replayed)
			require.Eventually(t, func() bool {
				s := pool.Stat()
				return s.TotalConns() == s.IdleConns()
			}, 20*time.Second, 10*time.Millisecond, "pgx has asked the server to cancel what it gave up")
			proxy.Release() // what was held comes late

			resp, replayed, err := patient.Do(ctx, key, nil, work)
			require.NoError(t, err)
			require.Equal(t, answer, resp)
			require.Equal(t, 1, l.countEffects(t, key))
			require.True(t, replayed)
		})
	}
}

// If the reply to a claim is lost for good, the claim can be released by its token, whether it was granted or not.
func TestReleaseOfAnUnansweredClaim(t *testing.T) {
	t.Parallel()
	for form, days := range map[string]int{"plain": 0, "partitions": 1} {
		for _, c := range []struct {
			fault        servertest.Fault
			releaseError error // error of the release
			nextAttempt  int   // number of the next attempt
		}{
			{servertest.LoseReply, nil, 2},
			{servertest.HoldReply, nil, 2},
			{servertest.LoseRequest, idempotency.ErrClaimLost, 1},
		} {
			t.Run(form+"/"+string(c.fault), func(t *testing.T) {
				t.Parallel()
				ctx := context.Background()
				pool, proxy := newProxiedPool(t, withoutPreparing)
				store := pgxstore.New(pool, newTable(t, newPool(t, serverURL(t)), pgxstore.Options{PartitionDays: days}))
				inVain := func(key idempotency.Key) idempotency.Claim {
					brief, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					// The outage also stops a retry that is on its way when the context ends.
					proxy.Inject(servertest.Rule{Fault: c.fault, Pattern: "idempotency: claim", Outage: time.Hour})
					defer proxy.Inject(servertest.Rule{})
					_, _, err := store.Begin(brief, key, attempt)
					claim := testservice.InDoubt(err)
					require.NotNil(t, claim, "%v", err)
					return claim
				}
				free, held := keyOf("1"), completeNewKey(t, store)

				claim := inVain(free)
				require.ErrorIs(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}), c.releaseError)
				record, next, err := store.Begin(ctx, free, attempt)
				require.NoError(t, err)
				require.NotNil(t, next)
				require.Equal(t, c.nextAttempt, record.Attempt)
				require.ErrorIs(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
				require.NoError(t, next.Complete(ctx, answer, time.Hour))

				require.ErrorIs(t, inVain(held).Release(ctx, idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
				record, _, err = store.Begin(ctx, held, attempt)
				require.NoError(t, err)
				require.Equal(t, answer, *record.Response)
			})
		}
	}
}

// If the server has refused a claim, the error contains no claim to release.
func TestNoClaimBesideAnError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _, err := pgxstore.New(newPool(t, serverURL(t)), pgxstore.Options{Table: "missing"}).Begin(ctx, keyOf("1"), attempt)
	require.Error(t, err)
	require.Nil(t, testservice.InDoubt(err))
}

// The request or the reply of a claim's call is lost or late. The call asks again, and finds the result.
func TestLostSteps(t *testing.T) {
	t.Parallel()
	type step struct {
		statement string
		run       func(context.Context, idempotency.Claim) error
		wantState string // state of the record
	}
	const state = `SELECT CASE WHEN status IS NOT NULL THEN 'completed' WHEN lease_until IS NULL THEN 'released'
		WHEN lease_until > now() + interval '30 minutes' THEN 'extended' ELSE 'claimed' END FROM %s WHERE key = $1`
	for _, s := range []step{
		{"idempotency: extend", func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Hour) },
			"extended"},
		{"idempotency: release", func(ctx context.Context, c idempotency.Claim) error {
			return c.Release(ctx, idempotency.Release{TTL: time.Hour})
		},
			"released"},
		{"idempotency: complete", func(ctx context.Context, c idempotency.Claim) error {
			return c.Complete(ctx, answer,
				time.Hour)
		}, "completed"},
	} {
		for _, fault := range []servertest.Fault{
			servertest.LoseRequest, servertest.LoseReply, servertest.HoldReply, servertest.HoldRequest,
		} {
			t.Run(s.statement+"/"+string(fault), func(t *testing.T) {
				t.Parallel()
				direct := newPool(t, serverURL(t))
				pool, proxy := newProxiedPool(t, withoutPreparing)
				opts := newTable(t, direct, pgxstore.Options{})
				key, claim := claimNewKey(t, pgxstore.New(pool, opts))

				ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second) // a held message takes a part of this time
				defer cancel()
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: s.statement})
				require.NoError(t, s.run(ctx, claim))
				require.Equal(t, 1, proxy.Strikes())
				sql := fmt.Sprintf(state, tableName(opts))
				require.Equal(t, s.wantState, queryValue[string](t, direct, sql, key.ID))
				proxy.Release() // what was held comes late
				require.Equal(t, s.wantState, queryValue[string](t, direct, sql, key.ID), "and changes nothing")
				require.NoError(t, s.run(ctx, claim), "it may be repeated")
				require.Equal(t, s.wantState, queryValue[string](t, direct, sql, key.ID))
			})
		}
	}
}

// A restart of the server costs no claim and no answer.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := servertest.Postgres(t)
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	before := completeNewKey(t, store)
	_, open := claimNewKey(t, store)
	require.NoError(t, db.Restart())

	record, _, err := store.Begin(ctx, before, attempt)
	require.NoError(t, err, "a pooled connection that is broken is replaced")
	require.Equal(t, answer, *record.Response)
	require.NoError(t, open.Complete(ctx, answer, time.Hour))
}
