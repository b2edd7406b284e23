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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/migrate/changeover"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

const schema = `
CREATE TABLE effects (user_id text);
CREATE TABLE idempotency_keys (
	user_id text, key text, PRIMARY KEY (user_id, key),
	locked_at timestamptz NOT NULL DEFAULT now(),
	response_status int, response_body text
)`

// startDatabase returns the database that all tests share. The server ends with this process.
var startDatabase = sync.OnceValues(func() (*pgxpool.Pool, error) {
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

// step is the part of a step that a test chooses. It runs after the effect.
type step func(ctx context.Context, tx pgx.Tx) (changeover.Answer, error)

// returnAnswer returns a step that only returns an answer.
func returnAnswer(status int, body string) step {
	return func(context.Context, pgx.Tx) (changeover.Answer, error) {
		return changeover.Answer{Status: status, Body: body}, nil
	}
}

// service is a new version with its own user. Its step inserts an effect, and then runs afterEffect.
type service struct {
	*testing.T
	pool *pgxpool.Pool
	user string
	url  string

	afterEffect step
	stepRuns    atomic.Int64
}

func newService(t *testing.T, afterEffect step) *service {
	t.Helper()
	pool, err := startDatabase()
	servertest.Require(t, err)
	s := &service{T: t, pool: pool, user: rand.Text(), afterEffect: afterEffect}
	store := pgxstore.New(s.pool, pgxstore.Options{})
	opts := idempotency.Options{Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(store, func(*http.Request) (string, error) { return s.user, nil }, opts)
	require.NoError(t, err)
	server := httptest.NewServer(idem.Handler(s))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := changeover.DoTx(r, "effect", func(tx pgx.Tx) (changeover.Answer, error) {
		s.stepRuns.Add(1)
		_, err := tx.Exec(r.Context(), "INSERT INTO effects VALUES ($1)", s.user)
		require.NoError(s, err)
		return s.afterEffect(r.Context(), tx)
	})
	switch {
	case errors.Is(err, changeover.ErrRunning):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		w.WriteHeader(answer.Status)
		_, _ = io.WriteString(w, answer.Body)
	}
}

func (s *service) execSQL(sql string, args ...any) (rows int64) {
	s.Helper()
	tag, err := s.pool.Exec(s.Context(), sql, args...)
	require.NoError(s, err)
	return tag.RowsAffected()
}

const oldClaimSQL = "INSERT INTO idempotency_keys (user_id, key) VALUES ($1, $2) ON CONFLICT DO NOTHING"

// claimAsOldVersion claims key as an old instance does, and reports whether the old instance may run the handler.
func (s *service) claimAsOldVersion(key string) bool {
	s.Helper()
	return s.execSQL(oldClaimSQL, s.user, key) == 1
}

// completeAsOldVersion stores the answer as an old instance does after its handler.
func (s *service) completeAsOldVersion(key string, status int, body string) {
	s.Helper()
	const update = "UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE user_id = $1 AND key = $2"
	require.EqualValues(s, 1, s.execSQL(update, s.user, key, status, body))
}

// requireRow requires that the row of key, from which an old instance answers, has this answer.
func (s *service) requireRow(key string, status int, body string) {
	s.Helper()
	var gotStatus int
	var text string
	const read = "SELECT response_status, response_body FROM idempotency_keys WHERE user_id = $1 AND key = $2"
	require.NoError(s, s.pool.QueryRow(s.Context(), read, s.user, key).Scan(&gotStatus, &text))
	require.Equal(s, status, gotStatus)
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
	s := newService(t, returnAnswer(http.StatusCreated, ""))
	require.True(t, s.claimAsOldVersion("running"))
	for range 2 {
		resp, _ := s.send("running")
		require.Equal(t, http.StatusConflict, resp.StatusCode)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Empty(t, resp.Header.Get("Idempotent-Replayed"))
	}
	s.completeAsOldVersion("running", 201, "charged by the old version")
	s.requireAnswer("running", 201, "charged by the old version", false)

	require.True(t, s.claimAsOldVersion("refused"))
	s.completeAsOldVersion("refused", 422, "too much")
	s.requireAnswer("refused", 422, "too much", false)

	require.True(t, s.claimAsOldVersion(`"quoted"`)) // the old version takes the quotes as a part of the key
	s.completeAsOldVersion(`"quoted"`, 201, "quoted")
	s.requireAnswer(`"quoted"`, 201, "quoted", false)

	s.execSQL("DELETE FROM idempotency_keys WHERE user_id = $1", s.user) // the middleware has stored the answers
	s.requireAnswer("running", 201, "charged by the old version", true)
	s.requireAnswer("refused", 422, "too much", true)
	require.Zero(t, s.stepRuns.Load())
}

// While the new version works on a key, an old instance with the same key waits, and then finds the answer.
func TestOldInstancesWaitForTheNewVersion(t *testing.T) {
	t.Parallel()
	running, goOn := make(chan struct{}), make(chan struct{})
	s := newService(t, func(context.Context, pgx.Tx) (changeover.Answer, error) {
		close(running)
		<-goOn
		return changeover.Answer{Status: http.StatusCreated, Body: "charged"}, nil
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.requireAnswer("key", 201, "charged", false)
	}()
	<-running
	claimed := make(chan bool)
	go func() { claimed <- s.claimAsOldVersion("key") }()
	const waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = $1)"
	require.Eventually(t, func() bool {
		var waits bool
		err := s.pool.QueryRow(t.Context(), waiting, oldClaimSQL).Scan(&waits)
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
		afterEffect step
		status      int
		body        string
		isStored    bool
		effectCount int // after two requests
		stepRuns    int // after two requests
	}{
		"success": {
			afterEffect: returnAnswer(http.StatusOK, "done"), status: 200, body: "done", isStored: true, effectCount: 1, stepRuns: 1,
		},
		"refusal": {
			afterEffect: returnAnswer(http.StatusUnprocessableEntity, "too much"),
			status:      422, body: "too much", isStored: true, effectCount: 0, stepRuns: 1,
		},
		"refusal after an error of the database": {
			afterEffect: func(ctx context.Context, tx pgx.Tx) (changeover.Answer, error) {
				_, err := tx.Exec(ctx, "SELECT 1/0")
				return changeover.Answer{Status: http.StatusUnprocessableEntity, Body: err.Error()[:6]}, nil
			},
			status: 422, body: "ERROR:", isStored: true, effectCount: 0, stepRuns: 1,
		},
		"failure": {
			afterEffect: func(context.Context, pgx.Tx) (changeover.Answer, error) {
				return changeover.Answer{}, errors.New("down")
			},
			status: 503, body: "try again\n", effectCount: 0, stepRuns: 2,
		},
		"ignored error of the database": {
			afterEffect: func(ctx context.Context, tx pgx.Tx) (changeover.Answer, error) {
				_, err := tx.Exec(ctx, "SELECT 1/0")
				return changeover.Answer{Status: http.StatusOK, Body: err.Error()[:6]}, nil
			},
			status: 503, body: "try again\n", effectCount: 0, stepRuns: 2,
		},
		"rollback by the step": {
			afterEffect: func(ctx context.Context, tx pgx.Tx) (changeover.Answer, error) {
				return changeover.Answer{Status: http.StatusOK}, tx.Rollback(ctx)
			},
			status: 503, body: "try again\n", effectCount: 0, stepRuns: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, scenario.afterEffect)
			s.requireAnswer("key", scenario.status, scenario.body, false)
			s.requireAnswer("key", scenario.status, scenario.body, scenario.isStored)
			require.EqualValues(t, scenario.stepRuns, s.stepRuns.Load())
			s.requireEffects(scenario.effectCount)
			if scenario.isStored {
				s.requireRow("key", scenario.status, scenario.body)
			}
			require.Equal(t, !scenario.isStored, s.claimAsOldVersion("key"), "an old instance may claim the key if nobody has an answer")
		})
	}
}

// A step that panics leaves neither the claim nor the effect. The same holds for an instance that dies.
func TestPanicLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, func(context.Context, pgx.Tx) (changeover.Answer, error) { panic(http.ErrAbortHandler) })
	r, err := http.NewRequest(http.MethodPost, s.url, nil)
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "key")
	_, err = http.DefaultClient.Do(r)
	require.Error(t, err)
	require.True(t, s.claimAsOldVersion("key"))
	s.requireEffects(0)
}

// For a request without a key, DoTx returns an error without a call of the step, as [pgxstore.DoTx] does.
func TestRequestsWithoutAKeyHaveNoStep(t *testing.T) {
	t.Parallel()
	s := newService(t, returnAnswer(http.StatusAccepted, ""))
	s.requireAnswer("", http.StatusServiceUnavailable, "try again\n", false)
	require.Zero(t, s.stepRuns.Load())
}
