package mysqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
)

// BenchmarkFirst runs first executions with a claim and a completion each. It reports the executions per second and
// the duration of one. With flush=1 the server waits for the disk, with flush=2 it leaves the flush to the system.
func BenchmarkFirst(b *testing.B) {
	for _, flush := range []string{"1", "2"} {
		m := servertest.MariaDB(b, "innodb_flush_log_at_trx_commit="+flush, "innodb_buffer_pool_size=128M",
			"innodb_log_file_size=96M")
		for _, workers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("flush=%s/workers=%d", flush, workers), func(b *testing.B) {
				db := openWorkerPool(b, m, workers)
				store, _ := newStore(b, db)
				warmPool(b, store, workers)
				rowtest.Measure(b, workers, func(int) {
					if err := tryComplete(store, uuid.NewString()); err != nil {
						b.Error(err)
					}
				})
			})
		}
	}
}

// BenchmarkReplay compares replays with a plain SELECT of an answer by primary key.
func BenchmarkReplay(b *testing.B) {
	m := servertest.MariaDB(b, "innodb_buffer_pool_size=128M")
	for _, workers := range []int{1, 16} {
		const records = 1000
		db := openWorkerPool(b, m, workers)
		store, table := newStore(b, db)
		warmPool(b, store, workers)
		keys := make([]string, records)
		for i := range keys {
			keys[i] = uuid.NewString()
			completeKey(b, store, keys[i])
		}
		b.Run("replay/workers="+strconv.Itoa(workers), func(b *testing.B) {
			rowtest.Measure(b, workers, func(i int) {
				record, _, err := store.Begin(b.Context(), keyOf(keys[i%records]), request)
				if err != nil || string(record.Response.Body) != string(answer.Body) {
					b.Error("no replay:", err)
				}
			})
		})
		b.Run("bare/workers="+strconv.Itoa(workers), func(b *testing.B) {
			query, err := db.Prepare("SELECT response FROM " + table + " WHERE operation = ?")
			require.NoError(b, err)
			rowtest.Measure(b, workers, func(i int) {
				operation := keyOf(keys[i%records]).OperationID()
				var response []byte
				if err := query.QueryRowContext(b.Context(), operation[:]).Scan(&response); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkStepCost compares the processor time of steps, in the service and in the server, with that of a plain
// INSERT for each step. The INSERT stores the same bytes under the same name. Each operation has one step.
func BenchmarkStepCost(b *testing.B) {
	m := servertest.MariaDB(b, "innodb_buffer_pool_size=128M", "innodb_log_file_size=96M")
	for _, size := range []int{200, 64 << 10} {
		b.Run(fmt.Sprint("bytes=", size), func(b *testing.B) { compareSteps(b, m, size) })
	}
}

func compareSteps(b *testing.B, m *servertest.Maria, size int) {
	db := openWorkerPool(b, m, 1)
	store, table := newStore(b, db)
	execStatement(b, db, "CREATE TABLE "+table+"_hand ("+
		"id CHAR(36), name VARCHAR(100), result MEDIUMBLOB, PRIMARY KEY (id, name))")
	insert, err := db.PrepareContext(b.Context(), "INSERT INTO "+table+"_hand VALUES (?, ?, ?)")
	require.NoError(b, err)
	const steps = 100
	result := make([]byte, size)
	var ratios []float64
	for b.Loop() {
		claims := make([]idempotency.Claim, steps)
		for i := range claims {
			_, claims[i] = claimKey(b, store, uuid.NewString())
		}
		began := measureCPU(b, m)
		for _, claim := range claims {
			_, err := claim.(idempotency.Checkpointer).Checkpoint(b.Context(), "charge", result)
			require.NoError(b, err)
		}
		stepped := measureCPU(b, m)
		for range claims {
			_, err := insert.ExecContext(b.Context(), uuid.NewString(), "charge", result)
			require.NoError(b, err)
		}
		ratios = append(ratios, (stepped-began).Seconds()/(measureCPU(b, m)-stepped).Seconds())
		for _, claim := range claims {
			require.NoError(b, claim.Release(b.Context(), idempotency.Release{TTL: time.Hour}))
		}
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-by-hand")
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// BenchmarkRows compares first executions that insert a row in a step with a handwritten transaction, in which a
// unique index allows each key once.
func BenchmarkRows(b *testing.B) {
	m := servertest.MariaDB(b, "innodb_flush_log_at_trx_commit=1", "innodb_buffer_pool_size=128M", "innodb_log_file_size=96M")
	for _, workers := range []int{1, 16} {
		db := openWorkerPool(b, m, workers)
		store, table := newStore(b, db)
		execStatement(b, db, "CREATE TABLE "+table+"_rows (amount INT) ENGINE = InnoDB")
		execStatement(b, db, "CREATE TABLE "+table+"_keys (id CHAR(36) PRIMARY KEY) ENGINE = InnoDB")
		warmPool(b, store, workers)
		insert := "INSERT INTO " + table + "_rows VALUES (7)"
		b.Run("DoTx/workers="+strconv.Itoa(workers), func(b *testing.B) {
			rowtest.Measure(b, workers, func(int) {
				_, claim := claimKey(b, store, uuid.NewString())
				var tx *sql.Tx
				_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(b.Context(), &idempotency.TxStep{
					Name: "book", Var: &tx, Timeout: time.Minute, Run: func() ([]byte, error) {
						_, err := tx.Exec(insert)
						return []byte("7"), err
					},
				})
				if err := errors.Join(err, claim.Complete(b.Context(), answer, time.Hour)); err != nil {
					b.Error(err)
				}
			})
		})
		b.Run("by hand/workers="+strconv.Itoa(workers), func(b *testing.B) {
			rowtest.Measure(b, workers, func(int) {
				tx, err := db.Begin()
				if err == nil {
					_, err = tx.Exec("INSERT INTO " + table + "_keys VALUES ('" + uuid.NewString() + "')")
				}
				if err == nil {
					_, err = tx.Exec(insert)
				}
				if err := errors.Join(err, tx.Commit()); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// measureCPU returns the processor time that the process and the server have used so far.
func measureCPU(b *testing.B, m *servertest.Maria) time.Duration {
	b.Helper()
	server, err := m.ProcessorTime()
	require.NoError(b, err)
	var own syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	return server + time.Duration(own.Utime.Nano()+own.Stime.Nano())
}

// openWorkerPool returns a pool with a connection for each worker.
func openWorkerPool(b *testing.B, m *servertest.Maria, workers int) *sql.DB {
	b.Helper()
	db := openPool(b, m.DSN())
	db.SetMaxOpenConns(workers)
	db.SetMaxIdleConns(workers)
	return db
}

// warmPool opens the connections, and prepares the statements on them.
func warmPool(b *testing.B, store idempotency.Store, workers int) {
	b.Helper()
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			for i := range 20 {
				if err := tryComplete(store, fmt.Sprint("warm ", worker, i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
}
