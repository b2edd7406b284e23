package changeover_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/migrate/changeover"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

const schema = `
CREATE TABLE effects (user_id text);
CREATE TABLE idempotency_keys (
	user_id text, key text, PRIMARY KEY (user_id, key),
	locked_at timestamptz NOT NULL DEFAULT now(),
	response_status int, response_body text
)`

// database is what the tests share. It ends with this process.
var database = sync.OnceValues(func() (*pgxpool.Pool, error) {
	server, err := servertest.StartPostgres()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(context.Background(), server.URL())
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(context.Background(), schema)
	return pool, errors.Join(err, pgxstore.Migrate(context.Background(), pool, pgxstore.Options{}))
})

// service is a new version with a user of its own. Its handler has an effect, and then does what a test says.
type service struct {
	*testing.T
	pool *pgxpool.Pool
	user string
	url  string
	runs atomic.Int64
}

func newService(t *testing.T, then http.HandlerFunc) *service {
	t.Helper()
	pool, err := database()
	servertest.Require(t, err)
	s := &service{T: t, pool: pool, user: rand.Text()}
	store := pgxstore.NewTx(s.pool, pgxstore.Options{})
	opts := idempotency.Options{Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(store, func(*http.Request) (string, error) { return s.user, nil }, opts)
	require.NoError(t, err)
	handler := func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		if tx, ok := pgxstore.Tx(r.Context()); ok {
			_, err := tx.Exec(r.Context(), "INSERT INTO effects VALUES ($1)", s.user)
			require.NoError(s, err)
		}
		then(w, r)
	}
	server := httptest.NewServer(idem.Handler(changeover.Handler(http.HandlerFunc(handler))))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *service) exec(sql string, args ...any) (rows int64) {
	s.Helper()
	tag, err := s.pool.Exec(s.Context(), sql, args...)
	require.NoError(s, err)
	return tag.RowsAffected()
}

const oldClaim = "INSERT INTO idempotency_keys (user_id, key) VALUES ($1, $2) ON CONFLICT DO NOTHING"

// oldClaim is what an old instance does first. It reports whether that may go on.
func (s *service) oldClaim(key string) bool {
	s.Helper()
	return s.exec(oldClaim, s.user, key) == 1
}

// oldComplete is what an old instance does last.
func (s *service) oldComplete(key string, status int, body string) {
	s.Helper()
	const update = "UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE user_id = $1 AND key = $2"
	require.EqualValues(s, 1, s.exec(update, s.user, key, status, body))
}

// requireRow checks what an old instance would answer.
func (s *service) requireRow(key string, status int, body string) {
	s.Helper()
	var is int
	var text string
	const read = "SELECT response_status, response_body FROM idempotency_keys WHERE user_id = $1 AND key = $2"
	require.NoError(s, s.pool.QueryRow(s.Context(), read, s.user, key).Scan(&is, &text))
	require.Equal(s, status, is)
	require.Equal(s, body, text)
}

func (s *service) requireEffects(want int) {
	s.Helper()
	var effects int
	require.NoError(s, s.pool.QueryRow(s.Context(), "SELECT count(*) FROM effects WHERE user_id = $1", s.user).Scan(&effects))
	require.Equal(s, want, effects)
}

func (s *service) send(key string) (resp *http.Response, body string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader("4200"))
	require.NoError(s, err)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err = http.DefaultClient.Do(r)
	require.NoError(s, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return resp, string(text)
}

func (s *service) requireAnswer(key string, status int, body string, replayed bool) {
	s.Helper()
	resp, text := s.send(key)
	require.Equal(s, status, resp.StatusCode, text)
	require.Equal(s, body, text)
	require.Equal(s, replayed, resp.Header.Get("Idempotent-Replayed") == "true")
}

