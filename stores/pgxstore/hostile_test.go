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

// service is an HTTP server whose users identify themselves by X-User.
type service struct {
	*httptest.Server
	nextStatus atomic.Int64 // status of the next answers
	runCount   atomic.Int64 // number of runs of the handler

	mu   sync.Mutex
	last idempotency.Event
}

func newService(t testing.TB, store idempotency.Store, opts idempotency.Options) *service {
	t.Helper()
	s := &service{}
	s.nextStatus.Store(http.StatusCreated)
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
		s.runCount.Add(1)
		w.WriteHeader(int(s.nextStatus.Load()))
		_, _ = fmt.Fprint(w, "secret of ", r.Header.Get("X-User"))
	})))
	t.Cleanup(s.Close)
	return s
}

// sendRequest sends a request with a key, and returns the status and the body of the answer.
func (s *service) sendRequest(t testing.TB, user, key string) (status int, body string) {
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

// readOutcome returns the reported event of the last answer.
func (s *service) readOutcome() idempotency.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// testEachForm calls test with a store on a plain table, and with a store on a partitioned table.
func testEachForm(t *testing.T, test func(*testing.T, *pgxpool.Pool, pgxstore.Options, *pgxstore.Store)) {
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

// dumpRecord returns all columns of a key's record as text.
func dumpRecord(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key) string {
	operation := key.OperationID()
	return queryValue[string](t, pool, "SELECT coalesce(string_agg(r::text, ' '), '') FROM "+tableName(opts)+" r WHERE operation = $1",
		operation)
}

// forgeRecord changes columns of a key's record.
func forgeRecord(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key, set string) {
	t.Helper()
	operation := key.OperationID()
	execStatement(t, pool, "UPDATE "+tableName(opts)+" SET "+set+" WHERE operation = $1", operation)
}

func newSubject(pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) rowtest.Subject {
	return rowtest.Subject{
		Store: store,
		Set:   func(t testing.TB, key, set string) { forgeRecord(t, pool, opts, keyOf(key), set) },
		Dump:  func(t testing.TB, key string) string { return dumpRecord(t, pool, opts, keyOf(key)) },
		Lapse: lapseLease,
	}
}

// An attacker who can write to the table cannot make the store replay an answer of another request, or run a
// completed operation again. The store leaves the forged record as it is.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	const (
		invalid  = http.StatusServiceUnavailable
		gone     = http.StatusConflict
		replayed = http.StatusCreated
	)
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		s := newService(t, store, idempotency.Options{Abandoned: idempotency.ReExecute})
		for set, want := range map[string]int{
			`user_id = 'mallory'`:                           invalid,
			`user_id = ''`:                                  invalid,
			`user_id = encode(sha256('alice'), 'hex')`:      invalid, // the other names are not digests
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
			t.Run(set, func(t *testing.T) { requireForgedStatus(t, pool, opts, s, set, want) })
		}
		if opts.PartitionDays == 0 { // a partitioned table has no partition for this time
			t.Run("kept for ever", func(t *testing.T) {
				requireForgedStatus(t, pool, opts, s, "expires_at = 'infinity'", replayed)
			})
		}
	})
}

// requireForgedStatus completes an operation, changes its record, and requires the status want for the next request.
func requireForgedStatus(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, s *service, set string, want int) {
	key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: uuid.NewString()}
	status, body := s.sendRequest(t, key.User, key.ID)
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, "secret of alice", body)
	forgeRecord(t, pool, opts, key, set)
	forged, runs := dumpRecord(t, pool, opts, key), s.runCount.Load()
	if want == http.StatusServiceUnavailable {
		_, _, err := pgxstore.New(pool, opts).Begin(t.Context(), key, attempt)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Nil(t, testservice.InDoubt(err))
	}

	for range 2 {
		status, body = s.sendRequest(t, key.User, key.ID)
		require.Equal(t, want, status, body)
		if want == http.StatusServiceUnavailable {
			require.ErrorIs(t, s.readOutcome().Err, idempotency.ErrRecordInvalid)
		}
	}
	require.Equal(t, runs, s.runCount.Load(), "runs of the handler")
	require.Equal(t, forged, dumpRecord(t, pool, opts, key), "the record is left alone")
}

