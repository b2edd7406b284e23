package resolve_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/resolve"
)

func TestMain(m *testing.M) { testservice.Main(m) }

var (
	alice = resolve.By{Operator: "alice", Reason: "charge ch_17 is in the provider's list"}
	key   = idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "k"}
)

// scene is a service with an operation whose owner has died, and an operator.
type scene struct {
	*testservice.Service
	resolver *resolve.Resolver
	events   testservice.Journal
	log      strings.Builder
}

// abandoned runs play in a bubble with a fake clock, after the lease of the operation has lapsed.
func abandoned(t *testing.T, play func(*testing.T, *scene)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{Service: testservice.Setup{Opts: idempotency.Options{Abandoned: idempotency.Refuse}}.Guard(t, testservice.AttemptNumber)}
		testservice.Crash(t, s.Service, "k", "b", time.Minute)
		time.Sleep(time.Minute)
		testservice.RequireProblem(t, s.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		var err error
		s.resolver, err = resolve.New(s.Store.Store.(idempotency.Inspector), resolve.Options{
			TTL: time.Hour, MaxResponse: 100, Observer: s.events.Observe, Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		require.NoError(t, err)
		play(t, s)
	})
}

func (s *scene) entry(t *testing.T) idempotency.Entry {
	return testservice.MustInspect(t, s.Store.Store, key)
}

func TestRetriesGetTheAnswerOfTheOperator(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		header := idempotency.NewFields(http.Header{"Content-Type": {"text/plain"}})
		resp := idempotency.Response{Status: 201, Header: header, Body: []byte("charged"), Note: "ch_17"}
		require.NoError(t, s.resolver.Happened(t.Context(), s.entry(t), resp, alice))
		for range 2 {
			got := s.Call("k", "b")
			require.Equal(t, 201, got.Status)
			require.Equal(t, "charged", got.Body)
			require.True(t, got.Replayed())
			require.NotContains(t, got.Header, "Note")
		}
		testservice.RequireProblem(t, s.Call("k", "changed"), http.StatusConflict, "key-reused")
		require.Zero(t, s.Runs.Load())

		entry := s.entry(t)
		require.Equal(t, "ch_17", entry.Note)
		require.Equal(t, &idempotency.Resolved{
			Happened: true, Attempt: 1, At: time.Now().UTC(), Operator: "alice", Reason: "charge ch_17 is in the provider's list",
		}, entry.Resolved)
		require.Equal(t, time.Hour, entry.Remaining)
		event := s.events.Last(t)
		require.Equal(t, idempotency.OutcomeHappened, event.Outcome)
		require.Equal(t, entry.Resolved, event.Resolved)
		require.Equal(t, "ch_17", event.Note)
		require.Equal(t, 201, event.Status)
		require.Equal(t, key.OperationID(), event.Operation)
		require.Equal(t, len(header)+len("charged"), event.Stored)
		require.Contains(t, s.log.String(), `msg="idempotency: happened" operation=`+key.OperationID().String()+
			` attempt=1 status=201 operator=alice reason="charge ch_17 is in the provider's list"`)
	})
}

func TestWhatHasNotHappenedRuns(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		entry := s.entry(t)
		require.NoError(t, s.resolver.NotHappened(t.Context(), entry, resolve.By{Operator: "bob", Reason: "no charge"}))
		resolved := &idempotency.Resolved{Attempt: 1, At: time.Now().UTC(), Operator: "bob", Reason: "no charge"}
		require.Equal(t, resolved, s.entry(t).Resolved)
		require.Equal(t, idempotency.OutcomeNotHappened, s.events.Last(t).Outcome)
		require.Equal(t, resolved, s.events.Last(t).Resolved)
		require.Contains(t, s.log.String(), `attempt=1 operator=bob reason="no charge"`)
		require.ErrorIs(t, s.resolver.Happened(t.Context(), entry, idempotency.Response{Status: 200}, alice), idempotency.ErrEntryChanged)
		require.Len(t, s.events.All(), 1)
		testservice.RequireProblem(t, s.Call("k", "changed"), http.StatusConflict, "key-reused")
		require.Equal(t, "attempt 2", s.Call("k", "b").Body)
		require.True(t, s.Call("k", "b").Replayed())
		require.Equal(t, resolved, s.entry(t).Resolved, "it outlives the completion")
	})
}

// A handler cannot forge a resolution, and an operator cannot pass for Options.Reconcile.
func TestResolutionIsNotForged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
			assert.NoError(t, idempotency.Annotate(r.Context(), "alice: it has happened"))
		})
		svc.Call("k", "b")
		entry := testservice.MustInspect(t, svc.Store.Store, key)
		require.Equal(t, "alice: it has happened", entry.Note)
		require.Nil(t, entry.Resolved)

		asking := testservice.Setup{Opts: idempotency.Options{
			Abandoned: idempotency.Refuse,
			Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) { return nil, nil },
		}}.Guard(t, testservice.AttemptNumber)
		testservice.Crash(t, asking, "k", "b", time.Minute)
		time.Sleep(time.Minute)
		require.Equal(t, "attempt 2", asking.Call("k", "b").Body)
		want := &idempotency.Resolved{Attempt: 1, At: time.Now().UTC()}
		require.Equal(t, want, testservice.MustInspect(t, asking.Store.Store, key).Resolved)
		require.Equal(t, want, asking.Journal.All()[0].Resolved)
		for _, nobody := range []string{"", " ", "\t\n"} {
			_, err := resolve.By{Operator: nobody, Reason: "because"}.Clean()
			require.ErrorContains(t, err, "no operator")
		}
	})
}