func TestAnswersOfTheOldVersionAreUsed(t *testing.T) {
	t.Parallel()
	s := newService(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	require.True(t, s.oldClaim("running"))
	for range 2 {
		resp, _ := s.send("running")
		require.Equal(t, http.StatusConflict, resp.StatusCode)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Empty(t, resp.Header.Get("Idempotent-Replayed"))
	}
	s.oldComplete("running", 201, "charged by the old version")
	s.requireAnswer("running", 201, "charged by the old version", false)

	require.True(t, s.oldClaim("refused"))
	s.oldComplete("refused", 422, "too much")
	s.requireAnswer("refused", 422, "too much", false)

	require.True(t, s.oldClaim(`"quoted"`)) // the old version does not know that the quotes are not a part of the key
	s.oldComplete(`"quoted"`, 201, "quoted")
	s.requireAnswer(`"quoted"`, 201, "quoted", false)

	s.exec("DELETE FROM idempotency_keys WHERE user_id = $1", s.user) // the middleware has these answers now
	s.requireAnswer("running", 201, "charged by the old version", true)
	s.requireAnswer("refused", 422, "too much", true)
	require.Zero(t, s.runs.Load())
}

// While the new version works on a key, an old instance waits, and then finds the answer.
func TestOldInstancesWaitForTheNewVersion(t *testing.T) {
	t.Parallel()
	running, goOn := make(chan struct{}), make(chan struct{})
	s := newService(t, func(w http.ResponseWriter, _ *http.Request) {
		close(running)
		<-goOn
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.requireAnswer("key", 201, "charged", false)
	}()
	<-running
	claimed := make(chan bool)
	go func() { claimed <- s.oldClaim("key") }()
	const waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = $1)"
	require.Eventually(t, func() bool {
		var waits bool
		err := s.pool.QueryRow(t.Context(), waiting, oldClaim).Scan(&waits)
		return err == nil && waits
	}, time.Minute, time.Millisecond)
	close(goOn)
	require.False(t, <-claimed)
	<-answered
	s.requireRow("key", 201, "charged")
	s.requireEffects(1)
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, scenario := range map[string]struct {
		then          http.HandlerFunc
		status        int
		body          string
		stored        bool
		effects, runs int // after two requests
	}{
		"success": {
			then: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") },
			body: "done", status: 200, stored: true, effects: 1, runs: 1,
		},
		"no answer": {
			then:   func(http.ResponseWriter, *http.Request) {},
			status: 200, stored: true, effects: 1, runs: 1,
		},
		"refusal": {
			then: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "too much", http.StatusUnprocessableEntity)
			},
			status: 422, body: "too much\n", stored: true, effects: 0, runs: 1,
		},
		"refusal after an error in the database": {
			then: func(w http.ResponseWriter, r *http.Request) {
				tx, _ := pgxstore.Tx(r.Context())
				_, err := tx.Exec(r.Context(), "SELECT 1/0")
				http.Error(w, err.Error()[:6], http.StatusUnprocessableEntity)
			},
			status: 422, body: "ERROR:\n", stored: true, effects: 0, runs: 1,
		},
		"failure": {
			then:   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) },
			status: 503, body: "down\n", effects: 0, runs: 2,
		},
		"too many requests": {
			then:   func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "slowly", http.StatusTooManyRequests) },
			status: 429, body: "slowly\n", effects: 0, runs: 2,
		},
		"rollback by the handler": {
			then: func(_ http.ResponseWriter, r *http.Request) {
				tx, _ := pgxstore.Tx(r.Context())
				_ = tx.Rollback(r.Context())
			},
			status: 503, body: "try again\n", effects: 0, runs: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, scenario.then)
			s.requireAnswer("key", scenario.status, scenario.body, false)
			s.requireAnswer("key", scenario.status, scenario.body, scenario.stored)
			require.EqualValues(t, scenario.runs, s.runs.Load())
			s.requireEffects(scenario.effects)
			if scenario.stored {
				s.requireRow("key", scenario.status, scenario.body)
			}
			require.Equal(t, !scenario.stored, s.oldClaim("key"), "an old instance may claim the key if nobody has an answer")
		})
	}
}

// A handler that panics, like an instance that dies, leaves no row behind.
func TestPanicLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	r, err := http.NewRequest(http.MethodPost, s.url, nil)
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "key")
	_, err = http.DefaultClient.Do(r)
	require.Error(t, err)
	require.True(t, s.oldClaim("key"))
	s.requireEffects(0)
}

func TestRequestsWithoutAKeyPass(t *testing.T) {
	t.Parallel()
	s := newService(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	s.requireAnswer("", 202, "", false)
	require.EqualValues(t, 1, s.runs.Load())
}
