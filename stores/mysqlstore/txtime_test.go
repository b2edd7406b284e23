package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// standstill has two processes with a store on one table. Leases are not renewed, as if the first process (stalled)
// stood still. The other process (successor) takes over.
type standstill struct {
	*testing.T
	proxy              *servertest.Proxy
	stalled, successor *bookings
}

func newStandstill(t *testing.T, settings ...string) *standstill {
	proxy := servertest.NewProxy(t, sharedServer(t).Addr())
	opts, db := newOptions(), openPool(t, sharedServer(t).DSN())
	opts.IdleTimeout = time.Second
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	rows := opts.Table + "_rows"
	execStatement(t, db, "CREATE TABLE "+rows+" (name VARCHAR(50)) ENGINE = InnoDB")
	bookingsOf := func(db *sql.DB) *bookings { return &bookings{db: db, store: mysqlstore.New(db, opts), rowsTable: rows} }
	return &standstill{t, proxy, bookingsOf(openPool(t, sharedServer(t).DSNAt(proxy.Addr()), settings...)), bookingsOf(db)}
}

// claimBriefly claims the key for 200 ms, as soon as the store of the process grants the claim.
func (s *standstill) claimBriefly(of *bookings) (claim idempotency.TxCheckpointer) {
	s.Helper()
	brief := takeover
	brief.Lease = 200 * time.Millisecond
	requireEventually(s, "the claim", func() bool {
		_, granted, err := of.store.Begin(s.Context(), keyOf("key"), brief)
		require.NoError(s, err)
		if granted != nil {
			claim = granted.(idempotency.TxCheckpointer)
		}
		return granted != nil
	})
	return claim
}

func (s *standstill) bookRow(of *bookings, claim idempotency.TxCheckpointer, who string, within func()) error {
	step := of.newStoreTxStep(who, func(*sql.Tx) error {
		within()
		return nil
	})
	step.Timeout = 8 * time.Second
	_, err := claim.CheckpointTx(s.Context(), step)
	return err
}

// requireOnly requires that the table has only the row of who, and that the next attempt finds the result of who.
func (s *standstill) requireOnly(who string, claim idempotency.TxCheckpointer) {
	s.Helper()
	require.Equal(s, who, queryValue[string](s, s.successor.db, "SELECT GROUP_CONCAT(name) FROM "+s.successor.rowsTable))
	found, err := claim.Checkpoints(s.Context())
	require.NoError(s, err)
	require.Equal(s, who, string(found["book"]))
	require.NoError(s, claim.Complete(s.Context(), answer, time.Hour))
}

// A process stands still for longer than its lease, and another process takes over. The rows of exactly one process
// are committed. A process that stands still in its transaction keeps the record locked until the server ends the
// session.
func TestStandstillOfSteps(t *testing.T) {
	t.Parallel()
	nothing := func() {}
	onItsWay := func(pattern string) func(s *standstill) {
		return func(s *standstill) {
			claimA, ended := s.claimBriefly(s.stalled), make(chan error, 1)
			s.proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: pattern})
			go func() { ended <- s.bookRow(s.stalled, claimA, "a", nothing) }()
			requireEventually(s, "the standstill", func() bool { return s.proxy.Strikes() == 1 })
			claimB := s.claimBriefly(s.successor)
			require.NoError(s, s.bookRow(s.successor, claimB, "b", nothing))
			s.proxy.Release()
			require.Error(s, <-ended)
			s.requireOnly("b", claimB)
		}
	}
	for level, settings := range map[string][]string{
		"repeatable read": nil, "snapshot isolation": {"innodb_snapshot_isolation=1"},
		"read committed": {"tx_isolation=%27READ-COMMITTED%27"}, "serializable": {"tx_isolation=%27SERIALIZABLE%27"},
	} {
		for point, test := range map[string]func(s *standstill){
			"before the transaction": func(s *standstill) {
				claimA, claimB := s.claimBriefly(s.stalled), s.claimBriefly(s.successor)
				require.ErrorIs(s, s.bookRow(s.stalled, claimA, "a", nothing), idempotency.ErrClaimLost)
				require.NoError(s, s.bookRow(s.successor, claimB, "b", nothing))
				s.requireOnly("b", claimB)
			},
			"after its beginning": onItsWay("LAST_INSERT_ID"),
			"its commit":          onItsWay("autocommit = 1"),
			"its result":          onItsWay("CONCAT(COALESCE"),
			"within": func(s *standstill) {
				var claimB idempotency.TxCheckpointer
				require.Error(s, s.bookRow(s.stalled, s.claimBriefly(s.stalled), "a", func() {
					claimB = s.claimBriefly(s.successor)
					require.NoError(s, s.bookRow(s.successor, claimB, "b", nothing))
				}))
				s.requireOnly("b", claimB)
			},
			"after the commit": func(s *standstill) {
				require.NoError(s, s.bookRow(s.stalled, s.claimBriefly(s.stalled), "a", nothing))
				s.requireOnly("a", s.claimBriefly(s.successor))
			},
		} {
			t.Run(level+"/"+point, func(t *testing.T) {
				t.Parallel()
				test(newStandstill(t, settings...))
			})
		}
	}
}

