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

// Each benchmark compares two ways of doing the same on the same durable server. A round runs one of them and then the
// other, so that both meet the same disturbances, and the ratio of their throughputs that is reported is the median of
// all rounds.

const (
	workers  = 16
	perRound = 2000
)

// compare reports how the throughput of ours relates to that of theirs.
func compare(b *testing.B, theirs, ours func(i int)) {
	round(theirs) // fills pool, caches and prepared statements
	round(ours)
	var ratios, rates []float64
	b.ResetTimer()
	for b.Loop() {
		t := round(theirs)
		o := round(ours)
		ratios = append(ratios, t.Seconds()/o.Seconds())
		rates = append(rates, perRound/o.Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(rates[len(rates)/2], "ops/s")
	b.ReportMetric(0, "ns/op") // of a pair of rounds: of no interest
}

// round runs step a number of times by all workers together.
func round(step func(i int)) time.Duration {
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

// benchServer is a server that keeps what it acknowledges.
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
	execute(b, pool, "CREATE TABLE IF NOT EXISTS payments (id bigserial PRIMARY KEY, amount bigint NOT NULL)")
	return pool
}

// onDisks runs a benchmark on the disk of the machine, and as on one that needs a millisecond more for a commit, as
// those in a network do: the server waits so long before it asks the disk.
func onDisks(b *testing.B, run func(b *testing.B, pool *pgxpool.Pool)) {
	b.Run("disk", func(b *testing.B) { run(b, benchPool(b)) })
	b.Run("disk+1ms", func(b *testing.B) {
		run(b, benchPool(b, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["commit_delay"] = "1000"
			c.ConnConfig.RuntimeParams["commit_siblings"] = "0"
		}))
	})
}

// BenchmarkTxFirst compares a handler whose INSERT commits together with its record to the same handler that commits
// the INSERT alone. So it does for one that is protected by hand, by the least that does it, and by the same with the
// row that the store writes: what that costs cannot be saved.
func BenchmarkTxFirst(b *testing.B) {
	for name, handler := range map[string]func(*testing.B, *pgxpool.Pool) http.Handler{
		"store": func(b *testing.B, pool *pgxpool.Pool) http.Handler { return booked(b, pool, bookByPgx) }, "by-hand": byHand, "by-hand-same-row": byHandSameRow,
	} {
		b.Run(name, func(b *testing.B) {
			onDisks(b, func(b *testing.B, pool *pgxpool.Pool) {
				compareServers(b, unprotected(pool), handler(b, pool))
			})
		})
	}
}

const insertAmount = "INSERT INTO payments (amount) VALUES ($1)"

// unprotected commits an INSERT alone.
func unprotected(pool *pgxpool.Pool) http.Handler {
	return created(func(r *http.Request) error {
		return pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), insertAmount, 7)
			return err
		})
	})
}

// byHand inserts a record that is nothing but a key and a body.
func byHand(b *testing.B, pool *pgxpool.Pool) http.Handler {
	execute(b, pool, "CREATE TABLE IF NOT EXISTS by_hand (digest bytea PRIMARY KEY, body bytea NOT NULL)")
	return protectedByHand(pool, "by_hand", func(_ idempotency.Key, digest []byte) (string, []any) {
		return "INSERT INTO by_hand (digest, body) VALUES ($1, $2)", []any{digest, answer.Body}
	})
}

// byHandSameRow inserts a record as the store does.
func byHandSameRow(b *testing.B, pool *pgxpool.Pool) http.Handler {
	table := tableName(newTable(b, pool, pgxstore.Options{}))
	insert := "INSERT INTO " + table + ` (digest, user_id, endpoint, key, token, attempt, created_at, fingerprint,
			status, header, trailer, body, completed_at, expires_at, expires_minute)
		VALUES ($1, $2, $3, $4, $5, 1, now(), $6, $7, $8, '', $9, now(), now() + interval '1 hour',
			date_trunc('minute', now()) + interval '1 hour')`
	return protectedByHand(pool, table, func(key idempotency.Key, digest []byte) (string, []any) {
		return insert, []any{digest, key.User, key.Endpoint, key.ID, [16]byte(uuid.New()), attempt.Fingerprint[:],
			answer.Status, string(answer.Header), answer.Body}
	})
}

