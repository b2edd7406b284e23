package pgxstore_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// service is a server over HTTP, whose users say by X-User who they are.
type service struct {
	*httptest.Server
	status atomic.Int64 // of the next answers
	runs   atomic.Int64 // of the handler

	mu   sync.Mutex
	last idempotency.Event
}

func newService(t testing.TB, store idempotency.Store, opts idempotency.Options) *service {
	t.Helper()
	s := &service{}
	s.status.Store(http.StatusCreated)
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Observer = func(_ context.Context, e idempotency.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = e
	}
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	m, err := idempotency.New(store, user, opts)
	require.NoError(t, err)
	s.Server = httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		w.WriteHeader(int(s.status.Load()))
		_, _ = fmt.Fprint(w, "secret of ", r.Header.Get("X-User"))
	})))
	t.Cleanup(s.Close)
	return s
}

// ask sends a request with a key, and returns status and body of the answer.
func (s *service) ask(t testing.TB, user, key string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.URL+"/payments", nil)
	require.NoError(t, err)
	r.Header.Set("X-User", user)
	r.Header.Set("Idempotency-Key", key)
	resp, err := s.Client().Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

// outcome returns what the last answer was reported as.
func (s *service) outcome() idempotency.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// eachForm calls test for a store on a plain table, and for one on a divided table.
func eachForm(t *testing.T, test func(*testing.T, *pgxpool.Pool, pgxstore.Options, *pgxstore.Store)) {
	t.Helper()
	for form, days := range map[string]int{"plain": 0, "partitions": 2} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			test(t, pool, opts, pgxstore.New(pool, opts))
		})
	}
}

// rowOf returns all that the table has under a key, as text.
func rowOf(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key) string {
	digest := key.Digest()
	return one[string](t, pool, "SELECT coalesce(string_agg(r::text, ' '), '') FROM "+tableName(opts)+" r WHERE digest = $1",
		digest[:])
}

// forge changes columns of the record of a key.
func forge(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key, set string) {
	t.Helper()
	digest := key.Digest()
	execute(t, pool, "UPDATE "+tableName(opts)+" SET "+set+" WHERE digest = $1", digest[:])
}

func newSubject(pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) rowtest.Subject {
	return rowtest.Subject{
		Store: store,
		Set:   func(t testing.TB, key, set string) { forge(t, pool, opts, keyOf(key), set) },
		Dump:  func(t testing.TB, key string) string { return rowOf(t, pool, opts, keyOf(key)) },
		Lapse: lapse,
	}
}

// Whoever can write to the table has no answer shown that was not made for the request, and no completed operation run
// again. The record is left as it is.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	const (
		invalid  = http.StatusServiceUnavailable
		gone     = http.StatusConflict
		replayed = http.StatusCreated
	)
	eachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		s := newService(t, store, idempotency.Options{Abandoned: idempotency.ReExecute})
		for set, want := range map[string]int{
			`user_id = 'mallory'`:                           invalid,
			`user_id = ''`:                                  invalid,
			`user_id = encode(sha256('alice'), 'hex')`:      invalid, // the other names are in the clear
			`endpoint = 'POST /refunds'`:                    invalid,
			`key = 'another'`:                               invalid,
			`fingerprint = ''`:                              invalid,
			`fingerprint = 'short'`:                         invalid,
			`fingerprint = fingerprint || '\x00'`:           invalid,
			`fingerprint = decode(repeat('00', 32), 'hex')`: invalid,
			`attempt = 0`:                                   invalid,
			`attempt = -1`:                                  invalid,
			`attempt = 2147483647`:                          invalid,
			`status = -5`:                                   invalid,
			`status = 1`:                                    invalid,
			`status = 199`:                                  invalid,
			`status = 1000`:                                 invalid,
			`status = 100000`:                               invalid,
			`status = NULL`:                                 invalid,
			`completed_at = NULL`:                           invalid,
			`header = 'no end'`:                             invalid,
			`header = E'A: b\rc\n'`:                         invalid,
			`trailer = E'A\n\n'`:                            invalid,
			`trailer = E'A: \u00e9\n'`:                      invalid,
			`note = E'a\nb'`:                                invalid,
			`note = E'caf\u00e9'`:                           invalid,
			`lease_until = 'infinity'`:                      invalid,
			`lease_until = '-infinity'`:                     invalid,
			`body = NULL`:                                   gone,
			`header = NULL`:                                 replayed,
			`trailer = NULL`:                                replayed,
			`lease_until = now()`:                           replayed,
			`lease_until = '294276-12-31'`:                  replayed,
			`created_at = '-infinity'`:                      replayed,
			`completed_at = 'infinity'`:                     replayed,
			`token = gen_random_uuid()`:                     replayed,
			`replays = -1`:                                  replayed,
			`expires_minute = 'infinity'`:                   replayed,
		} {
			t.Run(set, func(t *testing.T) { expectForged(t, pool, opts, s, set, want) })
		}
		if opts.PartitionDays == 0 { // else there is no partition for it
			t.Run("kept for ever", func(t *testing.T) {
				expectForged(t, pool, opts, s, "expires_at = 'infinity'", replayed)
			})
		}
	})
}