// An operator kills the session of a step before one of its statements. In the end, the row is there once.
func TestSessionsOfStepsAreKilled(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"SET autocommit = 0, @idempotency_wait", "LAST_INSERT_ID", "SAVEPOINT idempotency", "_rows (name)",
		"RELEASE SAVEPOINT", "CONCAT(COALESCE", "autocommit = 1",
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			var killed atomic.Bool
			w := &interceptor{editStatement: func(sent string) string {
				isMeant := strings.Contains(sent, statement) && (strings.HasPrefix(statement, "RELEASE") ||
					!strings.HasPrefix(sent, "RELEASE"))
				if isMeant && killed.CompareAndSwap(false, true) {
					return "KILL CONNECTION_ID()"
				}
				return sent
			}}
			b := newBookings(t, servertest.Relay(t, sharedServer(t).Addr(), w.relayConns))
			requireEventually(t, "the answer", func() bool {
				return b.runOperation("key", func(ctx context.Context) error {
					_, err := b.bookRow(ctx, "row", doNothing)
					return err
				}) == nil
			})
			require.True(t, killed.Load())
			b.requireRows(t, 1, "row")
			requireCleanConns(t, b)
		})
	}
}

// A deadlock rolls a step back. The step returns the error of the deadlock without a second run of the function. A
// later call runs the function again.
func TestDeadlockOfAStep(t *testing.T) {
	t.Parallel()
	for name, isIgnored := range map[string]bool{"returned": false, "ignored": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBookings(t, sharedServer(t).Addr())
			accounts := b.rowsTable + "_accounts"
			execStatement(t, b.db, "CREATE TABLE "+accounts+" (id INT PRIMARY KEY, balance INT) ENGINE = InnoDB")
			execStatement(t, b.db, "INSERT INTO "+accounts+" VALUES (1, 100), (2, 100)")
			update := func(tx *sql.Tx, id string) error {
				return execAll(tx, "UPDATE "+accounts+" SET balance = balance + 1 WHERE id = "+id)
			}
			other, err := b.db.Begin()
			require.NoError(t, err)
			// the server rolls back the lighter transaction
			require.NoError(t, execAll(other, "INSERT INTO "+b.rowsTable+" (name) SELECT 'weight' FROM seq_1_to_100"))
			require.NoError(t, update(other, "1"))
			claim, runs, ended := b.claimKey(t, "key"), 0, make(chan error, 1)
			s := b.newStoreTxStep("victim", func(tx *sql.Tx) error {
				runs++
				require.NoError(t, update(tx, "2"))
				go func() { ended <- update(other, "2") }()
				requireWaiting(t, openPool(t, sharedServer(t).DSN()), accounts)
				err := update(tx, "1")
				require.ErrorContains(t, err, "1213")
				if isIgnored {
					return execAll(tx, "INSERT INTO "+b.rowsTable+" (name) VALUES ('after')")
				}
				return err
			})
			_, err = claim.CheckpointTx(t.Context(), s)
			if isIgnored {
				require.ErrorIs(t, err, step.ErrMisuse)
			} else {
				deadlock, ok := errors.AsType[*mysql.MySQLError](err)
				require.True(t, ok)
				require.EqualValues(t, 1213, deadlock.Number)
			}
			require.Equal(t, 1, runs)
			require.False(t, s.Escaped)
			require.NoError(t, <-ended)
			require.NoError(t, other.Commit())
			b.requireRows(t, 0, "victim")
			b.requireRows(t, 0, "after")
			_, err = claim.CheckpointTx(t.Context(), b.newStoreTxStep("victim", func(tx *sql.Tx) error { return update(tx, "1") }))
			require.NoError(t, err)
			b.requireRows(t, 1, "victim")
			requireCleanConns(t, b)
		})
	}
}