// protectedByHand takes a lock, looks for a record, and inserts one, in three round trips as unprotected does.
func protectedByHand(pool *pgxpool.Pool, table string, record func(idempotency.Key, []byte) (string, []any)) http.Handler {
	look := "SELECT body FROM " + table + " WHERE digest = $1"
	return created(func(r *http.Request) error {
		ctx := r.Context()
		key := keyOf(r.Header.Get("Idempotency-Key"))
		digest := key.Digest()
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		var begin, end pgx.Batch
		begin.Queue("begin")
		begin.Queue("SELECT pg_try_advisory_xact_lock($1)", int64(binary.BigEndian.Uint64(digest[:])))
		begin.Queue(look, digest[:])
		if err := conn.SendBatch(ctx, &begin).Close(); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, insertAmount, 7); err != nil {
			return err
		}
		insert, args := record(key, digest[:])
		end.Queue(insert, args...)
		end.Queue("commit")
		return conn.SendBatch(ctx, &end).Close()
	})
}

// BenchmarkTxCost compares the processor time of a request to the handler that the store protects, and to one that writes
// the same row by hand: the time of this process, which is client and service, and of the sessions of the server
// together. It says more than throughput where others use the machine, too.
func BenchmarkTxCost(b *testing.B) {
	pool := benchPool(b)
	theirs, ours := served(b, byHandSameRow(b, pool)), served(b, booked(b, pool, bookByPgx))
	for range 3 { // each connection has met each statement then, and each table has grown
		round(theirs)
		round(ours)
	}
	took := costs(b, pool)
	var ratios []float64
	var hand, store cost
	for b.Loop() {
		t, o := took(theirs), took(ours)
		ratios = append(ratios, float64(t.service+t.server)/float64(o.service+o.server))
		hand, store = hand.plus(t), store.plus(o)
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

// BenchmarkStepCost compares the processor time that a step adds to an operation to that of an INSERT by hand, which keeps the
// same bytes under the same name.
func BenchmarkStepCost(b *testing.B) {
	for name, size := range map[string]int{"200B": 200, "64KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			pool := benchPool(b)
			store := pgxstore.New(pool, newTable(b, pool, pgxstore.Options{}))
			execute(b, pool, "DROP TABLE IF EXISTS results")
			execute(b, pool, "CREATE TABLE results (key text, name text, result bytea, PRIMARY KEY (key, name))")
			result := []byte(strings.Repeat(`{"id":"ch_1","paid":true}`, size)[:size])
			kinds := []func(int){
				executed(store),
				executed(store, func(key idempotency.Key, _ idempotency.Claim) {
					writeOne(pool, "INSERT INTO results VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", key.ID, "charge", result)
				}),
				executed(store, func(_ idempotency.Key, claim idempotency.Claim) {
					if _, err := claim.(idempotency.Checkpointer).Checkpoint(context.Background(), "charge", result); err != nil {
						panic(err)
					}
				}),
			}
			for _, kind := range kinds {
				round(kind)
			}
			took := costs(b, pool)
			var ratios []float64
			for b.Loop() {
				none, hand, step := took(kinds[0]), took(kinds[1]), took(kinds[2])
				ratios = append(ratios, step.since(none).all()/hand.since(none).all())
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "of-by-hand")
			b.ReportMetric(0, "ns/op") // of three rounds: of no interest
		})
	}
}

