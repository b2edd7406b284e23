package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// disks are what a first execution waits for. The disk of the machine may be too fast for what its transactions wait
// for to show, so that some wait for a millisecond more.
var disks = []struct {
	name  string
	opts  sqlitestore.Options
	delay time.Duration
}{
	{"full", sqlitestore.Options{}, 0},
	{"full+1ms", sqlitestore.Options{}, time.Millisecond},
	{"normal", sqlitestore.Options{Synchronous: sqlitestore.Normal}, 0},
}

// BenchmarkFirst runs first executions, a claim and a completion each, and reports how many a second, and how long one
// takes.
func BenchmarkFirst(b *testing.B) {
	for _, disk := range disks {
		for _, workers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/workers=%d", disk.name, workers), func(b *testing.B) {
				store := open(b, filepath.Join(b.TempDir(), "a.db"), disk.opts)
				delay(b, store, disk.delay)
				rowtest.Measure(b, workers, func(int) {
					if err := complete(store, uuid.NewString()); err != nil {
						b.Error(err)
					}
				})
			})
		}
	}
}

// BenchmarkRows runs first executions of handlers that insert a row in a step.
func BenchmarkRows(b *testing.B) {
	for _, disk := range disks {
		for _, workers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/workers=%d", disk.name, workers), func(b *testing.B) {
				s := openShop(b, disk.opts)
				delay(b, s.store, disk.delay)
				rowtest.Measure(b, workers, func(int) {
					err := run(s.store, uuid.NewString(), func(ctx context.Context) error {
						_, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (int64, error) {
							result, err := tx.Exec("INSERT INTO orders (item) VALUES (?)", "tea")
							if err != nil {
								return 0, err
							}
							return result.LastInsertId()
						})
						return err
					})
					if err != nil {
						b.Error(err)
					}
				})
			})
		}
	}
}

// delay has commits take longer, and reports how long the disk takes.
func delay(b *testing.B, store interface{ OnCommit(func() int32) error }, d time.Duration) {
	b.Helper()
	if d > 0 {
		require.NoError(b, store.OnCommit(func() int32 { time.Sleep(d); return 0 }))
	}
	disk := syncDelay(b)
	b.Cleanup(func() { b.ReportMetric(float64(disk.Microseconds()), "fsync-µs") })
}

// syncDelay returns how long the disk takes to keep 4 KiB.
func syncDelay(b *testing.B) time.Duration {
	b.Helper()
	file, err := os.Create(filepath.Join(b.TempDir(), "sync"))
	require.NoError(b, err)
	defer file.Close()
	var all []time.Duration
	for range 100 {
		_, err := file.WriteAt(make([]byte, 4096), 0)
		require.NoError(b, err)
		began := time.Now()
		require.NoError(b, file.Sync())
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkStepCost compares the processor time of steps to that of an INSERT by hand for each, which keeps the same bytes
// under the same name in a file of its own. Each operation has one step.
func BenchmarkStepCost(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		for _, workers := range []int{1, 16} {
			name := fmt.Sprintf("bytes=%d/workers=%d", size, workers)
			b.Run(name, func(b *testing.B) { compareSteps(b, size, workers) })
		}
	}
}

func compareSteps(b *testing.B, size, workers int) {
	store := open(b, newPath(b), sqlitestore.Options{})
	db, err := sql.Open("sqlite", "file:"+newPath(b)+"?_pragma=journal_mode(wal)")
	require.NoError(b, err)
	b.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(b.Context(), "CREATE TABLE steps (key TEXT, name TEXT, result BLOB, PRIMARY KEY (key, name))")
	require.NoError(b, err)
	insert, err := db.PrepareContext(b.Context(), "INSERT INTO steps VALUES (?, ?, ?)")
	require.NoError(b, err)
	const steps = 100
	result := make([]byte, size)
	var ratios []float64
	for b.Loop() {
		claims := make([]idempotency.Claim, steps)
		for i := range claims {
			_, claims[i] = begun(b, store, uuid.NewString())
		}
		ours := spent(func() {
			round(workers, steps, func(i int) {
				if _, err := claims[i].(idempotency.Checkpointer).Checkpoint(b.Context(), "charge", result); err != nil {
					b.Error(err)
				}
			})
		})
		theirs := spent(func() {
			round(workers, steps, func(int) {
				if _, err := insert.ExecContext(b.Context(), uuid.NewString(), "charge", result); err != nil {
					b.Error(err)
				}
			})
		})
		ratios = append(ratios, ours.Seconds()/theirs.Seconds())
		for _, claim := range claims {
			require.NoError(b, claim.Release(b.Context(), time.Microsecond))
		}
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-by-hand")
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// spent returns the processor time of the process for something.
func spent(do func()) time.Duration {
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before) // fails only if it is called wrongly
	do()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	return time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
}

// BenchmarkReplay compares replays to a bare SELECT of an answer by primary key, on as many connections of the same
// driver, in pairs of rounds.
func BenchmarkReplay(b *testing.B) {
	normal := sqlitestore.Options{Synchronous: sqlitestore.Normal}
	for _, workers := range []int{1, 16} {
		b.Run("workers="+strconv.Itoa(workers), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "a.db")
			compareReplays(b, workers, path, open(b, path, normal))
		})
	}
}

func compareReplays(b *testing.B, workers int, path string, store idempotency.Store) {
	const records = 10_000
	keys := make([]idempotency.Key, records)
	for i := range keys {
		keys[i] = keyOf(uuid.NewString())
	}
	round(16, records, func(i int) {
		if err := complete(store, keys[i].ID); err != nil {
			b.Error(err)
		}
	})
	bare := bareSelect(b, path)
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour) // as each step of the middleware has
	defer cancel()
	ours := func(i int) {
		record, _, err := store.Begin(ctx, keys[i], request)
		if err != nil || string(record.Response.Body) != string(answer.Body) {
			b.Error("no replay:", err)
		}
	}
	theirs := func(i int) {
		digest := keys[i].Digest()
		if err := bare(ctx, digest[:]); err != nil {
			b.Error(err)
		}
	}
	var ratios, rates []float64
	for b.Loop() {
		t, o := round(workers, records, theirs), round(workers, records, ours)
		ratios = append(ratios, t.Seconds()/o.Seconds())
		rates = append(rates, records/o.Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(rates[len(rates)/2], "ops/s")
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// bareSelect returns what reads an answer.
func bareSelect(b *testing.B, path string) func(ctx context.Context, digest []byte) error {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(b, err)
	b.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	query, err := db.Prepare("SELECT response FROM idempotency_records WHERE digest = ?")
	require.NoError(b, err)
	return func(ctx context.Context, digest []byte) error {
		var response []byte
		return query.QueryRowContext(ctx, digest).Scan(&response)
	}
}

// round runs a step n times by several workers.
func round(workers, n int, step func(i int)) time.Duration {
	var next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range workers {
		group.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				step(i - 1)
			}
		})
	}
	group.Wait()
	return time.Since(began)
}
