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

// shop is a service that does something, in a step in a transaction if it has a ledger, and else elsewhere.
type shop struct {
	store  func() idempotency.Store // of one more instance of the service
	ledger *ledger                  // nil: the service writes no rows

	mu        sync.Mutex
	elsewhere map[string]int             // effects of each key
	answers   map[string]map[string]bool // to each key that clients got
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	answer := uuid.NewString() // no two executions give the same one
	if s.ledger == nil {
		s.mu.Lock()
		s.elsewhere[key]++
		s.mu.Unlock()
	} else {
		var err error
		answer, err = pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (string, error) {
			_, err := tx.Exec(r.Context(), s.ledger.insert(), key)
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
	if s.ledger != nil {
		return s.ledger.effects(t, keyOf(key))
	}
	return s.elsewhere[key]
}

// The standby is cut off, and takes over. What a client was told has happened is on the new primary, and happened once.
func TestFailover(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pool := newPool(t, c.url())
	shops := map[string]*shop{}
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		for _, name := range []string{"elsewhere", "rows"} {
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			s := &shop{
				store:     func() idempotency.Store { return pgxstore.New(pool, opts) },
				elsewhere: map[string]int{}, answers: map[string]map[string]bool{},
			}
			if name == "rows" {
				rows := newLedger(t, pool, opts)
				s.ledger = &rows
			}
			shops[name+"/"+form] = s
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
	store := pgxstore.New(pool, opts)
	key, claim := begun(t, store)
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
		_, _, err := store.Begin(brief, keyOf("1"), attempt)
		cancel()
		claim := testservice.InDoubt(err)
		require.NotNil(t, claim, form)
		require.Equal(t, 1, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)), form)
		c.standby.Resume()
		require.NoError(t, claim.Release(ctx, time.Hour), form)
		_, claim, err = store.Begin(ctx, keyOf("1"), attempt)
		require.NoError(t, err, form)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour), form)
	}
}
