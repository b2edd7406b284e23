package pgxstore_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// standstill has two processes with a store on one table. Leases are not renewed, as if the first process stood
// still.
type standstill struct {
	*testing.T
	direct *pgxpool.Pool
	opts   pgxstore.Options
	rows   *rowTable
	key    idempotency.Key
}

func newStandstill(t *testing.T, opts pgxstore.Options) *standstill {
	s := &standstill{T: t, direct: newPool(t, serverURL(t)), key: keyOf(uuid.NewString())}
	opts.IdleTimeout = 500 * time.Millisecond
	s.opts = newTable(t, s.direct, opts)
	s.rows = newRows(t, s.direct, s.opts)
	return s
}

// claimBriefly claims the key for 200 ms, as soon as the store of the process grants the claim.
func (s *standstill) claimBriefly(pool *pgxpool.Pool) (claim idempotency.TxCheckpointer) {
	s.Helper()
	store := pgxstore.New(pool, s.opts)
	request := idempotency.ClaimRequest{
		Fingerprint: idempotency.Fingerprint{1}, Lease: 200 * time.Millisecond, TTL: time.Hour, TakeOver: true,
	}
	require.Eventually(s, func() bool {
		_, granted, err := store.Begin(s.Context(), s.key, request)
		require.NoError(s, err)
		if granted != nil {
			claim = granted.(idempotency.TxCheckpointer)
		}
		return granted != nil
	}, 20*time.Second, 10*time.Millisecond)
	return claim
}

// bookRow inserts a row with the name who, and then calls within.
func (s *standstill) bookRow(claim idempotency.TxCheckpointer, who string, within func(tx pgx.Tx)) error {
	var tx pgx.Tx
	_, err := claim.CheckpointTx(s.Context(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: 6 * time.Second, Run: func() ([]byte, error) {
			if _, err := tx.Exec(s.Context(), s.rows.insertStatement, who); err != nil {
				return nil, err
			}
			if within != nil {
				within(tx)
			}
			return []byte(`"` + who + `"`), nil
		},
	})
	return err
}

// requireOnly requires that the table has only the row of who, and that the next attempt finds the result of who.
func (s *standstill) requireOnly(who string, claim idempotency.TxCheckpointer) {
	s.Helper()
	require.Equal(s, []string{who}, queryColumn[string](s, s.direct, "SELECT name FROM "+s.rows.name))
	steps, err := claim.Checkpoints(s.Context())
	require.NoError(s, err)
	require.Equal(s, `"`+who+`"`, string(steps["book"]))
	require.NoError(s, claim.Complete(s.Context(), answer, time.Hour))
}

// A process stands still for longer than its lease, and another process takes over. The rows of exactly one process
// are committed.
func TestStandstillOfSteps(t *testing.T) {
	t.Parallel()
	for name, level := range isolationLevels {
		for point, test := range map[string]func(s *standstill, a *pgxpool.Pool, proxy *servertest.Proxy){
			"before the transaction": func(s *standstill, a *pgxpool.Pool, _ *servertest.Proxy) {
				claimA, claimB := s.claimBriefly(a), s.claimBriefly(s.direct)
				require.ErrorIs(s, s.bookRow(claimA, "a", nil), idempotency.ErrClaimLost)
				require.NoError(s, s.bookRow(claimB, "b", nil))
				s.requireOnly("b", claimB)
			},
			"within": func(s *standstill, a *pgxpool.Pool, _ *servertest.Proxy) {
				var claimB idempotency.TxCheckpointer
				require.Error(s, s.bookRow(s.claimBriefly(a), "a", func(pgx.Tx) {
					claimB = s.claimBriefly(s.direct)
					require.NoError(s, s.bookRow(claimB, "b", nil))
				}))
				s.requireOnly("b", claimB)
			},
			"its commit on the way": func(s *standstill, a *pgxpool.Pool, proxy *servertest.Proxy) {
				claimA, ended := s.claimBriefly(a), make(chan error)
				go func() {
					ended <- s.bookRow(claimA, "a", func(pgx.Tx) {
						proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "keep step"})
					})
				}()
				require.Eventually(s, func() bool { return proxy.Strikes() == 1 }, 20*time.Second, time.Millisecond)
				claimB := s.claimBriefly(s.direct)
				require.NoError(s, s.bookRow(claimB, "b", nil))
				proxy.Release()
				require.Error(s, <-ended)
				s.requireOnly("b", claimB)
			},
			"after the commit": func(s *standstill, a *pgxpool.Pool, _ *servertest.Proxy) {
				require.NoError(s, s.bookRow(s.claimBriefly(a), "a", nil))
				claimB := s.claimBriefly(s.direct)
				s.requireOnly("a", claimB)
			},
		} {
			t.Run(name+"/"+point, func(t *testing.T) {
				t.Parallel()
				s := newStandstill(t, level.opts)
				db, _ := startSharedServer()
				target := db.Addr()
				if level.bouncer {
					target = servertest.PgBouncer(t, db).Addr()
				}
				proxy := servertest.NewProxy(t, target)
				a := newPool(t, db.URLAt(proxy.Addr()), withoutPreparing, func(c *pgxpool.Config) {
					c.MaxConns = 1
					if level.session != "" {
						c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(level.session)
					}
				})
				test(s, a, proxy)
			})
		}
	}
}