// A crash of the server rolls back the transaction of a step. Committed rows are there after the restart.
func TestServerCrashesUnderSteps(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1")
	db := openPool(t, m.DSN())
	store, table := newStore(t, db)
	b := &bookings{db: db, store: store, rowsTable: table + "_rows"}
	execStatement(t, db, "CREATE TABLE "+b.rowsTable+" (name VARCHAR(50)) ENGINE = InnoDB")
	count := func(name string) int {
		return queryValue[int](t, db, "SELECT COUNT(*) FROM "+b.rowsTable+" WHERE name = ?", name)
	}

	claim := b.claimKey(t, "key")
	for _, also := range []func(*sql.Tx) error{
		func(*sql.Tx) error { return m.Restart() },
		func(*sql.Tx) error { return errors.Join(m.Restart(), errOfStep) },
	} {
		s := b.newStoreTxStep("row", also)
		_, err := claim.CheckpointTx(t.Context(), s)
		require.Error(t, err)
		require.False(t, s.Escaped)
		require.Zero(t, count("row"))
	}
	_, err := claim.CheckpointTx(t.Context(), b.newStoreTxStep("row", doNothing))
	require.NoError(t, err)
	require.NoError(t, m.Restart())
	require.Equal(t, 1, count("row"))
	found, err := claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, "row", string(found["book"]))
}

// newMiddleware returns handler behind the middleware. The cleanup of the test waits for the middleware's background
// work.
func newMiddleware(
	t *testing.T, store idempotency.Store, opts idempotency.Options, handler http.HandlerFunc,
) http.Handler {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, idem.Shutdown(context.Background())) })
	return idem.Handler(handler)
}

// newService returns a service that calls work, and then books the key in a step.
func (b *bookings) newService(t *testing.T, work func(key string)) func(key string) *httptest.ResponseRecorder {
	t.Helper()
	handler := newMiddleware(t, b.store, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		work(key)
		if _, err := b.bookRow(r.Context(), key, doNothing); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	return func(key string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
}

// Handlers wait for a provider at the same time, for more keys than the pool has connections. The handlers hold no
// connection meanwhile, so all of them are answered soon, and a replay is answered at once.
func TestPoolWhileProvidersAreSlow(t *testing.T) {
	t.Parallel()
	const keys, provider = 24, 2 * time.Second
	for name, size := range map[string]int{"pool of 4": 4, "pool of 1": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBookings(t, sharedServer(t).Addr())
			b.db.SetMaxOpenConns(size)
			var waiting atomic.Int32
			post := b.newService(t, func(key string) {
				if key != "before" {
					waiting.Add(1)
					time.Sleep(provider)
				}
			})
			require.Equal(t, http.StatusCreated, post("before").Code)
			var mu sync.Mutex
			var took []time.Duration
			var crowd sync.WaitGroup
			for range keys {
				crowd.Go(func() {
					began, key := time.Now(), uuid.NewString()
					assert.Equal(t, http.StatusCreated, post(key).Code)
					b.requireRows(t, 1, key)
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(began))
				})
			}
			requireEventually(t, "all handlers", func() bool { return waiting.Load() == keys })
			began := time.Now()
			w := post("before")
			replayed := time.Since(began)
			require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
			crowd.Wait()
			t.Logf("slowest %v, replay %v", slices.Max(took), replayed)
			require.Less(t, replayed, provider/2, "no replay waits for a provider")
			require.Less(t, slices.Max(took), 2*provider, "no key waits for the provider of another one")
		})
	}
}