// expectForged completes an operation, changes its record, and asks again.
func expectForged(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, s *service, set string, want int) {
	key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: uuid.NewString()}
	status, body := s.ask(t, key.User, key.ID)
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, "secret of alice", body)
	forge(t, pool, opts, key, set)
	forged, runs := rowOf(t, pool, opts, key), s.runs.Load()
	if want == http.StatusServiceUnavailable {
		_, _, err := pgxstore.New(pool, opts).Begin(t.Context(), key, attempt)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Nil(t, testservice.InDoubt(err))
	}

	for range 2 {
		status, body = s.ask(t, key.User, key.ID)
		require.Equal(t, want, status, body)
		if want == http.StatusServiceUnavailable {
			require.ErrorIs(t, s.outcome().Err, idempotency.ErrRecordInvalid)
		}
	}
	require.Equal(t, runs, s.runs.Load(), "runs of the handler")
	require.Equal(t, forged, rowOf(t, pool, opts, key), "the record is left alone")
}

// The record of somebody else's answer, put under the attacker's key, is not shown.
func TestRecordOfAnotherKey(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		s := newService(t, store, idempotency.Options{})
		_, _ = s.ask(t, "alice", "1")
		own := idempotency.Key{User: "mallory", Endpoint: "POST /payments", ID: "2"}
		digest := own.Digest()
		execute(t, pool, "UPDATE "+tableName(opts)+" SET digest = $1", digest[:])
		forged := rowOf(t, pool, opts, own)
		status, body := s.ask(t, own.User, own.ID)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.NotContains(t, body, "alice")
		require.ErrorIs(t, s.outcome().Err, idempotency.ErrRecordInvalid)
		require.Equal(t, int64(1), s.runs.Load())
		require.Equal(t, forged, rowOf(t, pool, opts, own))
	})
}