// A tombstone of an operation without HTTP has no status.
func TestTombstoneOfTheOperator(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		require.NoError(t, s.resolver.Happened(t.Context(), s.entry(t), idempotency.Response{Status: 201, Omitted: true}, alice))
		problem := testservice.RequireProblem(t, s.Call("k", "b"), http.StatusConflict, "not-replayable")
		require.Equal(t, 201, problem.OriginalStatus)
	})
}

func TestWhatAnOperatorMustNotSay(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		ok := idempotency.Response{Status: 200}
		for name, c := range map[string]struct {
			resp idempotency.Response
			by   resolve.By
			want string
		}{
			"nobody":              {ok, resolve.By{Reason: "because"}, "no operator"},
			"spaces":              {ok, resolve.By{Operator: " \t", Reason: "because"}, "no operator"},
			"no reason":           {ok, resolve.By{Operator: "alice", Reason: " "}, "no reason"},
			"long reason":         {ok, resolve.By{Operator: "alice", Reason: strings.Repeat("x", 1001)}, "1001 bytes, more than 1000"},
			"long operator":       {ok, resolve.By{Operator: strings.Repeat("é", 128), Reason: "because"}, "256 bytes, more than 255"},
			"no status":           {idempotency.Response{Body: []byte("paid")}, alice, "status 0"},
			"no status or body":   {idempotency.Response{Omitted: true}, alice, "status 0"},
			"body of no content":  {idempotency.Response{Status: 204, Body: []byte("paid")}, alice, "status 204"},
			"half a line":         {idempotency.Response{Status: 200, Header: "A: 1"}, alice, "NewFields"},
			"lines in disorder":   {idempotency.Response{Status: 200, Header: "B: 1\nA: 1\n"}, alice, "NewFields"},
			"note in two lines":   {idempotency.Response{Status: 200, Note: "a\nb"}, alice, "note"},
			"informational":       {idempotency.Response{Status: 103}, alice, "status 103"},
			"status of 4 digits":  {idempotency.Response{Status: 1000}, alice, "status 1000"},
			"wrong length":        {idempotency.Response{Status: 200, Header: "Content-Length: 5\n"}, alice, "Content-Length"},
			"field of connection": {idempotency.Response{Status: 200, Header: "Connection: close\n"}, alice, "Connection"},
			"replay marker":       {idempotency.Response{Status: 200, Header: "Idempotent-Replayed: true\n"}, alice, "Idempotent-Replayed"},
			"large body":          {idempotency.Response{Status: 200, Body: make([]byte, 101)}, alice, "101 bytes"},
		} {
			require.ErrorContains(t, s.resolver.Happened(t.Context(), s.entry(t), c.resp, c.by), c.want, name)
		}
		require.ErrorContains(t, s.resolver.NotHappened(t.Context(), s.entry(t), resolve.By{Operator: "alice"}), "no reason")
		require.Empty(t, s.events.All())
		require.Equal(t, idempotency.StateAbandoned, s.entry(t).State)
	})
}

// The stored operator and reason have only visible characters.
func TestCleanOperatorAndReason(t *testing.T) {
	t.Parallel()
	for by, want := range map[resolve.By]resolve.By{
		{Operator: "alice", Reason: "asked"}:             {Operator: "alice", Reason: "asked"},
		{Operator: " alice ", Reason: "\tasked\n"}:       {Operator: "alice", Reason: "asked"},
		{Operator: "Zoë", Reason: "a\nb\x00c\u202e 語 😀"}: {Operator: "Zoë", Reason: `a\nb\x00c\u202e 語 😀`},
		{Operator: "a\xff", Reason: "\u00a0b\u00a0c"}:    {Operator: "a\ufffd", Reason: `b\u00a0c`},
	} {
		clean, err := by.Clean()
		require.NoError(t, err)
		require.Equal(t, want, clean)
		resolution := idempotency.Resolution{Operator: clean.Operator, Reason: clean.Reason, TTL: time.Hour}
		require.NoError(t, resolution.Validate())
	}
}

type inspector struct{ idempotency.Inspector }

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := resolve.New(inspector{}, resolve.Options{TTL: -1, MaxResponse: -1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "TTL -1ns is negative")
	require.ErrorContains(t, err, "MaxResponse -1 is negative")
}

// Without a Logger, the default logger is used. Without an Observer, nothing is called.
func TestDefaults(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		resolver, err := resolve.New(s.Store.Store.(idempotency.Inspector), resolve.Options{})
		require.NoError(t, err)
		entry := s.entry(t)
		entry.Remaining = 48 * time.Hour // of a service that keeps records for longer
		require.NoError(t, resolver.NotHappened(context.Background(), entry, alice))
		require.Equal(t, 48*time.Hour, s.entry(t).Remaining)
	})
}