// costs returns a function that runs a round and returns its processor time.
func costs(b *testing.B, pool *pgxpool.Pool) func(step func(int)) cost {
	sessions := column[int](b, pool, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
	return func(step func(int)) cost {
		began := costOf(b, sessions)
		round(step)
		return costOf(b, sessions).since(began)
	}
}

// cost is processor time.
type cost struct{ service, server time.Duration }

// costOf returns what this process and the sessions of the server have taken so far.
func costOf(b *testing.B, sessions []int) cost {
	var own syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	c := cost{service: time.Duration(own.Utime.Nano() + own.Stime.Nano())}
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

func (c cost) since(began cost) cost { return cost{c.service - began.service, c.server - began.server} }

func (c cost) all() float64 { return float64(c.service + c.server) } // nanoseconds

func (c cost) plus(d cost) cost { return cost{c.service + d.service, c.server + d.server} }

// created answers that work has succeeded.
func created(work func(*http.Request) error) http.Handler {
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
	compare(b, served(b, theirs), served(b, ours))
}

// served returns a request to a handler over HTTP.
func served(b *testing.B, h http.Handler) func(int) {
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

// BenchmarkFirst compares claim and completion of a lease to an INSERT and an UPDATE written by hand: of a key, a
// fingerprint and a token, and of the same row that the store writes, with the same index.
func BenchmarkFirst(b *testing.B) {
	ours := func(b *testing.B, pool *pgxpool.Pool) func(int) { return leased(b, pool, pgxstore.Options{}) }
	bare := func(b *testing.B, pool *pgxpool.Pool) {
		newHandmade(b, pool)
		compare(b, func(int) {
			key := uuid.NewString()
			writeOne(pool, "INSERT INTO handmade (key, fingerprint, token) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
				key, key, key)
			writeOne(pool, "UPDATE handmade SET status = $3, header = $4, body = $5 WHERE key = $1 AND token = $2",
				key, key, answer.Status, string(answer.Header), answer.Body)
		}, ours(b, pool))
	}
	sameRow := func(b *testing.B, pool *pgxpool.Pool) {
		table := tableName(newTable(b, pool, pgxstore.Options{}))
		insert := "INSERT INTO " + table + ` (digest, user_id, endpoint, key, attempt, fingerprint, token,
				created_at, lease_until, expires_at, expires_minute)
			VALUES ($1, $2, $3, $4, 1, $5, $6, now(), now() + interval '1 minute', now() + interval '1 hour',
				date_trunc('minute', now()) + interval '1 hour') ON CONFLICT DO NOTHING`
		update := "UPDATE " + table + ` SET status = $3, header = $4, trailer = '', body = $5, completed_at = now(),
				lease_until = NULL, expires_at = now() + interval '1 hour',
				expires_minute = date_trunc('minute', now()) + interval '1 hour' WHERE digest = $1 AND token = $2`
		compare(b, func(int) {
			key := keyOf(uuid.NewString())
			digest, token := key.Digest(), [16]byte(uuid.New())
			writeOne(pool, insert, digest[:], key.User, key.Endpoint, key.ID, attempt.Fingerprint[:], token)
			writeOne(pool, update, digest[:], token, answer.Status, string(answer.Header), answer.Body)
		}, ours(b, pool))
	}
	b.Run("bare", func(b *testing.B) { onDisks(b, bare) })
	b.Run("same-row", func(b *testing.B) { onDisks(b, sameRow) })
}

// writeOne runs a statement that writes one row.
func writeOne(pool *pgxpool.Pool, sql string, args ...any) {
	tag, err := pool.Exec(context.Background(), sql, args...)
	if err != nil || tag.RowsAffected() != 1 {
		panic(fmt.Sprint(tag, err))
	}
}

// BenchmarkReplay compares a replay to a SELECT by primary key written by hand.
func BenchmarkReplay(b *testing.B) {
	pool := benchPool(b)
	ctx := context.Background()
	newHandmade(b, pool)
	const records = 1000
	ids := make([]string, records)
	for i := range ids {
		ids[i] = uuid.NewString()
		execute(b, pool, "INSERT INTO handmade (key, fingerprint, token, status, header, body) VALUES ($1, $2, $3, $4, $5, $6)",
			ids[i], ids[i], ids[i], answer.Status, string(answer.Header), answer.Body)
	}
	compare(b, func(i int) {
		var status int
		var fingerprint, header string
		var body []byte
		err := pool.QueryRow(ctx, "SELECT fingerprint, status, header, body FROM handmade WHERE key = $1", ids[i%records]).
			Scan(&fingerprint, &status, &header, &body)
		if err != nil || len(body) != len(answer.Body) {
			panic(err)
		}
	}, replayed(b, pool, pgxstore.Options{}))
}

// BenchmarkPartitions compares a table with partitions to one without: first executions and replays.
func BenchmarkPartitions(b *testing.B) {
	for _, days := range []pgxstore.Options{{PartitionDays: 1}, {PartitionDays: 1, SpareDays: 30}, {PartitionDays: 30}} {
		name := fmt.Sprintf("TTL of %d d, %d spare", days.PartitionDays, days.SpareDays)
		b.Run(name+"/first", func(b *testing.B) {
			pool := benchPool(b)
			compare(b, leased(b, pool, pgxstore.Options{}), leased(b, pool, days))
		})
		b.Run(name+"/replay", func(b *testing.B) {
			pool := benchPool(b)
			compare(b, replayed(b, pool, pgxstore.Options{}), replayed(b, pool, days))
		})
	}
}

// leased executes an operation with a lease.
func leased(b *testing.B, pool *pgxpool.Pool, opts pgxstore.Options) func(int) {
	return executed(pgxstore.New(pool, newTable(b, pool, opts)))
}

func executed(store idempotency.Store, works ...func(idempotency.Key, idempotency.Claim)) func(int) {
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

// replayed replays one of a thousand records.
func replayed(b *testing.B, pool *pgxpool.Pool, opts pgxstore.Options) func(int) {
	ctx := context.Background()
	store := pgxstore.New(pool, newTable(b, pool, opts))
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = completed(b, store).ID
	}
	execute(b, pool, "VACUUM ANALYZE")
	return func(i int) {
		record, claim, err := store.Begin(ctx, keyOf(ids[i%len(ids)]), attempt)
		if err != nil || claim != nil || len(record.Response.Body) != len(answer.Body) {
			panic(err)
		}
	}
}

func newHandmade(b *testing.B, pool *pgxpool.Pool) {
	execute(b, pool, "DROP TABLE IF EXISTS handmade")
	execute(b, pool, `CREATE TABLE handmade (key text PRIMARY KEY, fingerprint text NOT NULL, token text NOT NULL,
		created timestamptz NOT NULL DEFAULT now(), status int, header text, body bytea) WITH (fillfactor = 70)`)
}

// BenchmarkDropDay lets Maintain drop a day of a million records while claims go on.
func BenchmarkDropDay(b *testing.B) {
	pool := benchPool(b)
	now, set := newClock(b, pool)
	benchRemoval(b, pool, func() pgxstore.Options {
		set("2030-01-01 12:00:00+00")
		table := newTable(b, pool, pgxstore.Options{PartitionDays: 1}.At(now))
		fill(b, pool, table, removed, "'2030-01-01 13:00:00+00'::timestamptz")
		set("2030-01-02 12:00:00+00")
		return table
	})
}

// BenchmarkDeleteExpired lets Maintain delete a million records while claims go on.
func BenchmarkDeleteExpired(b *testing.B) {
	pool := benchPool(b)
	benchRemoval(b, pool, func() pgxstore.Options {
		table := newTable(b, pool, pgxstore.Options{})
		fill(b, pool, table, removed, "now() - interval '1 hour'")
		return table
	})
}

const removed = 1_000_000

func benchRemoval(b *testing.B, pool *pgxpool.Pool, filled func() pgxstore.Options) {
	var took, longest time.Duration
	for b.Loop() {
		table := filled()
		execute(b, pool, "VACUUM ANALYZE "+tableName(table))
		stop := claiming(b, pgxstore.New(pool, table))
		began := time.Now()
		require.NoError(b, pgxstore.NewTable(pool, table).Maintain(context.Background()))
		took += time.Since(began)
		require.Zero(b, one[int](b, pool, "SELECT count(*) FROM "+tableName(table)+" WHERE user_id = 'user'"))
		_, worst := stop()
		longest = max(longest, worst)
		execute(b, pool, "DROP TABLE "+tableName(table))
	}
	took /= time.Duration(b.N)
	b.ReportMetric(took.Seconds(), "s")
	b.ReportMetric(removed/took.Seconds(), "records/s")
	b.ReportMetric(float64(longest.Milliseconds()), "ms-longest-operation")
	b.ReportMetric(0, "ns/op")
}
