package pgxstore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Each benchmark compares two ways of doing the same work on the same durable server. A round runs both ways, one
// after the other, so both meet the same disturbances. The benchmark reports the median ratio of the throughputs in
// all rounds.

const (
	workers  = 16
	perRound = 2000
)

// compareThroughput reports the throughput of ours in relation to the throughput of theirs.
func compareThroughput(b *testing.B, theirs, ours func(i int)) {
	runRound(theirs) // fills pool, caches and prepared statements
	runRound(ours)
	var ratios, rates []float64
	b.ResetTimer()
	for b.Loop() {
		t := runRound(theirs)
		o := runRound(ours)
		ratios = append(ratios, t.Seconds()/o.Seconds())
		rates = append(rates, perRound/o.Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(rates[len(rates)/2], "ops/s")
	b.ReportMetric(0, "ns/op") // the time of a pair of rounds is of no interest
}

// runRound calls step perRound times by all workers together, and returns how long that takes.
func runRound(step func(i int)) time.Duration {
	var next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range workers {
		group.Go(func() {
			for i := next.Add(1); i <= perRound; i = next.Add(1) {
				step(int(i))
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// benchServer is a durable server: it waits for the disk at each commit.
var benchServer = sync.OnceValues(func() (*servertest.Database, error) {
	return servertest.StartPostgres("fsync=on", "shared_buffers=256MB", "max_wal_size=4GB")
})

func benchPool(b *testing.B, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	db, err := benchServer()
	servertest.Require(b, err)
	changes = append(changes, func(c *pgxpool.Config) {
		c.MaxConns, c.MinConns = workers, workers
		c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "1min" // as docs/postgres.md advises
	})
	pool := newPool(b, db.URL(), changes...)
	execStatement(b, pool, "CREATE TABLE IF NOT EXISTS payments (id bigserial PRIMARY KEY, amount bigint NOT NULL)")
	return pool
}

// runOnDisks runs a benchmark on the disk of the machine, and on a disk whose commits take a millisecond longer, as
// network disks do. The server waits for this millisecond before it syncs.
func runOnDisks(b *testing.B, run func(b *testing.B, pool *pgxpool.Pool)) {
	b.Run("disk", func(b *testing.B) { run(b, benchPool(b)) })
	b.Run("disk+1ms", func(b *testing.B) {
		run(b, benchPool(b, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["commit_delay"] = "1000"
			c.ConnConfig.RuntimeParams["commit_siblings"] = "0"
		}))
	})
}

// BenchmarkTxFirst compares a handler whose INSERT commits together with its record with a handler that commits the
// INSERT alone. The other comparisons are a handler with the least handwritten protection, and a handler with
// handwritten protection that writes the same row as the store. The cost of the last one cannot be saved.
func BenchmarkTxFirst(b *testing.B) {
	for name, handler := range map[string]func(*testing.B, *pgxpool.Pool) http.Handler{
		"store":   func(b *testing.B, pool *pgxpool.Pool) http.Handler { return newBookingHandler(b, pool, bookByPgx) },
		"by-hand": newHandwrittenHandler, "by-hand-same-row": newSameRowHandler,
	} {
		b.Run(name, func(b *testing.B) {
			runOnDisks(b, func(b *testing.B, pool *pgxpool.Pool) {
				compareServers(b, newUnprotectedHandler(pool), handler(b, pool))
			})
		})
	}
}

const insertAmount = "INSERT INTO payments (amount) VALUES ($1)"

// newUnprotectedHandler returns a handler that commits an INSERT alone.
func newUnprotectedHandler(pool *pgxpool.Pool) http.Handler {
	return newCreatedHandler(func(r *http.Request) error {
		return pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), insertAmount, 7)
			return err
		})
	})
}

// newHandwrittenHandler returns a handler that inserts a record with only a key and a body.
func newHandwrittenHandler(b *testing.B, pool *pgxpool.Pool) http.Handler {
	execStatement(b, pool, "CREATE TABLE IF NOT EXISTS by_hand (operation uuid PRIMARY KEY, body bytea NOT NULL)")
	return newLockingHandler(pool, "by_hand", func(_ idempotency.Key, operation uuid.UUID) (string, []any) {
		return "INSERT INTO by_hand (operation, body) VALUES ($1, $2)", []any{operation, answer.Body}
	})
}

// newSameRowHandler returns a handler that inserts the same record as the store.
func newSameRowHandler(b *testing.B, pool *pgxpool.Pool) http.Handler {
	table := tableName(newTable(b, pool, pgxstore.Options{}))
	insert := "INSERT INTO " + table + ` (operation, user_id, endpoint, key, token, attempt, created_at, fingerprint,
			status, header, trailer, body, completed_at, expires_at, expires_minute)
		VALUES ($1, $2, $3, $4, $5, 1, now(), $6, $7, $8, '', $9, now(), now() + interval '1 hour',
			date_trunc('minute', now()) + interval '1 hour')`
	return newLockingHandler(pool, table, func(key idempotency.Key, operation uuid.UUID) (string, []any) {
		return insert, []any{operation, key.User, key.Endpoint, key.ID, [16]byte(uuid.New()), attempt.Fingerprint[:],
			answer.Status, string(answer.Header), answer.Body}
	})
}

// newLockingHandler returns a handler that takes a lock, reads a record, and inserts a record. This takes three
// round trips, as the unprotected handler does.
func newLockingHandler(pool *pgxpool.Pool, table string, record func(idempotency.Key, uuid.UUID) (string, []any)) http.Handler {
	look := "SELECT body FROM " + table + " WHERE operation = $1"
	return newCreatedHandler(func(r *http.Request) error {
		ctx := r.Context()
		key := keyOf(r.Header.Get("Idempotency-Key"))
		operation := key.OperationID()
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		var begin, end pgx.Batch
		begin.Queue("begin")
		begin.Queue("SELECT pg_try_advisory_xact_lock($1)", int64(binary.BigEndian.Uint64(operation[:])))
		begin.Queue(look, operation)
		if err := conn.SendBatch(ctx, &begin).Close(); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, insertAmount, 7); err != nil {
			return err
		}
		insert, args := record(key, operation)
		end.Queue(insert, args...)
		end.Queue("commit")
		return conn.SendBatch(ctx, &end).Close()
	})
}

// BenchmarkTxCost compares the processor time of a request to a handler that the store protects with that of a
// handler that writes the same row by hand. The time is the sum of this process (client and service) and of the
// sessions of the server. Processor time says more than throughput on a machine that others use too.
func BenchmarkTxCost(b *testing.B) {
	pool := benchPool(b)
	theirs, ours := newHTTPClient(b, newSameRowHandler(b, pool)), newHTTPClient(b, newBookingHandler(b, pool, bookByPgx))
	for range 3 { // prepares each statement on each connection, and fills the tables
		runRound(theirs)
		runRound(ours)
	}
	took := newCostMeter(b, pool)
	var ratios []float64
	var hand, store cpuTime
	for b.Loop() {
		t, o := took(theirs), took(ours)
		ratios = append(ratios, float64(t.service+t.server)/float64(o.service+o.server))
		hand, store = hand.add(t), store.add(o)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	for name, sum := range map[string]time.Duration{
		"by-hand-service": hand.service, "by-hand-server": hand.server, "service": store.service, "server": store.server,
	} {
		b.ReportMetric(float64(sum.Nanoseconds())/1000/perRound/float64(b.N), name+"-us/request")
	}
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// BenchmarkStepCost compares the processor time that a step adds to an operation with that of a handwritten INSERT,
// which stores the same bytes under the same name.
func BenchmarkStepCost(b *testing.B) {
	for name, size := range map[string]int{"200B": 200, "64KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			pool := benchPool(b)
			store := pgxstore.New(pool, newTable(b, pool, pgxstore.Options{}))
			execStatement(b, pool, "DROP TABLE IF EXISTS results")
			execStatement(b, pool, "CREATE TABLE results (key text, name text, result bytea, PRIMARY KEY (key, name))")
			result := []byte(strings.Repeat(`{"id":"ch_1","paid":true}`, size)[:size])
			kinds := []func(int){
				newOperationFunc(store),
				newOperationFunc(store, func(key idempotency.Key, _ idempotency.Claim) {
					insertOneRow(pool, "INSERT INTO results VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", key.ID, "charge", result)
				}),
				newOperationFunc(store, func(_ idempotency.Key, claim idempotency.Claim) {
					if _, err := claim.(idempotency.Checkpointer).Checkpoint(context.Background(), "charge", result); err != nil {
						panic(err)
					}
				}),
			}
			for _, kind := range kinds {
				runRound(kind)
			}
			took := newCostMeter(b, pool)
			var ratios []float64
			for b.Loop() {
				none, hand, step := took(kinds[0]), took(kinds[1]), took(kinds[2])
				ratios = append(ratios, step.subtract(none).sumNanoseconds()/hand.subtract(none).sumNanoseconds())
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "of-by-hand")
			b.ReportMetric(0, "ns/op") // the time of three rounds is of no interest
		})
	}
}

// newCostMeter returns a function that runs a round and returns its processor time.
func newCostMeter(b *testing.B, pool *pgxpool.Pool) func(step func(int)) cpuTime {
	sessions := queryColumn[int](b, pool, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
	return func(step func(int)) cpuTime {
		began := measureCPU(b, sessions)
		runRound(step)
		return measureCPU(b, sessions).subtract(began)
	}
}

// cpuTime is processor time.
type cpuTime struct{ service, server time.Duration }

// measureCPU returns the processor time that this process and the sessions of the server have used so far.
func measureCPU(b *testing.B, sessions []int) cpuTime {
	var own syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	c := cpuTime{service: time.Duration(own.Utime.Nano() + own.Stime.Nano())}
	for _, id := range sessions {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", id))
		if err != nil {
			b.Skip("needs the statistics of Linux: ", err)
		}
		var took time.Duration
		_, err = fmt.Sscan(string(stat), &took)
		require.NoError(b, err)
		c.server += took
	}
	return c
}

func (c cpuTime) subtract(began cpuTime) cpuTime {
	return cpuTime{c.service - began.service, c.server - began.server}
}

func (c cpuTime) sumNanoseconds() float64 { return float64(c.service + c.server) } // nanoseconds

func (c cpuTime) add(d cpuTime) cpuTime { return cpuTime{c.service + d.service, c.server + d.server} }

// newCreatedHandler returns a handler that calls work, and responds with 201 if work succeeds.
func newCreatedHandler(work func(*http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := work(r); err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer.Body)
	})
}

