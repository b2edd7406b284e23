package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/cache"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

const someNote = "payment 4711, trace 00-4bf92f"

// A note goes from the handler to the events of its operation, by way of the store, and never to a client.
func TestNote(t *testing.T) {
	t.Parallel()
	memory := func(t *testing.T) idempotency.Store { return testservice.NewSpyStore() }
	for name, newStore := range map[string]func(t *testing.T) idempotency.Store{
		"memory": memory,
		"cache": func(t *testing.T) idempotency.Store {
			return cache.New(memory(t), cache.Options{})
		},
		"sealed": func(t *testing.T) idempotency.Store {
			return testservice.MustSeal(t, memory(t), testservice.Sealing("a"))
		},
	} {
		for _, header := range []http.Header{nil, {"Content-Type": {"text/plain"}, "Location": {"/payments/1"}}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				svc := testservice.Setup{Store: newStore(t)}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
					assert.NoError(t, idempotency.Annotate(r.Context(), "an earlier note"))
					assert.NoError(t, idempotency.Annotate(r.Context(), someNote))
					for name, values := range header {
						w.Header()[name] = values
					}
					w.WriteHeader(http.StatusCreated)
				})
				first := svc.Post("k", "b")
				require.Equal(t, http.StatusCreated, first.Status)
				testservice.RequireReplay(t, first, svc.Post("k", "b"))
				for _, e := range svc.Journal.All() {
					require.Equal(t, someNote, e.Note, e.Outcome)
				}
				require.Len(t, svc.Journal.All(), 2)
			})
		}
	}
}

// What is not replayed has no note.
func TestNoteOfAnAnswerThatIsNotKept(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, idempotency.Annotate(r.Context(), someNote))
		idempotency.Decide(r.Context(), idempotency.Tombstone)
	})
	require.Equal(t, http.StatusOK, svc.Post("k", "b").Status)
	testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "not-replayable")
	require.Equal(t, someNote, svc.Journal.All()[0].Note)
	require.Empty(t, svc.Journal.Last(t).Note)
}

// The work of a Runner may set any header. None is taken for a note, not even one that looks like it.
func TestHeaderIsNoNote(t *testing.T) {
	t.Parallel()
	service := observe(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	resp := idempotency.Response{Header: idempotency.NewFields(http.Header{"": {someNote}, ":": {someNote}, " ": {someNote}})}
	for range 2 {
		got, _, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
			func(context.Context) (idempotency.Response, error) { return resp, nil })
		require.NoError(t, err)
		require.Equal(t, resp, got)
		require.Empty(t, (<-service.events).Note)
	}
}

func TestNotesThatAreRefused(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, idempotency.Annotate(r.Context(), strings.Repeat("x", 255)))
		for _, refused := range []string{strings.Repeat("x", 256), "two\nlines", "tab\t", " space", "space ", "caf\u00e9", "\x7f"} {
			assert.Error(t, idempotency.Annotate(r.Context(), refused), "%q", refused)
		}
	})
	require.Equal(t, http.StatusOK, svc.Post("k", "b").Status)
	require.Equal(t, strings.Repeat("x", 255), svc.Journal.Last(t).Note)
	require.Error(t, idempotency.Annotate(t.Context(), someNote), "no operation")
}

// A repetition of Complete has the same arguments, as Claim demands, whatever is annotated meanwhile.
func TestNoteDoesNotChangeBetweenRepetitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &notedStore{Store: testservice.NewSpyStore()}
		service := observe(t, store, idempotency.RunnerOptions{})
		_, _, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
			func(ctx context.Context) (idempotency.Response, error) {
				store.between = func() { _ = idempotency.Annotate(ctx, "later") }
				return answered, idempotency.Annotate(ctx, "first")
			})
		require.NoError(t, err)
		require.Equal(t, "first", (<-service.events).Note)
		require.Len(t, store.headers, 2)
		require.Equal(t, store.headers[0], store.headers[1])
	})
}

// notedStore stores an answer, and loses the reply to that once.
type notedStore struct {
	idempotency.Store
	mu      sync.Mutex
	between func()
	headers []idempotency.Fields
}

func (s *notedStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = notedClaim{claim, s}
	}
	return record, claim, err
}

type notedClaim struct {
	idempotency.Claim
	store *notedStore
}

func (c notedClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.headers = append(c.store.headers, resp.Header)
	err := c.Claim.Complete(ctx, resp, ttl)
	if len(c.store.headers) == 1 {
		c.store.between()
		return errors.New("the reply is lost")
	}
	return err
}