// Each step lasts for several leases, on a pool with one connection. Duplicates come all the time, also from another
// process.
func TestLongSteps(t *testing.T) {
	t.Parallel()
	for name, level := range isolationLevels {
		if level.bouncer {
			continue
		}
		for kind, do := range mergeMaps(storeTxSteps, handlerTxSteps(level.opts.Isolation)) {
			if kind != "DoTx" && (kind != "DoInTx" || name != "read committed" && name != "repeatable read") {
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				direct := newPool(t, serverURL(t))
				opts := newTable(t, direct, level.opts)
				pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
					c.MaxConns = 1
					if level.session != "" {
						c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(level.session)
					}
				})
				const lease = 3 * time.Second // long, because connections come late on a busy machine
				settings := idempotency.Options{Lease: lease, StoreTimeout: lease}
				rows, ran := newRows(t, direct, opts), atomic.Int32{}
				handler := func(w http.ResponseWriter, r *http.Request) {
					ran.Add(1)
					ctx, key := r.Context(), r.Header.Get("Idempotency-Key")
					book := func(name string) {
						_, err := do(ctx, pool, name, func(tx stepTx) (string, error) {
							if err := tx.exec(ctx, rows.insertStatement, key); err != nil {
								return "", err
							}
							time.Sleep(3 * lease / 2)
							return "", tx.exec(ctx, rows.insertStatement, key)
						})
						assert.NoError(t, err)
					}
					book("first")
					_, err := step.Do(ctx, "charge", func(context.Context) (int, error) {
						time.Sleep(3 * lease / 2)
						return 1, nil
					})
					assert.NoError(t, err)
					book("second")
					w.WriteHeader(http.StatusCreated)
				}
				key, statuses := uuid.NewString(), map[int]int{}
				other := newMiddleware(t, pgxstore.New(newPool(t, serverURL(t)), opts), settings, handler)
				ended := make(chan struct{})
				var duplicates sync.WaitGroup
				duplicates.Go(func() {
					for {
						select {
						case <-ended:
							return
						case <-time.After(30 * time.Millisecond):
							if ran.Load() == 1 {
								statuses[post(other, key).Code]++
							}
						}
					}
				})
				w := post(newMiddleware(t, pgxstore.New(pool, opts), settings, handler), key)
				close(ended)
				duplicates.Wait()
				require.Equal(t, http.StatusCreated, w.Code)
				require.EqualValues(t, 1, ran.Load())
				require.Equal(t, 4, rows.countRows(t, key))
				require.NotZero(t, statuses[http.StatusConflict])
			})
		}
	}
}

// Handlers wait for a provider at the same time, for more keys than the pool has connections. The handlers hold no
// connection meanwhile, so all of them are answered soon, and a replay is answered at once.
func TestPoolWhileProvidersAreSlow(t *testing.T) {
	t.Parallel()
	const keys, provider = 24, 2 * time.Second
	direct := newPool(t, serverURL(t))
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	opts := newTable(t, direct, pgxstore.Options{})
	b := &bookings{rows: newRows(t, direct, opts), pool: pool, do: storeTxSteps["DoTx"]}
	var waiting atomic.Int32
	h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "before" {
			waiting.Add(1)
			time.Sleep(provider)
		}
		b.ServeHTTP(w, r)
	})
	require.Equal(t, http.StatusCreated, post(h, "before").Code)
	var mu sync.Mutex
	var took []time.Duration
	var crowd sync.WaitGroup
	for range keys {
		crowd.Go(func() {
			began := time.Now()
			assert.Equal(t, http.StatusCreated, post(h, uuid.NewString()).Code)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
		})
	}
	require.Eventually(t, func() bool { return waiting.Load() == keys }, 20*time.Second, time.Millisecond)
	began := time.Now()
	w := post(h, "before")
	replayed := time.Since(began)
	require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
	crowd.Wait()
	t.Logf("slowest %v, replay %v", slices.Max(took), replayed)
	require.Less(t, replayed, provider/2, "no replay waits for a provider")
	require.Less(t, slices.Max(took), 2*provider, "no key waits for the provider of another one")
	require.EqualValues(t, keys+1, b.stepRuns.Load())
}

// A first execution with a step takes five round trips, and one of them is the INSERT of the handler. A retry that
// finds the result takes three: claim, results, completion. A serializable transaction first reads the place of the
// record.
func TestRoundTripsOfStepsInTransactions(t *testing.T) {
	t.Parallel()
	for name, level := range isolationLevels {
		if level.bouncer || level.session != "" {
			continue
		}
		for kind, want := range map[string]int{"DoTx": 5, "DoSQLTx": 5, "DoInTx": 7, "DoInSQLTx": 7} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				direct := newPool(t, serverURL(t))
				_, own := storeTxSteps[kind]
				pool, proxy := newProxiedPool(t, func(c *pgxpool.Config) {
					c.MaxConns = 1
					if !own { // the store reads results while the handler has a connection
						c.MaxConns = 2
					}
				})
				opts := newTable(t, direct, level.opts)
				b := &bookings{rows: newRows(t, direct, opts), pool: pool,
					do: mergeMaps(storeTxSteps, handlerTxSteps(level.opts.Isolation))[kind]}
				fails := true
				h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{},
					func(w http.ResponseWriter, r *http.Request) {
						b.ServeHTTP(w, r)
						if fails {
							panic(http.ErrAbortHandler)
						}
					})
				ask := func(key string, aborted bool) (flights int) {
					before := proxy.Flights()
					fails = aborted
					defer func() {
						_ = recover()
						flights = proxy.Flights() - before
					}()
					post(h, key)
					return 0
				}
				for range 4 { // prepares the statements on each connection
					key := uuid.NewString()
					ask(key, true)
					ask(key, false)
				}
				if own && level.opts.Isolation == pgx.Serializable {
					want++
				}
				require.Equal(t, want, ask(uuid.NewString(), false))
				key := uuid.NewString()
				ask(key, true)
				retry := ask(key, false)
				if own {
					require.Equal(t, 3, retry)
				} else {
					require.Equal(t, 5, retry, "and the empty transaction of the handler")
				}
			})
		}
	}
}