// What was released, or whose lease has lapsed, is claimed only if it is the record of the key, and whole. What has
// expired is replaced, whatever it is.
func TestForgedRecordsThatCanBeClaimed(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		s := newService(t, store, idempotency.Options{Abandoned: idempotency.ReExecute})
		owner := newService(t, pgxstore.New(pool, opts), idempotency.Options{})
		owner.status.Store(http.StatusInternalServerError)
		abandon := func(t *testing.T, state, set string) (key idempotency.Key) {
			key = idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: uuid.NewString()}
			_, _ = owner.ask(t, key.User, key.ID)
			forge(t, pool, opts, key, state)
			forge(t, pool, opts, key, set)
			return key
		}
		for name, state := range map[string]string{
			"released": "lease_until = NULL", "lapsed": "lease_until = now() - interval '1 second'",
		} {
			for _, set := range []string{
				`user_id = 'mallory'`, `endpoint = 'POST /refunds'`, `key = 'another'`, `completed_at = now()`,
				`attempt = 0`, `attempt = -7`, `attempt = 2147483647`, `fingerprint = 'short'`,
				`fingerprint = decode(repeat('00', 32), 'hex')`, `lease_until = '-infinity'`, `lease_until = 'infinity'`,
				`status = 99, completed_at = now()`,
			} {
				if name == "released" && set == "attempt = 0" {
					continue // so is what is left of a key that was freed
				}
				t.Run(name+"/"+set, func(t *testing.T) {
					key := abandon(t, state, set)
					forged := rowOf(t, pool, opts, key)
					status, _ := s.ask(t, key.User, key.ID)
					require.Equal(t, http.StatusServiceUnavailable, status)
					require.ErrorIs(t, s.outcome().Err, idempotency.ErrRecordInvalid)
					require.Equal(t, forged, rowOf(t, pool, opts, key), "the record is left alone")
					require.Zero(t, s.runs.Load())
				})
			}
		}
		for name, state := range map[string]string{
			"released": "lease_until = NULL", "lapsed": "lease_until = now() - interval '1 second'",
		} {
			t.Run(name, func(t *testing.T) {
				key := abandon(t, state, "replays = 0")
				runs := s.runs.Load()
				status, _ := s.ask(t, key.User, key.ID)
				require.Equal(t, http.StatusCreated, status, "the next attempt at what was not forged")
				require.Equal(t, runs+1, s.runs.Load())
			})
		}
		t.Run("expired", func(t *testing.T) {
			key := abandon(t, "expires_at = now() - interval '1 second'",
				"user_id = 'mallory', status = 99, attempt = -1, completed_at = NULL")
			for range 2 {
				status, body := s.ask(t, key.User, key.ID)
				require.Equal(t, http.StatusCreated, status, body)
			}
			row := rowOf(t, pool, opts, key)
			require.Contains(t, row, "alice")
			require.NotContains(t, row, "mallory")
		})
	})
}

// The record of a claim is changed by another session while the statement that claims waits for it.
func TestForgedWhileClaiming(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key, claim := begun(t, store)
	require.NoError(t, claim.Release(ctx, time.Hour))

	other, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = other.Rollback(ctx) }()
	_, err = other.Exec(ctx, "UPDATE "+tableName(opts)+" SET user_id = 'mallory'")
	require.NoError(t, err)
	outcome := make(chan error, 1)
	go func() {
		_, claim, err := store.Begin(ctx, key, attempt)
		if claim != nil {
			err = fmt.Errorf("claimed: %w", err)
		}
		outcome <- err
	}()
	waitForLock(t, pool, opts)
	require.NoError(t, other.Commit(ctx))
	require.ErrorIs(t, <-outcome, idempotency.ErrRecordInvalid)
}

// waitForLock returns when a claim waits for another session.
func waitForLock(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) {
	t.Helper()
	require.Eventually(t, func() bool {
		return one[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT l.granted AND a.query LIKE '%"' || $1 || '\_claim%')`, opts.Table)
	}, 10*time.Second, time.Millisecond, "the claim waits for the other session")
}

// Whoever knows a key can compute the ID of its operation. It is not the token by which a claim is settled.
func TestOperationIsNoToken(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	eachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		check := func(what string, key idempotency.Key) {
			digest, id := key.Digest(), key.OperationID().String()
			before := rowOf(t, pool, opts, key)
			require.NotContains(t, before, id, what)
			for step, args := range map[string][]any{
				"extend":   {time.Hour.Microseconds()},
				"release":  {time.Hour.Microseconds()},
				"complete": {time.Hour.Microseconds(), 201, "", "", []byte("forged"), nil, nil},
			} {
				execute(t, pool, opts.Statement(step), append([]any{digest[:], id}, args...)...)
				require.Equal(t, before, rowOf(t, pool, opts, key), "%s: %s", what, step)
			}
		}
		key, claim := begun(t, pgxstore.New(pool, opts))
		check("running", key)
		require.NoError(t, claim.Release(ctx, time.Hour))
		check("released", key)
		_, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour))
		check("the next attempt", key)
		check("completed", completed(t, store))
	})
}
