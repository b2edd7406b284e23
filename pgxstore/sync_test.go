package pgxstore_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// cluster is a primary that acknowledges no commit unless its standby has it.
type cluster struct {
	primary, standby *servertest.Database
	link             *servertest.Proxy // between them
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	primary := servertest.Postgres(t, "synchronous_standby_names=*")
	link := servertest.NewProxy(t, primary.Addr())
	return cluster{primary, servertest.Replica(t, link.Addr()), link}
}

// url is that of the server that can be written to.
func (c cluster) url() string {
	return c.primary.URLAt(c.primary.Addr()+","+c.standby.Addr()) + "&target_session_attrs=read-write"
}

// shop is a service that does something, in its transaction if it has one, and else elsewhere.
type shop struct {
	store  func() idempotency.Store // of one more instance of the service
	ledger ledger

	mu        sync.Mutex
	elsewhere map[string]int             // effects of each key
	answers   map[string]map[string]bool // to each key that clients got
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if tx, ok := pgxstore.Tx(r.Context()); !ok {
		s.mu.Lock()
		s.elsewhere[key]++
		s.mu.Unlock()
	} else if _, err := tx.Exec(r.Context(), s.ledger.insert(), key); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, uuid.New()) // no two executions give the same answer
}

// ask sends a request to a new instance of the service, and returns the status.
func (s *shop) ask(t testing.TB, key string, within time.Duration) int {
	t.Helper()
	w := post(newMiddleware(t, s.store(), idempotency.Options{StoreTimeout: within}, s.ServeHTTP), key)
	if w.Code == http.StatusCreated {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answers[key] == nil {
			s.answers[key] = map[string]bool{}
		}
		s.answers[key][w.Body.String()] = true
	}
	return w.Code
}

// effects returns how often a request took effect, as far as that was not lost.
func (s *shop) effects(t testing.TB, key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elsewhere[key] + s.ledger.effects(t, keyOf(key))
}

// The standby is cut off, and takes over. What a client was told has happened is on the new primary, and happened once.
func TestFailover(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pool := newPool(t, c.url())
	shops := map[string]*shop{}
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		for kind := range stores(nil, pgxstore.Options{}) {
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			shops[kind+"/"+form] = &shop{
				store: func() idempotency.Store { return stores(pool, opts)[kind] }, ledger: newLedger(t, pool, opts),
				elsewhere: map[string]int{}, answers: map[string]map[string]bool{},
			}
		}
	}
	each := func(test func(t *testing.T, s *shop)) {
		t.Run("each", func(t *testing.T) {
			for name, s := range shops {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, s)
				})
			}
		})
	}
	const patient, brief = 20 * time.Second, time.Second

	each(func(t *testing.T, s *shop) {
		require.Equal(t, http.StatusCreated, s.ask(t, "before", patient))
	})
	c.link.Close()
	each(func(t *testing.T, s *shop) {
		assert.Equal(t, http.StatusServiceUnavailable, s.ask(t, "during", brief))
		for range 2 {
			assert.Contains(t, []int{http.StatusConflict, http.StatusServiceUnavailable}, s.ask(t, "during", brief))
		}
	})
	c.primary.Crash()
	require.NoError(t, c.standby.Promote())
	each(func(t *testing.T, s *shop) {
		for _, key := range []string{"before", "during"} {
			for range 2 {
				require.Equal(t, http.StatusCreated, s.ask(t, key, patient))
			}
			require.Len(t, s.answers[key], 1, "answers to the request %s the cut", key)
			require.Equal(t, 1, s.effects(t, key), "effects of the request %s the cut", key)
		}
	})
}

// A commit that has become visible because its owner stopped waiting is not done before the standby has it.
func TestCommitWaitsForStandby(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pool := newPool(t, c.primary.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	within := func(d time.Duration, call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		return call(ctx)
	}
	type operation struct {
		store    idempotency.Store
		key      idempotency.Key
		complete func(context.Context) error
		outcome  chan error
	}
	operations := map[string]operation{}
	for kind, store := range stores(pool, opts) {
		key, claim := begun(t, store)
		complete := func(ctx context.Context) error { return claim.Complete(ctx, answer, time.Hour) }
		operations[kind] = operation{store, key, complete, make(chan error, 1)}
	}

	require.NoError(t, c.standby.Pause())
	for kind, o := range operations {
		go func() {
			for i := 0; kind == "lease" && i < 3; i++ { // the other one says the same again, whatever it was
				assert.Error(t, within(time.Second, o.complete), "a repetition")
			}
			o.outcome <- within(10*time.Second, o.complete)
		}()
	}
	for _, o := range operations {
		require.Eventually(t, func() bool { return isCompleted(t, pool, opts, o.key) }, 10*time.Second, 10*time.Millisecond)
	}
	for kind, o := range operations {
		_ = within(time.Second, func(ctx context.Context) error {
			record, claim, err := o.store.Begin(ctx, o.key, attempt)
			require.NoError(t, err, kind)
			require.Nil(t, claim, kind)
			require.Nil(t, record.Response, kind)
			require.True(t, record.NoLease, "it is running")
			return nil
		})
		require.Empty(t, o.outcome, kind)
	}

	c.standby.Resume()
	for kind, o := range operations {
		require.NoError(t, <-o.outcome, kind)
		require.NoError(t, within(10*time.Second, o.complete), kind)
		record, _, err := o.store.Begin(context.Background(), o.key, attempt)
		require.NoError(t, err, kind)
		require.Equal(t, answer, *record.Response, kind)
	}
}

func isCompleted(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key) bool {
	return one[bool](t, pool,
		"SELECT count(*) > 0 FROM "+tableName(opts)+" WHERE key = $1 AND status IS NOT NULL", key.ID)
}

// A lease that the standby does not have would not keep anybody away after a failover: nobody runs on it.
func TestClaimWaitsForStandby(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := newCluster(t)
	pool := newPool(t, c.primary.URL())
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
		store := pgxstore.New(pool, opts)
		require.NoError(t, c.standby.Pause())
		brief, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, claim, err := store.Begin(brief, keyOf("1"), attempt)
		cancel()
		require.Error(t, err, form)
		require.NotNil(t, claim, form)
		require.Equal(t, 1, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)), form)
		c.standby.Resume()
		require.NoError(t, claim.Release(ctx, time.Hour), form)
		_, claim, err = store.Begin(ctx, keyOf("1"), attempt)
		require.NoError(t, err, form)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour), form)
	}
}