// The record of another user's answer is not replayed after an attacker has moved it to the attacker's key.
func TestRecordOfAnotherKey(t *testing.T) {
	t.Parallel()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		s := newService(t, store, idempotency.Options{})
		_, _ = s.sendRequest(t, "alice", "1")
		own := idempotency.Key{User: "mallory", Endpoint: "POST /payments", ID: "2"}
		execStatement(t, pool, "UPDATE "+tableName(opts)+" SET operation = $1", own.OperationID())
		forged := dumpRecord(t, pool, opts, own)
		status, body := s.sendRequest(t, own.User, own.ID)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.NotContains(t, body, "alice")
		require.ErrorIs(t, s.readOutcome().Err, idempotency.ErrRecordInvalid)
		require.Equal(t, int64(1), s.runCount.Load())
		require.Equal(t, forged, dumpRecord(t, pool, opts, own))
	})
}

// A released or lapsed record is claimed only if it is the complete record of the key. An expired record is always
// replaced.
func TestForgedRecordsThatCanBeClaimed(t *testing.T) {
	t.Parallel()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		s := newService(t, store, idempotency.Options{Abandoned: idempotency.ReExecute})
		owner := newService(t, pgxstore.New(pool, opts), idempotency.Options{})
		owner.nextStatus.Store(http.StatusInternalServerError)
		abandon := func(t *testing.T, state, set string) (key idempotency.Key) {
			key = idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: uuid.NewString()}
			_, _ = owner.sendRequest(t, key.User, key.ID)
			forgeRecord(t, pool, opts, key, state)
			forgeRecord(t, pool, opts, key, set)
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
					continue // the rest of a freed key is replaced too
				}
				t.Run(name+"/"+set, func(t *testing.T) {
					key := abandon(t, state, set)
					forged := dumpRecord(t, pool, opts, key)
					status, _ := s.sendRequest(t, key.User, key.ID)
					require.Equal(t, http.StatusServiceUnavailable, status)
					require.ErrorIs(t, s.readOutcome().Err, idempotency.ErrRecordInvalid)
					require.Equal(t, forged, dumpRecord(t, pool, opts, key), "the record is left alone")
					require.Zero(t, s.runCount.Load())
				})
			}
		}
		for name, state := range map[string]string{
			"released": "lease_until = NULL", "lapsed": "lease_until = now() - interval '1 second'",
		} {
			t.Run(name, func(t *testing.T) {
				key := abandon(t, state, "replays = 0")
				runs := s.runCount.Load()
				status, _ := s.sendRequest(t, key.User, key.ID)
				require.Equal(t, http.StatusCreated, status, "the next attempt at what was not forged")
				require.Equal(t, runs+1, s.runCount.Load())
			})
		}
		t.Run("expired", func(t *testing.T) {
			key := abandon(t, "expires_at = now() - interval '1 second'",
				"user_id = 'mallory', status = 99, attempt = -1, completed_at = NULL")
			for range 2 {
				status, body := s.sendRequest(t, key.User, key.ID)
				require.Equal(t, http.StatusCreated, status, body)
			}
			row := dumpRecord(t, pool, opts, key)
			require.Contains(t, row, "alice")
			require.NotContains(t, row, "mallory")
		})
	})
}

// Another session changes the record while the statement of a claim waits for this session.
func TestForgedWhileClaiming(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key, claim := claimNewKey(t, store)
	require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))

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

// waitForLock waits until a claim waits for another session.
func waitForLock(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) {
	t.Helper()
	require.Eventually(t, func() bool {
		return queryValue[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT l.granted AND a.query LIKE '%"' || $1 || '\_claim%')`, opts.Table)
	}, 10*time.Second, time.Millisecond, "the claim waits for the other session")
}

// An attacker who knows a key can compute its operation ID. This ID is not the token of the claim.
func TestOperationIsNoToken(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		check := func(what string, key idempotency.Key) {
			id := key.OperationID().String()
			before := dumpRecord(t, pool, opts, key)
			for step, args := range map[string][]any{
				"extend":   {time.Hour.Microseconds()},
				"release":  {time.Hour.Microseconds(), "forged"},
				"abandon":  {"forged"},
				"complete": {time.Hour.Microseconds(), 201, "", "", []byte("forged"), nil, nil},
			} {
				execStatement(t, pool, opts.Statement(step), append([]any{id, id}, args...)...)
				require.Equal(t, before, dumpRecord(t, pool, opts, key), "%s: %s", what, step)
			}
		}
		key, claim := claimNewKey(t, pgxstore.New(pool, opts))
		check("running", key)
		require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
		check("released", key)
		_, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour))
		check("the next attempt", key)
		check("completed", completeNewKey(t, store))
	})
}
