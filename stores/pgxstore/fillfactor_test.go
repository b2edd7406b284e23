package pgxstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// BenchmarkFillFactor completes operations while some others are always open. It reports which part of the
// completions changed the record in place, and the disk space of a record.
func BenchmarkFillFactor(b *testing.B) {
	const operations = 4000
	db := servertest.Postgres(b, "autovacuum=off", "fsync=off", "shared_buffers=256MB")
	pool := newPool(b, db.URL())
	for _, open := range []int{16, 200} {
		for _, size := range []int{100, 500, 1500} {
			for _, fill := range []int{100, 70, 50, 30, 15} {
				b.Run(fmt.Sprintf("%d open/body of %d B/fillfactor %d", open, size, fill), func(b *testing.B) {
					opts := newTable(b, pool, pgxstore.Options{FillFactor: fill})
					completeDelayed(b, pgxstore.New(pool, opts), operations, open, size)
					const counted = " FROM pg_stat_all_tables WHERE relid = $1::text::regclass"
					require.Eventually(b, func() bool {
						return queryValue[int](b, pool, "SELECT n_tup_upd"+counted, tableName(opts)) == operations
					}, time.Minute, 50*time.Millisecond)
					inPlace := queryValue[float64](b, pool, "SELECT n_tup_hot_upd * 100.0 / n_tup_upd"+counted, tableName(opts))
					disk := queryValue[int](b, pool, "SELECT pg_total_relation_size($1::text::regclass)", tableName(opts))
					b.ReportMetric(inPlace, "%-in-place")
					b.ReportMetric(float64(disk)/operations, "B-of-disk")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// completeDelayed begins operations with four workers. A worker completes an operation when its share of open later
// operations has begun, so the store always has about that many claims.
func completeDelayed(b *testing.B, store idempotency.Store, operations, open, size int) {
	const workers = 4
	body := make([]byte, size)
	_, _ = rand.Read(body)
	resp := idempotency.Response{Status: http.StatusCreated, Header: "Content-Type: application/json\n", Body: body}
	work := func() error {
		var claims []idempotency.Claim
		for i := range (operations + open) / workers {
			if i < operations/workers {
				_, claim, err := store.Begin(context.Background(), keyOf(uuid.NewString()), attempt)
				if err != nil {
					return err
				}
				claims = append(claims, claim)
			}
			if i >= open/workers {
				if err := claims[i-open/workers].Complete(context.Background(), resp, time.Hour); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			if err := work(); err != nil {
				b.Error(err)
			}
		})
	}
	group.Wait()
}

// Pages of records that never change need no free room.
func TestFillFactor(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	size := map[int]int{}
	for _, factor := range []int{70, 100} {
		for _, days := range []int{0, 1} {
			opts := newTable(t, pool, pgxstore.Options{FillFactor: factor, PartitionDays: days})
			insertRecords(t, pool, opts, 2000, "now() + interval '1 minute'")
			for _, table := range listTables(t, pool, opts) {
				size[factor] += queryValue[int](t, pool, "SELECT pg_relation_size($1::text::regclass)", table)
			}
		}
	}
	t.Logf("bytes by fill factor: %v", size)
	require.Less(t, 4*size[100], 3*size[70])
}