// A step lasts for several leases. The claim is not taken over, duplicates get an error, and the operation
// completes.
func TestLongStep(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	b := newBookings(t, sharedServer(t).Addr())
	b.db.SetMaxOpenConns(4)
	var runs atomic.Int32
	handler := newMiddleware(t, b.store, idempotency.Options{Lease: lease, StoreTimeout: lease},
		func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			for _, name := range []string{"first", "second"} {
				_, err := mysqlstore.DoTx(r.Context(), name, func(tx *sql.Tx) (string, error) {
					err := execAll(tx, "INSERT INTO "+b.rowsTable+" (name) VALUES ('"+name+"')")
					time.Sleep(5 * lease / 2)
					return name, err
				})
				assert.NoError(t, err)
			}
			w.WriteHeader(http.StatusCreated)
		})
	post := func() int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "key")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	ended := make(chan int)
	go func() { ended <- post() }()
	requireEventually(t, "the handler", func() bool { return runs.Load() == 1 })
	statuses := map[int]int{}
	for status := 0; status == 0; {
		select {
		case status = <-ended:
			require.Equal(t, http.StatusCreated, status)
		case <-time.After(50 * time.Millisecond):
			statuses[post()]++
		}
	}
	require.EqualValues(t, 1, runs.Load())
	require.Equal(t, http.StatusCreated, post())
	b.requireRows(t, 1, "first")
	b.requireRows(t, 1, "second")
	t.Log(statuses)
	require.NotZero(t, statuses[http.StatusConflict], "while the lease lasts")
	require.NotZero(t, statuses[http.StatusServiceUnavailable], "behind its end")
}

// A first execution with a step takes ten round trips, whether the store or the handler begins and commits the
// transaction. One of the ten is the INSERT of the handler. A retry that finds the result takes four round trips:
// two for the claim, one for the results, one for the completion.
func TestRoundTripsOfStepsInTransactions(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"default": nil, "interpolated": {"interpolateParams=true"}, "found rows": {"clientFoundRows=true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := servertest.MariaDB(t)
			db := openPool(t, m.DSN(), settings...)
			db.SetMaxOpenConns(1)
			store, table := newStore(t, db)
			b := &bookings{db: db, store: store, rowsTable: table + "_rows"}
			execStatement(t, db, "CREATE TABLE "+b.rowsTable+" (name VARCHAR(50)) ENGINE = InnoDB")
			counter := openPool(t, m.DSN())
			counter.SetMaxOpenConns(1)
			trips := func(do func()) int {
				before := countCommands(t, counter)
				do()
				return countCommands(t, counter) - before - 1 // less the query of the counter
			}
			own := func(claim idempotency.TxCheckpointer) {
				_, err := claim.CheckpointTx(t.Context(), b.newStoreTxStep("row", doNothing))
				require.NoError(t, err)
			}
			joined := func(claim idempotency.TxCheckpointer) {
				tx, err := db.Begin()
				require.NoError(t, err)
				_, err = claim.CheckpointTx(t.Context(), b.newHandlerTxStep(tx, "row", doNothing))
				require.NoError(t, err)
				require.NoError(t, tx.Commit())
			}
			for kind, book := range map[string]func(idempotency.TxCheckpointer){"DoTx": own, "DoInTx": joined} {
				first := func(key string) {
					claim := b.claimKey(t, key)
					book(claim)
					require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
				}
				retry := func(key string) {
					claim := b.claimKey(t, key)
					found, err := claim.Checkpoints(t.Context())
					require.NoError(t, err)
					require.Len(t, found, 1)
					require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
				}
				abort := func(key string) {
					claim := b.claimKey(t, key)
					book(claim)
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
				}
				first(kind + " warm") // prepares the statements
				abort(kind + " aborted, warm")
				retry(kind + " aborted, warm")
				require.Equal(t, 10, trips(func() { first(kind) }), kind)
				abort(kind + " aborted")
				require.Equal(t, 4, trips(func() { retry(kind + " aborted") }), kind)
			}
		})
	}
}
