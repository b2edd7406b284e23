package mysqlstore_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// BenchmarkTxFirst runs first executions without and with an effect of the handler, and reports how many a second,
// and how long one takes. The server waits for the disk in the one kind, and leaves that to the system in the other.
func BenchmarkTxFirst(b *testing.B) {
	for _, flush := range []string{"1", "2"} {
		m := servertest.MariaDB(b, "innodb_flush_log_at_trx_commit="+flush, "innodb_buffer_pool_size=128M",
			"innodb_log_file_size=96M")
		for _, workers := range []int{1, 16, 64} {
			for _, effects := range []string{"none", "one"} {
				b.Run(fmt.Sprintf("flush=%s/workers=%d/effects=%s", flush, workers, effects), func(b *testing.B) {
					w := newBenchWorld(b, m, workers)
					measure(b, workers, func(int) {
						if err := w.operate(effects == "one"); err != nil {
							b.Error(err)
						}
					})
				})
			}
		}
	}
}

// BenchmarkTxReplay is comparable with BenchmarkReplay.
func BenchmarkTxReplay(b *testing.B) {
	m := servertest.MariaDB(b, "innodb_buffer_pool_size=128M")
	for _, workers := range []int{1, 16} {
		b.Run("workers="+strconv.Itoa(workers), func(b *testing.B) {
			const records = 1000
			w := newBenchWorld(b, m, workers)
			keys := make([]string, records)
			for i := range keys {
				keys[i] = uuid.NewString()
				completed(b, w.store, keys[i])
			}
			measure(b, workers, func(i int) {
				record, _, err := w.store.Begin(b.Context(), keyOf(keys[i%records]), request)
				if err != nil || string(record.Response.Body) != string(answer.Body) {
					b.Error("no replay:", err)
				}
			})
		})
	}
}

// BenchmarkTxLarge stores answers of different sizes. Up to 16 KiB they are literals of twice the size, above they
// are parameters, which take one more round trip.
func BenchmarkTxLarge(b *testing.B) {
	w := newBenchWorld(b, servertest.MariaDB(b, "innodb_buffer_pool_size=128M", "innodb_log_file_size=96M"), 1)
	for _, size := range []int{1 << 10, 15 << 10, 17 << 10, 64 << 10, 1 << 20} {
		b.Run("size="+strconv.Itoa(size), func(b *testing.B) {
			resp := idempotency.Response{Status: http.StatusCreated, Body: make([]byte, size)}
			measure(b, 1, func(int) {
				_, claim := begun(b, w.store, uuid.NewString())
				require.NoError(b, claim.Complete(b.Context(), resp, time.Hour))
			})
		})
	}
}

// newBenchWorld returns a world whose pool has a connection for each worker.
func newBenchWorld(b *testing.B, m *servertest.Maria, workers int) *world {
	b.Helper()
	w := newWorldAt(b, m.DSN(), newOptions())
	w.db = crowdedPool(b, m, workers)
	w.store = mysqlstore.NewTx(w.db, mysqlstore.Options{Table: w.table})
	warm(b, w.store, workers)
	return w
}

// operate is a first execution.
func (w *world) operate(acts bool) error {
	key := uuid.NewString()
	_, claim, err := w.store.Begin(context.Background(), keyOf(key), request)
	if err != nil {
		return err
	}
	if acts {
		if err := w.act(claim.Context(context.Background()), key); err != nil {
			return err
		}
	}
	return claim.Complete(context.Background(), answer, time.Hour)
}
