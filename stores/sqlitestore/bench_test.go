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

// diskSettings are the kinds of disk for first executions. The disk of the machine may be so fast that waiting for
// it does not show, so one kind delays each commit by a millisecond.
var diskSettings = []struct {
	name        string
	opts        sqlitestore.Options
	commitDelay time.Duration
}{
	{"full", sqlitestore.Options{}, 0},
	{"full+1ms", sqlitestore.Options{}, time.Millisecond},
	{"normal", sqlitestore.Options{Synchronous: sqlitestore.Normal}, 0},
}

// BenchmarkFirst runs first executions with a claim and a completion each. It reports the executions per second and
// the duration of one.
func BenchmarkFirst(b *testing.B) {
	for _, disk := range diskSettings {
		for _, workers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/workers=%d", disk.name, workers), func(b *testing.B) {
				store := openStore(b, filepath.Join(b.TempDir(), "a.db"), disk.opts)
				delayCommits(b, store, disk.commitDelay)
				rowtest.Measure(b, workers, func(int) {
					if err := tryComplete(store, uuid.NewString()); err != nil {
						b.Error(err)
					}
				})
			})
		}
	}
}

// BenchmarkRows runs first executions whose handlers insert a row in a step.
func BenchmarkRows(b *testing.B) {
	for _, disk := range diskSettings {
		for _, workers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/workers=%d", disk.name, workers), func(b *testing.B) {
				s := openShop(b, disk.opts)
				delayCommits(b, s.store, disk.commitDelay)
				rowtest.Measure(b, workers, func(int) {
					err := runOperation(s.store, uuid.NewString(), func(ctx context.Context) error {
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

// delayCommits delays each commit of store by d, and reports how long an fsync takes.
func delayCommits(b *testing.B, store interface{ OnCommit(func() int32) error }, d time.Duration) {
	b.Helper()
	if d > 0 {
		require.NoError(b, store.OnCommit(func() int32 { time.Sleep(d); return 0 }))
	}
	disk := measureSync(b)
	b.Cleanup(func() { b.ReportMetric(float64(disk.Microseconds()), "fsync-µs") })
}

// measureSync returns how long the disk takes to write and sync 4 KiB (median of 100).
func measureSync(b *testing.B) time.Duration {
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

// BenchmarkStepCost compares the processor time of steps with the time of a plain INSERT for each step. The INSERT
// stores the same bytes under the same name in its own file. Each operation has one step.
func BenchmarkStepCost(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		for _, workers := range []int{1, 16} {
			name := fmt.Sprintf("bytes=%d/workers=%d", size, workers)
			b.Run(name, func(b *testing.B) { compareSteps(b, size, workers) })
		}
	}
}

func compareSteps(b *testing.B, size, workers int) {
	store := openStore(b, newPath(b), sqlitestore.Options{})
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
			_, claims[i] = claimKey(b, store, uuid.NewString())
		}
		ours := measureCPU(func() {
			runRound(workers, steps, func(i int) {
				if _, err := claims[i].(idempotency.Checkpointer).Checkpoint(b.Context(), "charge", result); err != nil {
					b.Error(err)
				}
			})
		})
		theirs := measureCPU(func() {
			runRound(workers, steps, func(int) {
				if _, err := insert.ExecContext(b.Context(), uuid.NewString(), "charge", result); err != nil {
					b.Error(err)
				}
			})
		})
		ratios = append(ratios, ours.Seconds()/theirs.Seconds())
		for _, claim := range claims {
			require.NoError(b, claim.Release(b.Context(), idempotency.Release{TTL: time.Microsecond}))
		}
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-by-hand")
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// measureCPU returns the processor time that the process uses while do runs.
func measureCPU(do func()) time.Duration {
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before) // fails only for invalid arguments
	do()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	return time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
}

// BenchmarkReplay compares replays with a plain SELECT of an answer by primary key, on as many connections of the
// same driver. Rounds of both alternate.
func BenchmarkReplay(b *testing.B) {
	normal := sqlitestore.Options{Synchronous: sqlitestore.Normal}
	for _, workers := range []int{1, 16} {
		b.Run("workers="+strconv.Itoa(workers), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "a.db")
			compareReplays(b, workers, path, openStore(b, path, normal))
		})
	}
}

func compareReplays(b *testing.B, workers int, path string, store idempotency.Store) {
	const records = 10_000
	keys := make([]idempotency.Key, records)
	for i := range keys {
		keys[i] = keyOf(uuid.NewString())
	}
	runRound(16, records, func(i int) {
		if err := tryComplete(store, keys[i].ID); err != nil {
			b.Error(err)
		}
	})
	bare := prepareSelect(b, path)
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour) // the middleware also sets a deadline for each step
	defer cancel()
	ours := func(i int) {
		record, _, err := store.Begin(ctx, keys[i], request)
		if err != nil || string(record.Response.Body) != string(answer.Body) {
			b.Error("no replay:", err)
		}
	}
	theirs := func(i int) {
		if err := bare(ctx, keys[i].OperationID()); err != nil {
			b.Error(err)
		}
	}
	var ratios, rates []float64
	for b.Loop() {
		t, o := runRound(workers, records, theirs), runRound(workers, records, ours)
		ratios = append(ratios, t.Seconds()/o.Seconds())
		rates = append(rates, records/o.Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(rates[len(rates)/2], "ops/s")
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// prepareSelect returns a function that reads an answer with a prepared SELECT.
func prepareSelect(b *testing.B, path string) func(ctx context.Context, operation uuid.UUID) error {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(b, err)
	b.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	query, err := db.Prepare("SELECT response FROM idempotency_records WHERE operation = ?")
	require.NoError(b, err)
	return func(ctx context.Context, operation uuid.UUID) error {
		var response []byte
		return query.QueryRowContext(ctx, operation[:]).Scan(&response)
	}
}

// runRound calls step n times on the given number of workers, and returns how long that takes.
func runRound(workers, n int, step func(i int)) time.Duration {
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
