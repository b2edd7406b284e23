package pgxstore_test

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// newAttempt returns a request for a claim whose record is kept for ttl.
func newAttempt(ttl time.Duration) idempotency.ClaimRequest {
	request := attempt
	request.TTL = ttl
	return request
}

// completeKey executes an operation whose record is kept for ttl, and returns the record of its claim.
func completeKey(t testing.TB, store idempotency.Store, key idempotency.Key, ttl time.Duration) idempotency.Record {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), key, newAttempt(ttl))
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.NoError(t, claim.Complete(context.Background(), answer, ttl))
	return record
}

// requireReplay requires that the key has a stored answer.
func requireReplay(t testing.TB, store idempotency.Store, key idempotency.Key) {
	t.Helper()
	record, _, err := store.Begin(context.Background(), key, attempt)
	require.NoError(t, err)
	require.NotNil(t, record.Response)
}

// A record of today expires today or, if it is kept for a day, tomorrow. The store does not read the partitions of
// other days.
func TestDaysInReach(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 7}, "2030-01-10 00:30:00+00")
	set("2030-01-11 00:30:00+00")
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
	for at, want := range map[string]int{ // number of read days, of ten
		"2030-01-11 00:30:00+00": 3, // yesterday may still exist
		"2030-01-11 12:00:00+00": 2,
		"2030-01-11 23:30:00+00": 3, // the clock may be set back
	} {
		set(at)
		removed := regexp.MustCompile(`Subplans Removed: (\d+)`).FindStringSubmatch(readGenericPlan(t, pool, opts))
		require.NotNil(t, removed, at)
		n, err := strconv.Atoi(removed[1])
		require.NoError(t, err)
		require.Equal(t, want, 10-n, at)
	}
}

func TestClockOfTheServerIsSetBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1}, "2030-01-11 00:30:00+00")
	store := pgxstore.New(pool, opts)
	completeKey(t, store, keyOf("1"), 24*time.Hour)
	set("2030-01-10 23:31:00+00")
	requireReplay(t, store, keyOf("1"))
}

// An hour after midnight, a new record is created although an old one exists. If the clock is set back, both are
// visible. The new record counts, both for attempts and for the owner of the old record.
func TestClockIsSetBackToAnOldRecord(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	completeKey(t, store, keyOf("1"), time.Hour)
	_, late, err := pgxstore.New(pool, opts).Begin(ctx, keyOf("late"), newAttempt(time.Hour))
	require.NoError(t, err)
	set("2030-01-11 01:00:01+00")
	completeKey(t, store, keyOf("1"), 24*time.Hour)
	completeKey(t, store, keyOf("late"), 24*time.Hour)
	set("2030-01-11 00:59:59+00")
	requireReplay(t, store, keyOf("1"))
	require.ErrorIs(t, late.Complete(ctx, answer, time.Hour), idempotency.ErrClaimLost)
	requireReplay(t, store, keyOf("late"))
	require.Equal(t, 4, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
}

// Records of a day that ended an hour ago count as deleted, whether Maintain has dropped the day or not.
func TestRecordsOfADayThatIsOver(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	rows := func() int { return queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)) }
	first := completeKey(t, store, keyOf("1"), time.Hour)
	_, late, err := store.Begin(ctx, keyOf("late"), newAttempt(time.Hour))
	require.NoError(t, err)

	set("2030-01-11 01:30:00+00")
	require.ErrorIs(t, late.Complete(ctx, answer, time.Hour), idempotency.ErrRestored)
	requireReplay(t, store, keyOf("late"))
	before := rows()
	second := completeKey(t, store, keyOf("1"), 24*time.Hour)
	require.True(t, second.Created.After(first.Created))
	require.Equal(t, 1, second.Attempt)
	require.Equal(t, before+1, rows(), "the old one is left to Maintain")
	requireReplay(t, store, keyOf("1"))
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(ctx))
	require.Equal(t, 2, rows())
	requireReplay(t, store, keyOf("1"))
}

// The store would never find a record that is kept for longer than PartitionDays.
func TestTTLBeyondPartitionDays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1})
	const day, long = 24 * time.Hour, 24*time.Hour + 1
	store := pgxstore.New(pool, opts)
	_, _, err := store.Begin(ctx, keyOf("1"), newAttempt(long))
	require.ErrorContains(t, err, "PartitionDays is 1, too few for records kept for 24h")
	require.Nil(t, testservice.InDoubt(err))
	_, claim, err := store.Begin(ctx, keyOf("1"), newAttempt(day))
	require.NoError(t, err)
	require.ErrorContains(t, claim.Extend(ctx, long), "PartitionDays")
	require.ErrorContains(t, claim.Release(ctx, idempotency.Release{TTL: long}), "PartitionDays")
	require.ErrorContains(t, claim.Complete(ctx, answer, long), "PartitionDays")
	require.NoError(t, claim.Complete(ctx, answer, day), "none of them has ended the claim")
}

// Another process uses a longer TTL than this one.
func TestCheckOfRecordsBeyondPartitionDays(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 3})
	completeKey(t, pgxstore.New(pool, opts), keyOf("1"), 72*time.Hour)
	require.Equal(t, onlyFsync, findUnsafeSettings(t, pgxstore.New(pool, opts)))
	opts.PartitionDays = 1
	unready, ok := errors.AsType[*pgxstore.UnreadyTable](pgxstore.New(pool, opts).Check(t.Context()))
	require.True(t, ok)
	require.Equal(t, "set PartitionDays to the longest TTL", unready.Remedy)
}
