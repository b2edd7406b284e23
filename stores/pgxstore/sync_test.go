package pgxstore_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// syncCluster is a primary whose commits wait for its standby.
type syncCluster struct {
	primary, standby *servertest.Database
	standbyProxy     *servertest.Proxy // between primary and standby
}

func newCluster(t testing.TB) syncCluster {
	t.Helper()
	primary := servertest.Postgres(t, "synchronous_standby_names=*")
	link := servertest.NewProxy(t, primary.Addr())
	return syncCluster{primary, servertest.Replica(t, link.Addr()), link}
}

// writableURL returns the URL of the server that takes writes.
func (c syncCluster) writableURL() string {
	return c.primary.URLAt(c.primary.Addr()+","+c.standby.Addr()) + "&target_session_attrs=read-write"
}

// failoverService is a service with an effect: a row that a step in a transaction inserts if ledger is set, or else
// a count in otherEffects.
type failoverService struct {
	newStore func() idempotency.Store // returns the store of a new instance
	ledger   *effectsTable            // nil if the service writes no rows

	mu           sync.Mutex
	otherEffects map[string]int             // number of effects by key
	answersByKey map[string]map[string]bool // answers that clients got
}

func (s *failoverService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	answer := uuid.NewString() // differs in each execution
	if s.ledger == nil {
		s.mu.Lock()
		s.otherEffects[key]++
		s.mu.Unlock()
	} else {
		var err error
		answer, err = pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (string, error) {
			_, err := tx.Exec(r.Context(), s.ledger.insertStatement(), key)
			return answer, err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, answer)
}

// sendRequest sends a request to a new instance of the service, and returns the status.
func (s *failoverService) sendRequest(t testing.TB, key string, within time.Duration) int {
	t.Helper()
	w := post(newMiddleware(t, s.newStore(), idempotency.Options{StoreTimeout: within}, s.ServeHTTP), key)
	if w.Code == http.StatusCreated {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.answersByKey[key] == nil {
			s.answersByKey[key] = map[string]bool{}
		}
		s.answersByKey[key][w.Body.String()] = true
	}
	return w.Code
}

// countEffects returns how often a request took effect, less the effects that the failover has lost.
func (s *failoverService) countEffects(t testing.TB, key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger != nil {
		return s.ledger.countEffects(t, keyOf(key))
	}
	return s.otherEffects[key]
}

// The standby is cut off and promoted. Acknowledged effects are on the new primary, and happened once.
func TestFailover(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pool := newPool(t, c.writableURL())
	shops := map[string]*failoverService{}
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		for _, name := range []string{"elsewhere", "rows"} {
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			s := &failoverService{
				newStore:     func() idempotency.Store { return pgxstore.New(pool, opts) },
				otherEffects: map[string]int{}, answersByKey: map[string]map[string]bool{},
			}
			if name == "rows" {
				rows := newLedger(t, pool, opts)
				s.ledger = &rows
			}
			shops[name+"/"+form] = s
		}
	}
	each := func(test func(t *testing.T, s *failoverService)) {
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

	each(func(t *testing.T, s *failoverService) {
		require.Equal(t, http.StatusCreated, s.sendRequest(t, "before", patient))
	})
	c.standbyProxy.Close()
	each(func(t *testing.T, s *failoverService) {
		assert.Equal(t, http.StatusServiceUnavailable, s.sendRequest(t, "during", brief))
		for range 2 {
			assert.Contains(t, []int{http.StatusConflict, http.StatusServiceUnavailable}, s.sendRequest(t, "during", brief))
		}
	})
	c.primary.Crash()
	require.NoError(t, c.standby.Promote())
	each(func(t *testing.T, s *failoverService) {
		for _, key := range []string{"before", "during"} {
			for range 2 {
				require.Equal(t, http.StatusCreated, s.sendRequest(t, key, patient))
			}
			require.Len(t, s.answersByKey[key], 1, "answers to the request %s the cut", key)
			require.Equal(t, 1, s.countEffects(t, key), "effects of the request %s the cut", key)
		}
	})
}

// A commit that becomes visible because its owner has stopped waiting does not count until the standby has it.
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
	store := pgxstore.New(pool, opts)
	key, claim := claimNewKey(t, store)
	complete := func(ctx context.Context) error { return claim.Complete(ctx, answer, time.Hour) }
	outcome := make(chan error, 1)
	require.NoError(t, c.standby.Pause())
	for range 3 {
		require.Error(t, within(time.Second, complete), "also a repetition")
	}
	require.True(t, isCompleted(t, pool, opts, key))
	go func() { outcome <- within(10*time.Second, complete) }()
	_ = within(time.Second, func(ctx context.Context) error {
		record, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.Nil(t, claim)
		require.Nil(t, record.Response)
		require.NotZero(t, record.LeaseLeft, "it is running")
		return nil
	})
	require.Empty(t, outcome)

	c.standby.Resume()
	require.NoError(t, <-outcome)
	require.NoError(t, within(10*time.Second, complete))
	record, _, err := store.Begin(context.Background(), key, attempt)
	require.NoError(t, err)
	require.Equal(t, answer, *record.Response)
}

func isCompleted(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key) bool {
	return queryValue[bool](t, pool,
		"SELECT count(*) > 0 FROM "+tableName(opts)+" WHERE key = $1 AND status IS NOT NULL", key.ID)
}

// A lease that the standby lacks would protect nothing after a failover, so no handler runs on it.
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
		_, _, err := store.Begin(brief, keyOf("1"), attempt)
		cancel()
		claim := testservice.InDoubt(err)
		require.NotNil(t, claim, form)
		require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)), form)
		c.standby.Resume()
		require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}), form)
		_, claim, err = store.Begin(ctx, keyOf("1"), attempt)
		require.NoError(t, err, form)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour), form)
	}
}
