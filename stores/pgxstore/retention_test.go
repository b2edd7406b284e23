package pgxstore_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// readRetention returns how long the record of a key is kept, by the table's clock, which stands still.
func readRetention(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, now string, key idempotency.Key) time.Duration {
	operation := key.OperationID()
	require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE operation = $1", operation))
	require.True(t, queryValue[bool](t, pool, "SELECT expires_minute = date_bin('1 minute', expires_at, 'epoch') FROM "+
		tableName(opts)+" WHERE operation = $1", operation))
	return time.Duration(queryValue[int64](t, pool, "SELECT extract(epoch FROM expires_at - $2::text::timestamptz)::bigint FROM "+
		tableName(opts)+" WHERE operation = $1", operation, now)) * time.Second
}

// A refused request is kept for two leases. A record of an operation that may have taken effect is kept for the rest
// of its TTL, whatever comes later.
func TestRetentionOfReleasedRecords(t *testing.T) {
	t.Parallel()
	const (
		refused = http.StatusTooManyRequests
		failed  = http.StatusInternalServerError
		lease   = 30 * time.Second
		ttl     = 24 * time.Hour
	)
	for name, c := range map[string]struct {
		statuses []int // of requests that are ten seconds apart
		want     time.Duration
	}{
		"refused":                  {[]int{refused}, 2 * lease},
		"refused twice":            {[]int{refused, refused}, 2 * lease},
		"failed":                   {[]int{failed}, ttl},
		"failed, then refused":     {[]int{failed, refused}, ttl - 10*time.Second},
		"failed, refused twice":    {[]int{failed, refused, refused}, ttl - 20*time.Second},
		"refused, then failed":     {[]int{refused, failed}, ttl},
		"refused, failed, refused": {[]int{refused, failed, refused}, ttl - 10*time.Second},
	} {
		for form, days := range map[string]int{"plain": 0, "partitions": 2} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t))
				start := time.Date(2030, 1, 10, 23, 59, 30, 0, time.UTC) // so records move to another day
				opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: days}, start.Format(time.RFC3339))
				s := newService(t, pgxstore.New(pool, opts), idempotency.Options{Lease: lease, TTL: ttl})
				key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: uuid.NewString()}
				var now string
				for i, answer := range c.statuses {
					now = start.Add(time.Duration(i) * 10 * time.Second).Format(time.RFC3339)
					set(now)
					s.nextStatus.Store(int64(answer))
					status, _ := s.sendRequest(t, key.User, key.ID)
					require.Equal(t, answer, status)
				}
				require.Equal(t, int64(len(c.statuses)), s.runCount.Load())
				require.Equal(t, c.want, readRetention(t, pool, opts, now, key))
			})
		}
	}
}

// The claim of a further attempt reports how long the record would have been kept. A new operation replaces no
// record.
func TestRemaining(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		t.Run(form, func(t *testing.T) {
			const start = "2030-01-10 12:00:00+00"
			opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: days}, start)
			store := pgxstore.New(pool, opts)
			key := keyOf("1")
			again := attempt
			again.TakeOver = true
			begin := func() (idempotency.Record, idempotency.Claim) {
				record, claim, err := store.Begin(ctx, key, again)
				require.NoError(t, err)
				require.NotNil(t, claim)
				return record, claim
			}
			record, claim := begin()
			require.Zero(t, record.Remaining)
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: 40 * time.Minute}))
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Minute}), "a repetition")
			require.Equal(t, 40*time.Minute, readRetention(t, pool, opts, start, key), "changes nothing")

			set("2030-01-10 12:10:00+00")
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Minute}), "a late repetition")
			record, _ = begin()
			require.Equal(t, 30*time.Minute, record.Remaining, "of what was released")
			require.ErrorIs(t, claim.Release(ctx, idempotency.Release{TTL: time.Minute}), idempotency.ErrClaimLost)

			set("2030-01-10 12:20:00+00")
			record, claim = begin()
			require.Equal(t, 50*time.Minute, record.Remaining, "of what has lapsed")
			require.Equal(t, 3, record.Attempt)
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Minute}))

			set("2030-01-10 12:22:00+00")
			record, _ = begin()
			require.Equal(t, 1, record.Attempt)
			require.Zero(t, record.Remaining, "of what has expired")

			if days == 0 {
				operation := key.OperationID()
				execStatement(t, pool, "UPDATE "+tableName(opts)+
					" SET lease_until = NULL, expires_at = 'infinity' WHERE operation = $1", operation)
				record, _ = begin()
				require.Zero(t, record.Remaining, "it is not known")
			}
		})
	}
}

// A completed record reports how long it is kept.
func TestRemainingOfACompletedRecord(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		t.Run(form, func(t *testing.T) {
			opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: days}, "2030-01-10 12:00:00+00")
			store := pgxstore.New(pool, opts)
			_, claim, err := store.Begin(ctx, keyOf("1"), attempt)
			require.NoError(t, err)
			require.NoError(t, claim.Complete(ctx, idempotency.Response{Status: 201}, 40*time.Minute))
			remaining := func() time.Duration {
				record, claim, err := store.Begin(ctx, keyOf("1"), attempt)
				require.NoError(t, err)
				require.Nil(t, claim)
				return record.Remaining
			}
			set("2030-01-10 12:10:00+00")
			require.Equal(t, 30*time.Minute, remaining())
			if days == 0 {
				execStatement(t, pool, "UPDATE "+tableName(opts)+" SET expires_at = 'infinity'")
				require.Zero(t, remaining(), "it is not known")
			}
		})
	}
}

// Refused requests leave nothing behind after two leases, and the minute for which Maintain waits. Until then, each
// takes a row and its entries in two indexes, even with the longest names.
func TestRefusedRequestsLeaveNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	const refused = 1000
	longest := idempotency.Key{User: strings.Repeat("u", 257), Endpoint: strings.Repeat("e", 257), ID: strings.Repeat("k", 219)}
	for name, c := range map[string]struct {
		key         idempotency.Key
		opts        pgxstore.Options
		maxRowBytes int
	}{
		"short names":   {keyOf(""), pgxstore.Options{}, 300},
		"longest names": {longest, pgxstore.Options{}, 1100},
		"digests":       {keyOf(""), pgxstore.Options{DigestNames: true}, 450},
	} {
		t.Run(name, func(t *testing.T) {
			opts, set := newTableAt(t, pool, c.opts, "2030-01-10 12:00:00+00")
			store := pgxstore.New(pool, opts)
			for range refused {
				key := c.key
				key.ID += uuid.NewString()
				_, claim, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: 2 * attempt.Lease}))
			}
			row := queryValue[int](t, pool, "SELECT avg(pg_column_size(r.*))::integer FROM "+tableName(opts)+" r")
			total := queryValue[int](t, pool, "SELECT pg_total_relation_size($1::text::regclass)", tableName(opts)) / refused
			t.Logf("a refused request: a row of %d bytes, %d in the files of the table", row, total)
			require.LessOrEqual(t, row, c.maxRowBytes)

			set("2030-01-10 12:03:00+00")
			require.NoError(t, store.Maintain(ctx))
			require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
		})
	}
}