// compareServers compares two handlers over HTTP.
func compareServers(b *testing.B, theirs, ours http.Handler) {
	compareThroughput(b, newHTTPClient(b, theirs), newHTTPClient(b, ours))
}

// newHTTPClient returns a function that sends a request to h over HTTP.
func newHTTPClient(b *testing.B, h http.Handler) func(int) {
	const body = `{"amount":7}`
	server := httptest.NewServer(h)
	b.Cleanup(server.Close)
	client := server.Client()
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = workers
	return func(int) {
		r, err := http.NewRequest(http.MethodPost, server.URL+"/payments", strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", uuid.NewString())
		resp, err := client.Do(r)
		if err != nil {
			panic(err)
		}
		if resp.StatusCode != http.StatusCreated {
			panic(resp.Status)
		}
		got := make([]byte, 512)
		n := 0
		for err == nil {
			var m int
			m, err = resp.Body.Read(got[n:])
			n += m
		}
		resp.Body.Close()
		if n != len(answer.Body) {
			panic("short answer")
		}
	}
}

// BenchmarkFirst compares the claim and the completion of a lease with a handwritten INSERT and UPDATE: first of a
// key, a fingerprint and a token, then of the same row as the store writes, with the same index.
func BenchmarkFirst(b *testing.B) {
	ours := func(b *testing.B, pool *pgxpool.Pool) func(int) {
		return newLeaseBenchmark(b, pool, pgxstore.Options{})
	}
	bare := func(b *testing.B, pool *pgxpool.Pool) {
		createHandwrittenTable(b, pool)
		compareThroughput(b, func(int) {
			key := uuid.NewString()
			insertOneRow(pool, "INSERT INTO handmade (key, fingerprint, token) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
				key, key, key)
			insertOneRow(pool, "UPDATE handmade SET status = $3, header = $4, body = $5 WHERE key = $1 AND token = $2",
				key, key, answer.Status, string(answer.Header), answer.Body)
		}, ours(b, pool))
	}
	sameRow := func(b *testing.B, pool *pgxpool.Pool) {
		table := tableName(newTable(b, pool, pgxstore.Options{}))
		insert := "INSERT INTO " + table + ` (operation, user_id, endpoint, key, attempt, fingerprint, token,
				created_at, lease_until, expires_at, expires_minute)
			VALUES ($1, $2, $3, $4, 1, $5, $6, now(), now() + interval '1 minute', now() + interval '1 hour',
				date_trunc('minute', now()) + interval '1 hour') ON CONFLICT DO NOTHING`
		update := "UPDATE " + table + ` SET status = $3, header = $4, trailer = '', body = $5, completed_at = now(),
				lease_until = NULL, expires_at = now() + interval '1 hour',
				expires_minute = date_trunc('minute', now()) + interval '1 hour' WHERE operation = $1 AND token = $2`
		compareThroughput(b, func(int) {
			key := keyOf(uuid.NewString())
			operation, token := key.OperationID(), [16]byte(uuid.New())
			insertOneRow(pool, insert, operation, key.User, key.Endpoint, key.ID, attempt.Fingerprint[:], token)
			insertOneRow(pool, update, operation, token, answer.Status, string(answer.Header), answer.Body)
		}, ours(b, pool))
	}
	b.Run("bare", func(b *testing.B) { runOnDisks(b, bare) })
	b.Run("same-row", func(b *testing.B) { runOnDisks(b, sameRow) })
}

// insertOneRow runs a statement that writes one row.
func insertOneRow(pool *pgxpool.Pool, sql string, args ...any) {
	tag, err := pool.Exec(context.Background(), sql, args...)
	if err != nil || tag.RowsAffected() != 1 {
		panic(fmt.Sprint(tag, err))
	}
}

// BenchmarkReplay compares a replay with a handwritten SELECT by primary key.
func BenchmarkReplay(b *testing.B) {
	pool := benchPool(b)
	ctx := context.Background()
	createHandwrittenTable(b, pool)
	const records = 1000
	ids := make([]string, records)
	for i := range ids {
		ids[i] = uuid.NewString()
		execStatement(b, pool, "INSERT INTO handmade (key, fingerprint, token, status, header, body) "+
			"VALUES ($1, $2, $3, $4, $5, $6)",
			ids[i], ids[i], ids[i], answer.Status, string(answer.Header), answer.Body)
	}
	compareThroughput(b, func(i int) {
		var status int
		var fingerprint, header string
		var body []byte
		err := pool.QueryRow(ctx, "SELECT fingerprint, status, header, body FROM handmade WHERE key = $1", ids[i%records]).
			Scan(&fingerprint, &status, &header, &body)
		if err != nil || len(body) != len(answer.Body) {
			panic(err)
		}
	}, newReplayBenchmark(b, pool, pgxstore.Options{}))
}

// BenchmarkPartitions compares first executions and replays on a partitioned table with those on a plain table.
func BenchmarkPartitions(b *testing.B) {
	for _, days := range []pgxstore.Options{{PartitionDays: 1}, {PartitionDays: 1, SpareDays: 30}, {PartitionDays: 30}} {
		name := fmt.Sprintf("TTL of %d d, %d spare", days.PartitionDays, days.SpareDays)
		b.Run(name+"/first", func(b *testing.B) {
			pool := benchPool(b)
			compareThroughput(b, newLeaseBenchmark(b, pool, pgxstore.Options{}), newLeaseBenchmark(b, pool, days))
		})
		b.Run(name+"/replay", func(b *testing.B) {
			pool := benchPool(b)
			compareThroughput(b, newReplayBenchmark(b, pool, pgxstore.Options{}), newReplayBenchmark(b, pool, days))
		})
	}
}

// newLeaseBenchmark returns a function that executes an operation with a lease.
func newLeaseBenchmark(b *testing.B, pool *pgxpool.Pool, opts pgxstore.Options) func(int) {
	return newOperationFunc(pgxstore.New(pool, newTable(b, pool, opts)))
}

func newOperationFunc(store idempotency.Store, works ...func(idempotency.Key, idempotency.Claim)) func(int) {
	ctx := context.Background()
	return func(int) {
		key := keyOf(uuid.NewString())
		_, claim, err := store.Begin(ctx, key, attempt)
		if err == nil {
			for _, work := range works {
				work(key, claim)
			}
			err = claim.Complete(ctx, answer, time.Hour)
		}
		if err != nil {
			panic(err)
		}
	}
}

// newReplayBenchmark returns a function that replays one of a thousand records.
func newReplayBenchmark(b *testing.B, pool *pgxpool.Pool, opts pgxstore.Options) func(int) {
	ctx := context.Background()
	store := pgxstore.New(pool, newTable(b, pool, opts))
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = completeNewKey(b, store).ID
	}
	execStatement(b, pool, "VACUUM ANALYZE")
	return func(i int) {
		record, claim, err := store.Begin(ctx, keyOf(ids[i%len(ids)]), attempt)
		if err != nil || claim != nil || len(record.Response.Body) != len(answer.Body) {
			panic(err)
		}
	}
}

func createHandwrittenTable(b *testing.B, pool *pgxpool.Pool) {
	execStatement(b, pool, "DROP TABLE IF EXISTS handmade")
	execStatement(b, pool, `CREATE TABLE handmade (key text PRIMARY KEY, fingerprint text NOT NULL, token text NOT NULL,
		created timestamptz NOT NULL DEFAULT now(), status int, header text, body bytea) WITH (fillfactor = 70)`)
}

// BenchmarkDropDay measures claims while Maintain drops a day of a million records.
func BenchmarkDropDay(b *testing.B) {
	pool := benchPool(b)
	now, set := newClock(b, pool)
	benchRemoval(b, pool, func() pgxstore.Options {
		set("2030-01-01 12:00:00+00")
		table := newTable(b, pool, pgxstore.Options{PartitionDays: 1}.WithClock(now))
		insertRecords(b, pool, table, removedRecords, "'2030-01-01 13:00:00+00'::timestamptz")
		set("2030-01-02 12:00:00+00")
		return table
	})
}

// BenchmarkDeleteExpired measures claims while Maintain deletes a million records.
func BenchmarkDeleteExpired(b *testing.B) {
	pool := benchPool(b)
	benchRemoval(b, pool, func() pgxstore.Options {
		table := newTable(b, pool, pgxstore.Options{})
		insertRecords(b, pool, table, removedRecords, "now() - interval '1 hour'")
		return table
	})
}

const removedRecords = 1_000_000

func benchRemoval(b *testing.B, pool *pgxpool.Pool, filled func() pgxstore.Options) {
	var took, longest time.Duration
	for b.Loop() {
		table := filled()
		execStatement(b, pool, "VACUUM ANALYZE "+tableName(table))
		stop := startClaiming(b, pgxstore.New(pool, table))
		began := time.Now()
		require.NoError(b, pgxstore.NewTable(pool, table).Maintain(context.Background()))
		took += time.Since(began)
		require.Zero(b, queryValue[int](b, pool, "SELECT count(*) FROM "+tableName(table)+" WHERE user_id = 'user'"))
		_, worst := stop()
		longest = max(longest, worst)
		execStatement(b, pool, "DROP TABLE "+tableName(table))
	}
	took /= time.Duration(b.N)
	b.ReportMetric(took.Seconds(), "s")
	b.ReportMetric(removedRecords/took.Seconds(), "records/s")
	b.ReportMetric(float64(longest.Milliseconds()), "ms-longest-operation")
	b.ReportMetric(0, "ns/op")
}
